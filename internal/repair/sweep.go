package repair

import (
	"path"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// revoke takes write access away: from the mount at path and what is below it,
// and, in the sweep, from every other mount of the same object. It only ever
// takes away, so it acts on what is mounted there also where the host has
// something else at that path by now.
func (w *worker) revoke(path string) answer {
	p, err := w.find(path)
	if err != nil {
		return failed("cannot open it in the sandbox", err)
	}
	defer syscall.Close(p.fd)
	if special[p.mount.FSType] {
		return refused("it lies on a %s file system", p.mount.FSType)
	}
	if !p.obj.MountRoot {
		return refused("it is not a mount point")
	}
	return w.tighten(p.mount, p.fd)
}

// detach takes the mount at path away after making it read-only, so that what
// its holders keep is read-only too, as far as the kernel allows; what shows
// afterwards is made read-only.
func (w *worker) detach(name string) answer {
	p, err := w.find(name)
	if err != nil {
		return failed("cannot open it in the sandbox", err)
	}
	defer syscall.Close(p.fd)
	if !p.obj.MountRoot || name == "/" {
		return refused("it is not a mount point")
	}
	for _, m := range w.table.below(name) {
		// With the mount a protection inside it would go.
		if w.keep[m.Point] {
			return refused("%s is mounted inside it and would go too", m.Point)
		}
	}
	if a := w.tighten(p.mount, p.fd); a.Status == Refused {
		return a
	}
	dir, base := path.Split(name)
	parent, err := sys.OpenPathBelow(sys.AtCwd, path.Clean(dir))
	if err != nil {
		return failed("cannot open the folder above it", err)
	}
	defer syscall.Close(parent)
	if o, err := sys.ObjectAt(parent, base); err != nil || o.MountID != p.obj.MountID || !o.MountRoot {
		return refused("it changed meanwhile")
	}
	if err := sys.DetachAt(parent, base); err != nil {
		return failed("cannot detach it", err)
	}
	w.table = nil
	under, err := w.find(name)
	if err != nil {
		return failed("cannot open what is under it", err)
	}
	defer syscall.Close(under.fd)
	if under.mount.ReadOnly() || under.mount.SuperReadOnly() {
		return answer{Status: OK}
	}
	return w.readOnly(under)
}

// enforce reaches, by name, every mount of this namespace that shows what is
// protected.
func (w *worker) enforce(guard []protection) answer {
	a := answer{Status: OK}
	w.table = nil
	if err := w.read(); err != nil {
		return failed("cannot read the mount table", err)
	}
	mounts := w.table.mounts
	for _, g := range guard {
		for _, m := range mounts {
			if m.Major != g.Major || m.Minor != g.Minor {
				continue
			}
			var b answer
			switch {
			case g.Do == opRemountRO && w.revoked(g, m):
				b = w.enforceRevoked(m)
			case g.Do != opRemountRO && mountplan.Under(string(g.Path), m.Root):
				b = w.enforceCovered(g, join(m.Point, rel(string(g.Path), m.Root)))
			default:
				continue
			}
			if b.Status == Busy {
				b.Held = append(b.Held, g.Op)
			}
			a.merge(b)
		}
	}
	return a
}

// revoked says whether m is a writable mount of the object that g took write
// access from, and no line of the plan keeps it.
func (w *worker) revoked(g protection, m mountinfo.Mount) bool {
	return m.Major == g.Major && m.Minor == g.Minor && m.Root == string(g.Path) && !m.ReadOnly() && !w.keep[m.Point]
}

func (w *worker) enforceRevoked(m mountinfo.Mount) answer {
	fd, err := w.child(m)
	if err != nil {
		return answer{Status: OK} // covered: for holder and verify
	}
	defer syscall.Close(fd)
	a := w.setReadOnly(m, fd)
	a.Again = a.Status == OK
	return a
}

// enforceCovered mounts the protection over the object where it shows at name.
func (w *worker) enforceCovered(g protection, name string) answer {
	fd, err := sys.OpenPathBelow(sys.AtCwd, name)
	if err != nil {
		return answer{Status: OK}
	}
	defer syscall.Close(fd)
	return w.coverFD(g, fd)
}

// coverFD mounts the protection over what fd is, if that is the object.
func (w *worker) coverFD(g protection, fd int) answer {
	o, err := sys.ObjectOf(fd)
	if err != nil || !o.Same(g.Object) {
		return answer{Status: OK}
	}
	if g.Do == opRO {
		if m, ok := w.table.get(o.MountID); !ok || m.ReadOnly() {
			return answer{Status: OK}
		} else if o.MountRoot {
			a := w.setReadOnly(m, fd)
			a.Again = a.Status == OK
			return a
		}
		tree, err := sys.CloneTree(fd)
		if err != nil {
			return failed("cannot clone it", err)
		}
		defer syscall.Close(tree)
		if err := sys.SetAttr(tree, sys.AttrReadOnly, 0, true); err != nil {
			return failed("cannot set it up", err)
		}
		return w.cap(tree, fd)
	}
	if err := w.needStore(); err != nil {
		return failed("cannot make what is to be mounted", err)
	}
	name := string(g.Content)
	if g.Do == opData && name == "" || !w.has(name) {
		// Another namespace's worker has no content of the caller's: empty is
		// stricter, and nothing of the host shows.
		name = emptyFile
	}
	mask, err := w.store.clone(name, false)
	if err != nil {
		return failed("cannot make what is to be mounted", err)
	}
	defer syscall.Close(mask)
	return w.cap(mask, fd)
}

func (w *worker) has(name string) bool {
	return !strings.HasPrefix(name, "content-") || w.store.files > 0
}

func (w *worker) cap(tree, fd int) answer {
	if err := sys.MoveMount(tree, fd); err != nil {
		return failed("cannot mount it", err)
	}
	w.table = nil
	if err := w.read(); err != nil {
		return failed("cannot read the mount table", err)
	}
	return answer{Status: OK, Again: true}
}

// holder looks at what a process of the session holds: a working directory, a
// root or an open file. A covered or detached mount has no name any more; only
// from there can it be reached.
func (w *worker) holder(req request, fd int) answer {
	a := answer{Status: OK}
	if err := w.read(); err != nil {
		return failed("cannot read the mount table", err)
	}
	o, err := sys.ObjectOf(fd)
	if err != nil {
		return a
	}
	m, known := w.table.get(o.MountID)
	if !known {
		a.Unknown = true
	}
	for _, g := range req.Guard {
		if o.Major != g.Object.Major || o.Minor != g.Object.Minor {
			continue
		}
		var b answer
		switch {
		case g.Do == opRemountRO:
			b = w.holderRevoked(g, fd, o, m, known)
		default:
			b = w.holderCovered(g, fd, o, m, known, string(req.Path))
		}
		a.merge(b)
		if b.Status != OK || len(b.Busy) > 0 {
			a.Held = append(a.Held, g.Op)
		}
	}
	return a
}

var held = answer{Status: Busy}

func (w *worker) holderRevoked(g protection, fd int, o sys.Object, m mountinfo.Mount, known bool) answer {
	ok := answer{Status: OK}
	if !known {
		// Detached, so the kernel no longer changes it. Does it show the object,
		// writable?
		if ro, err := sys.ReadOnly(fd); err == nil && ro || !w.within(fd, o, g.Object) {
			return ok
		}
		return held
	}
	if !w.revoked(g, m) {
		return ok
	}
	top, err := climb(fd, o)
	if err != nil {
		return held
	}
	defer syscall.Close(top)
	a := w.setReadOnly(m, top)
	a.Again = a.Status == OK
	return a
}

// climb goes up from a folder to the root of its mount. A file has no way up.
func climb(fd int, o sys.Object) (int, error) {
	at, err := syscall.Dup(fd)
	if err != nil {
		return -1, err
	}
	for !o.MountRoot {
		if !o.IsDir() {
			syscall.Close(at)
			return -1, syscall.ENOTDIR
		}
		up, err := sys.OpenPathBelow(at, "..")
		syscall.Close(at)
		if err != nil {
			return -1, err
		}
		n, err := sys.ObjectOf(up)
		if err == nil && (n.MountID != o.MountID || n.Same(o)) {
			err = syscall.EXDEV
		}
		if err != nil {
			syscall.Close(up)
			return -1, err
		}
		at, o = up, n
	}
	return at, nil
}

// within says whether fd is the object or lies below it.
func (w *worker) within(fd int, o, obj sys.Object) bool {
	if !obj.IsDir() {
		return o.Same(obj)
	}
	at, err := syscall.Dup(fd)
	if err != nil {
		return true
	}
	defer func() { syscall.Close(at) }()
	for {
		if o.Same(obj) {
			return true
		}
		if o.MountRoot || !o.IsDir() {
			// A file whose folder cannot be found out: in a detached mount of
			// that file system, so it may be.
			return !o.IsDir() && !o.MountRoot
		}
		up, err := sys.OpenPathBelow(at, "..")
		if err != nil {
			return true
		}
		syscall.Close(at)
		at = up
		n, err := sys.ObjectOf(at)
		if err != nil || n.Same(o) {
			return err != nil
		}
		o = n
	}
}

// holderCovered reaches the object from the place of a holder, by a relative
// walk, and covers it there. link is the path of the holder as /proc has it.
func (w *worker) holderCovered(g protection, fd int, o sys.Object, m mountinfo.Mount, known bool, link string) answer {
	ok := answer{Status: OK}
	if o.Same(g.Object) {
		return w.holds(g, m, known)
	}
	var here string // the holder's place in the file system
	switch {
	case o.MountRoot && known:
		here = m.Root
	case known && mountplan.Under(link, m.Point) && !strings.HasSuffix(link, " (deleted)"):
		here = join(m.Root, rel(link, m.Point))
	default:
		// Detached: paths of /proc begin at the detached mount's root.
		if !known && w.within(fd, o, g.Object) {
			return w.holds(g, m, known)
		}
		return ok
	}
	if mountplan.Under(here, string(g.Path)) {
		return w.holds(g, m, known)
	}
	if !o.IsDir() || !mountplan.Under(string(g.Path), m.Root) {
		return ok
	}
	common := here
	at, err := syscall.Dup(fd)
	if err != nil {
		return held
	}
	defer func() { syscall.Close(at) }()
	for !mountplan.Under(string(g.Path), common) {
		up, err := sys.OpenPathBelow(at, "..")
		if err != nil {
			return ok
		}
		syscall.Close(at)
		at = up
		n, err := sys.ObjectOf(at)
		if err != nil || n.MountID != o.MountID {
			return ok
		}
		common = path.Dir(common)
	}
	down, err := sys.OpenPathBelow(at, rel(string(g.Path), common))
	if err != nil {
		return ok
	}
	defer syscall.Close(down)
	a := w.coverFD(g, down)
	if a.Status != OK {
		return held
	}
	return a
}

// holds is the answer for a holder of the object itself or of something below
// it: no mount changes that. Through a read-only mount it may not write.
func (w *worker) holds(g protection, m mountinfo.Mount, known bool) answer {
	if g.Do == opRO && known && m.ReadOnly() || known && m.FSType == "tmpfs" && m.ReadOnly() {
		return answer{Status: OK}
	}
	return held
}

// verify reads the mount table back and says which revocations did not reach
// every mount.
func (w *worker) verify(guard []protection) answer {
	a := answer{Status: OK}
	w.table = nil
	if err := w.read(); err != nil {
		return failed("cannot read the mount table", err)
	}
	for _, g := range guard {
		if g.Do != opRemountRO {
			continue
		}
		for _, m := range w.table.mounts {
			if w.revoked(g, m) {
				a.Status = Busy
				a.Held = append(a.Held, g.Op)
				a.Busy = append(a.Busy, busyMount{m.ID, []byte(m.Point), m.Major, m.Minor})
			}
		}
	}
	return a
}
