package guard

import (
	"errors"
	"path"
	"strings"
	"syscall"

	"agent-sandbox/internal/sys"
)

// watch brings the inotify watches in line with the host's folders as they are
// now: for every path of the plan the folders from the one it lies in up to the
// mount that holds it, each with the names that lead to a path of the plan.
// Where a folder is missing, the one above it tells when it comes.
func (g *Guard) watch() {
	if g.Off() {
		return
	}
	if g.inotify == nil {
		in, err := sys.NewInotify()
		if err != nil {
			g.noWatches(err)
			return
		}
		g.inotify = in
	}
	want := map[string]names{}
	add := func(p string) {
		for p != "/" {
			dir, name := path.Dir(p), path.Base(p)
			if want[dir] == nil {
				want[dir] = names{}
			}
			want[dir][name] = true
			p = dir
		}
	}
	for _, m := range g.plan() {
		add(m.From())
		add(m.Path)
	}
	keep := map[int]names{}
	for dir, ns := range want {
		wd, err := g.watchFolder(dir)
		if errors.Is(err, sys.ErrNoWatches) {
			g.noWatches(err)
			return
		}
		if err != nil {
			continue // missing, or not ours to read: its parent is watched
		}
		if keep[wd] == nil {
			keep[wd] = names{}
		}
		for n := range ns {
			keep[wd][n] = true
		}
	}
	// The marker of a reload.
	if fd, err := sys.OpenPathBelow(sys.AtCwd, g.reg.Path); err == nil {
		if wd, err := g.inotify.Watch(fd); err == nil {
			keep[wd] = names{g.id + ".reload": true}
		}
		syscall.Close(fd)
	}
	for wd := range g.watches {
		if keep[wd] == nil {
			g.inotify.Remove(wd)
		}
	}
	if len(g.watches) == 0 && g.said[""] != "" {
		g.log.line(info, "watching folders again")
		delete(g.said, "")
	}
	g.watches = keep
}

func (g *Guard) watchFolder(dir string) (int, error) {
	fd, err := sys.OpenPathBelow(sys.AtCwd, dir)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(fd)
	return g.inotify.Watch(fd)
}

// noWatches goes over to looking once a second.
func (g *Guard) noWatches(err error) {
	if g.inotify != nil {
		g.inotify.Close()
		g.inotify = nil
		g.watches = map[int]names{}
	}
	if g.said[""] == "" {
		g.said[""] = err.Error()
		g.log.line(warn, "%v (fs.inotify.max_user_watches, max_user_instances): looking once a second instead", strings.TrimSpace(err.Error()))
	}
}
