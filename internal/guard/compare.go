package guard

import (
	"errors"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// compare finds the plan lines that do not hold, in the order in which they are
// to be put back: what went astray, protections, then what is writable.
func (g *Guard) compare() ([]finding, error) {
	table, err := g.table()
	if err != nil {
		return nil, err
	}
	found := g.astray(table)
	rebind := g.setting("MOUNT_GUARD_REBIND") != "false"
	for _, protections := range []bool{true, false} {
		for _, m := range g.plan() {
			if covers(m) != protections || !protections && !rebind {
				continue
			}
			if f, bad := g.line(m, table); bad {
				found = append(found, f)
			}
		}
	}
	return found, nil
}

// plan are the lines that are mounts of host objects or over them; where two
// have one path the last is what shows.
func (g *Guard) plan() []mountplan.Mount {
	last := map[string]int{}
	for i, m := range g.rec.Mounts {
		last[m.Path] = i
	}
	var out []mountplan.Mount
	for i, m := range g.rec.Mounts {
		if last[m.Path] == i && guarded(m) {
			out = append(out, m)
		}
	}
	return out
}

func guarded(m mountplan.Mount) bool {
	switch m.Kind {
	case mountplan.Symlink, mountplan.Proc, mountplan.DevFS:
		return false
	case mountplan.Data:
		return m.Mode != mountplan.DataCopy
	}
	return true
}

// covers says whether a line takes access away or hides what the host has: it
// comes first, and MOUNT_GUARD_REBIND does not touch it.
func covers(m mountplan.Mount) bool {
	return m.Protection() || m.Kind == mountplan.Data || m.Kind == mountplan.Tmpfs
}

// line compares one plan line with what is there.
func (g *Guard) line(m mountplan.Mount, table map[int]mountinfo.Mount) (finding, bool) {
	if m.Kind == mountplan.MaskFile || m.Kind == mountplan.MaskDir {
		// A configured path that is a link on the host stands for what it leads
		// to now.
		if st, err := sys.Lstat(m.Path); err == nil && st.IsLink() {
			to, err := filepath.EvalSymlinks(m.Path)
			if err != nil {
				return finding{}, false // it leads to nothing, or is gone again
			}
			st, err := sys.Lstat(to)
			if err != nil {
				return finding{}, false
			}
			m.Path, m.Kind = to, mountplan.MaskFile
			if st.IsDir() {
				m.Kind = mountplan.MaskDir
			}
		}
	}
	host, err := object(sys.OpenPathBelow(sys.AtCwd, m.From()))
	if err != nil {
		if covers(m) && !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR) {
			return g.found(m, "the host's path cannot be looked up: "+err.Error())
		}
		// Nothing to bind and nothing to hide; the watches tell when it comes.
		return finding{}, false
	}
	inside, err := object(sys.OpenInRoot(g.root, m.Path))
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return g.found(m, "the path inside cannot be looked up: "+err.Error())
	}
	shown := err == nil
	at, known := table[int(inside.MountID)]
	readOnly := known && (at.ReadOnly() || at.SuperReadOnly())
	switch m.Kind {
	case mountplan.MaskFile, mountplan.MaskDir, mountplan.Data, mountplan.Tmpfs:
		switch {
		case !shown:
			return finding{}, false
		case inside.Same(host):
			return g.found(m, "the host's object shows")
		case inside.MountRoot && m.Protection() && !readOnly:
			return g.found(m, "what covers the host's object can be written")
		}
		return finding{}, false
	}
	switch {
	case !shown || !inside.Same(host):
		return g.found(m, "the host has another object there now")
	case !inside.MountRoot:
		return g.found(m, "its mount is gone")
	case m.Kind == mountplan.RO && !readOnly:
		return g.found(m, "it is writable")
	case m.Kind == mountplan.RW && readOnly && g.narrowed[at.ID]:
		f, _ := g.found(m, "it is back at its place")
		f.op.Do = mountop.RemountRW
		return f, true
	case m.Kind == mountplan.RW && !readOnly:
		g.at[at.ID] = m.Path
		delete(g.narrowed, at.ID)
	}
	// A writable path that is read-only inside stays so: it may be a revocation.
	return finding{}, false
}

func (g *Guard) found(m mountplan.Mount, why string) (finding, bool) {
	return finding{op: g.op(m), why: why}, true
}

// op is the operation that makes the mount of a plan line.
func (g *Guard) op(m mountplan.Mount) mountop.Op {
	op := mountop.Op{Do: string(m.Kind), Path: m.Path, Source: m.Source}
	switch m.Kind {
	case mountplan.Data:
		op.Source = g.reg.DataDir(g.id) + "/" + strconv.Itoa(m.N)
		op.Mode = string(m.Mode)
	case mountplan.Tmpfs:
		op.Mode = "0755"
		if len(m.Options) > len("mode=") {
			op.Mode = m.Options[len("mode="):]
		}
	}
	return op
}

func object(fd int, err error) (sys.Object, error) {
	if err != nil {
		return sys.Object{}, err
	}
	defer syscall.Close(fd)
	return sys.ObjectOf(fd)
}

// astray finds mounts that the plan made writable and that the host moved to
// where the plan has nothing writable: renaming a folder takes along what is
// mounted on it.
func (g *Guard) astray(table map[int]mountinfo.Mount) []finding {
	var out []finding
	for id, path := range g.at {
		m, ok := table[id]
		switch {
		case !ok:
			delete(g.at, id)
			delete(g.narrowed, id)
		case m.Point == path:
		case m.ReadOnly() || g.writable(m.Point):
		default:
			f := finding{op: mountop.Op{Do: mountop.RemountRO, Path: m.Point}, why: "the host moved the writable " + path + " there"}
			for other := range g.at {
				if o, ok := table[other]; ok && mountplan.Under(o.Point, m.Point) {
					f.narrows = append(f.narrows, other)
				}
			}
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(a, b finding) int { return len(a.op.Path) - len(b.op.Path) })
	return out
}

// writable says whether the plan lets path be written: the line that governs it
// is the longest one above it.
func (g *Guard) writable(path string) bool {
	var governs mountplan.Mount
	for _, m := range g.rec.Mounts {
		if mountplan.Under(path, m.Path) && len(m.Path) >= len(governs.Path) {
			governs = m
		}
	}
	return governs.Kind == mountplan.RW
}
