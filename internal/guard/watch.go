package guard

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/sys"
)

// A folder of the host that is watched.
type folder struct {
	names map[string]bool // entries that lead to paths of the plan; nil: only itself
}

// watch brings the inotify watches in line with the host's folders as they are
// now. The folder in which a path of the plan lies tells of its entries. Folders
// above tell only when they are moved away themselves, up to the root: what else
// happens in /home or /etc wakes nobody. A folder that holds paths of the plan
// cannot be removed before those. Where one is missing, the one above it tells
// when it comes.
func (g *Guard) watch() {
	if g.inotify == nil {
		in, err := sys.NewInotify()
		if err != nil {
			g.noWatches(err)
			return
		}
		g.inotify = in
	}
	if err := g.watchAll(g.folders()); err != nil {
		g.noWatches(err)
	} else if g.said[""] != "" {
		g.log.Line(sessionlog.Info, "watching folders again")
		delete(g.said, "")
	}
}

// folders are the folders to watch.
func (g *Guard) folders() map[string]*folder {
	var paths []string
	holds := map[string]bool{} // folders that something of the plan is in
	for _, m := range g.plan() {
		sources := []string{m.Path}
		switch m.Kind {
		case mountplan.RO, mountplan.RW, mountplan.Dev:
			sources = append(sources, m.From())
		}
		for i, p := range sources {
			if p == "/" || i == 0 && !g.shows(path.Dir(p)) {
				continue
			}
			paths = append(paths, p)
			if _, err := object(sys.OpenPathBelow(sys.AtCwd, p)); err == nil {
				for d := path.Dir(p); d != "/" && !holds[d]; d = path.Dir(d) {
					holds[d] = true
				}
			}
		}
	}
	want := map[string]*folder{}
	at := func(dir string) *folder {
		if want[dir] == nil {
			want[dir] = &folder{}
		}
		return want[dir]
	}
	for _, p := range paths {
		if holds[p] {
			at(p)
		} else {
			at(path.Dir(p)).add(path.Base(p))
		}
		for d := path.Dir(p); d != "/"; d = path.Dir(d) {
			at(d)
		}
	}
	return want
}

// shows says whether the sandbox shows the host's folder under its own path;
// where the host has none, the one above it. What comes and goes in a folder that
// the session hides concerns no mount in it, and when that changes mountinfo tells.
func (g *Guard) shows(dir string) bool {
	for {
		host, err := object(sys.OpenPathBelow(sys.AtCwd, dir))
		if err == nil {
			inside, err := object(sys.OpenInRoot(g.root, dir))
			return err == nil && inside.Same(host)
		}
		if dir == "/" {
			return false
		}
		dir = path.Dir(dir)
	}
}

func (f *folder) add(name string) {
	if f.names == nil {
		f.names = map[string]bool{}
	}
	f.names[name] = true
}

// watchAll watches exactly these. It fails only where no watch is left.
func (g *Guard) watchAll(want map[string]*folder) error {
	var dirs []string
	for d := range want {
		dirs = append(dirs, d)
	}
	// The longest first: a missing one passes its name up.
	slices.SortFunc(dirs, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	now := map[int]*folder{}
	for i := 0; i < len(dirs); i++ {
		dir := dirs[i]
		f := want[dir]
		wd, err := g.watchDir(dir, f)
		if other := now[wd]; err == nil && other != nil && other.names != nil {
			// Two paths of one folder, through two mounts of its file system.
			for n := range other.names {
				f.add(n)
			}
			wd, err = g.watchDir(dir, f)
		}
		if err != nil && !errors.Is(err, sys.ErrNoWatches) && dir != "/" {
			// Missing, or no folder yet: the one above tells when it comes.
			up := path.Dir(dir)
			if want[up] == nil {
				want[up] = &folder{}
				dirs = append(dirs, up)
			}
			want[up].add(path.Base(dir))
			continue
		}
		if errors.Is(err, sys.ErrNoWatches) {
			return err
		}
		if err == nil {
			now[wd] = f
		}
	}
	for wd := range g.watches {
		if now[wd] == nil {
			g.inotify.Remove(wd)
		}
	}
	g.watches = now
	return nil
}

func (g *Guard) watchDir(dir string, f *folder) (wd int, err error) {
	fd, err := sys.OpenPathBelow(sys.AtCwd, dir)
	if err != nil {
		return -1, err
	}
	defer syscall.Close(fd)
	return g.inotify.Watch(fd, f.names != nil)
}

// concerns says whether an event may have to do with the plan.
func (g *Guard) concerns(e sys.InotifyEvent) bool {
	f := g.watches[e.WD]
	return e.Lost || f != nil && (e.Name == "" || f.names[e.Name])
}

// noWatches goes over to looking once a second.
func (g *Guard) noWatches(err error) {
	if g.inotify != nil {
		g.inotify.Close()
		g.inotify = nil
		g.watches = map[int]*folder{}
	}
	if g.said[""] == "" {
		g.said[""] = err.Error()
		g.log.Line(sessionlog.Warn, "%v (fs.inotify.max_user_watches, max_user_instances): looking once a second instead", strings.TrimSpace(err.Error()))
	}
}
