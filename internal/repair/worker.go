package repair

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/nsjoin"
	"agent-sandbox/internal/sys"
)

// A worker does the mounts of one mount namespace, which its process is in.
type worker struct {
	sock  int
	table *table // nil: to be read anew
	keep  keepSet
	store *store
}

// Work is the main loop of a process that internal/nsjoin has brought into the
// session's namespaces: it answers requests until the socket ends.
func Work() error {
	w := &worker{sock: nsjoin.Socket, keep: keepSet{}}
	// Nothing of the session's files is to be created with fewer permissions
	// than said, and no working directory held.
	syscall.Umask(0)
	if err := sys.Send(w.sock, []byte(nsjoin.Joined)); err != nil {
		return err
	}
	buf := make([]byte, maxPacket)
	for {
		data, fds, err := sys.ReceivePacket(w.sock, buf)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var req request
		if err := json.Unmarshal(data, &req); err != nil {
			return err
		}
		a, out := w.answer(req, fds)
		closeAll(fds)
		err = send(w.sock, a, out...)
		closeAll(out)
		if err != nil {
			return err
		}
	}
}

// Steps that are not operations of mount-repair(8).
const (
	doEnforce = "enforce" // reach every mount of this namespace that shows the protections
	doHolder  = "holder"  // the same through a descriptor that a process of the session holds
	doVerify  = "verify"  // compare the mount table with what was done
	doClone   = "clone"   // of a source worker: a detached mount of the host's object
)

func (w *worker) answer(req request, fds []int) (answer, []int) {
	path := string(req.Path)
	switch req.Do {
	case opKeep:
		w.keep[path] = true
		return answer{Status: OK}, nil
	case opPrivate:
		return w.private(path, req.Skip), nil
	case doEnforce:
		return w.enforce(req.Guard), nil
	case doHolder:
		return w.holder(req, fds[0]), nil
	case doVerify:
		return w.verify(req.Guard), nil
	case doClone:
		return w.clone(req)
	case opRemountRO:
		return w.revoke(path), nil
	case opDetach:
		return w.detach(path), nil
	}
	return w.mount(req, fds), nil
}

// read makes w.table current. The descriptor of /proc/self was opened before
// the join (nsjoin.Proc).
func (w *worker) read() error {
	if w.table != nil {
		return nil
	}
	fd, err := sys.OpenFile(nsjoin.Proc, "mountinfo", syscall.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mountinfo")
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("cannot read the mount table: %w", err)
	}
	w.table, err = parseTable(data)
	return err
}

// A place is an object inside that was opened, and the mount that shows it.
type place struct {
	fd    int
	path  string
	obj   sys.Object
	mount mountinfo.Mount
}

// inFS is the path of the object in its file system.
func (p place) inFS() string {
	if p.obj.MountRoot {
		return p.mount.Root
	}
	return join(p.mount.Root, rel(p.path, p.mount.Point))
}

// find opens path inside, below dir, and says what is there.
func (w *worker) find(path string) (place, error) {
	if err := w.read(); err != nil {
		return place{}, err
	}
	fd, err := sys.OpenPathBelow(sys.AtCwd, path)
	if err != nil {
		return place{}, err
	}
	p := place{fd: fd, path: path}
	if p.obj, err = sys.ObjectOf(fd); err == nil {
		var ok bool
		if p.mount, ok = w.table.get(p.obj.MountID); !ok {
			// Mounted since the table was read.
			w.table = nil
			if err = w.read(); err == nil {
				if p.mount, ok = w.table.get(p.obj.MountID); !ok {
					err = errors.New("its mount is not in the mount table")
				}
			}
		}
	}
	if err != nil {
		syscall.Close(fd)
		return place{}, err
	}
	return p, nil
}

func refused(format string, args ...any) answer {
	return answer{Status: Refused, Text: fmt.Sprintf(format, args...)}
}

// failed turns an error of the kernel into an answer.
func failed(what string, err error) answer {
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return answer{Status: Unsupported, Text: what + ": the kernel lacks the call"}
	case errors.Is(err, syscall.ELOOP):
		return refused("%s: a symbolic link is in the way", what)
	case errors.Is(err, syscall.EPERM):
		return refused("%s: it is read-only on the host", what)
	}
	return refused("%s: %v", what, err)
}

// special file systems have files that act: a mount over or of them changes
// what the kernel is told, not who may write where.
var special = map[string]bool{
	"proc": true, "sysfs": true, "devtmpfs": true, "devpts": true, "cgroup": true, "cgroup2": true, "bpf": true,
	"securityfs": true, "debugfs": true, "tracefs": true, "configfs": true, "efivarfs": true, "nsfs": true,
	"mqueue": true, "binfmt_misc": true, "pstore": true, "selinuxfs": true, "fusectl": true,
}

func (w *worker) mount(req request, fds []int) answer {
	p, err := w.find(string(req.Path))
	if err != nil {
		return failed("cannot open it in the sandbox", err)
	}
	defer syscall.Close(p.fd)
	if special[p.mount.FSType] && !(req.Do == opDev && p.mount.FSType == "devtmpfs") {
		return refused("it lies on a %s file system", p.mount.FSType)
	}
	if req.Do == opDev && !p.obj.IsDevice() {
		return refused("it is not a device")
	}
	if req.Host == nil || !p.obj.Same(*req.Host) {
		return w.replace(req, p, fds)
	}
	if len(req.Without) > 0 {
		return refused("the protection of %s inside it could not be mounted", req.Without)
	}
	switch req.Do {
	case opRW, opDev:
		return w.writable(p, req.Below)
	case opRemountRW:
		if !p.obj.MountRoot {
			return refused("it is not a mount point")
		}
		return w.writable(p, nil)
	case opRO:
		return w.readOnly(p)
	}
	return w.cover(req, p, fds)
}

// replace deals with a path where the sandbox shows another object than the host.
func (w *worker) replace(req request, p place, fds []int) answer {
	// Only the session's makers mount: what the agent puts there is no root
	// of a mount.
	switch {
	case !p.obj.MountRoot:
		if req.Host == nil {
			return refused("the host has no such object")
		}
		return refused("the sandbox has another object there than the host")
	case (req.Do == opMaskFile || req.Do == opMaskDir) && w.isMask(req.Do, p):
		return answer{Status: OK}
	case req.Do == opMaskFile || req.Do == opMaskDir:
		return w.cover(req, p, fds)
	case req.Do == opData || req.Do == opTmpfs:
		return w.swap(req, p, fds)
	case (req.Do == opRO || req.Do == opRW || req.Do == opDev) && len(fds) > 0:
		// What is there must be an earlier file of the same place, not a mask
		// or something from elsewhere, and access is never widened.
		if req.Host == nil || req.Host.Major != p.obj.Major || req.Host.Minor != p.obj.Minor {
			return refused("the sandbox has a mount of another file system there")
		}
		if req.Do != opRO && p.mount.ReadOnly() {
			return refused("the sandbox has another object there than the host, read-only")
		}
		return w.swap(req, p, fds)
	case req.Host == nil:
		return refused("the host has no such object")
	}
	return refused("the sandbox has another object there than the host")
}

// isMask says whether a mask is there already.
func (w *worker) isMask(do string, p place) bool {
	// The launcher's masks of files are of a file beside the record, on whatever
	// file system that lies.
	if !p.mount.ReadOnly() {
		return false
	}
	if do == opMaskFile {
		return p.obj.IsRegular() && p.obj.Size == 0
	}
	return p.obj.IsDir() && emptyDir(p.fd)
}

func emptyDir(fd int) bool {
	d, err := sys.OpenFile(fd, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(d), ".")
	defer f.Close()
	_, err = f.Readdirnames(1)
	return errors.Is(err, io.EOF)
}

// writable makes the object at p writable: its mount, where it is the root of
// one, and a mount of its own otherwise.
func (w *worker) writable(p place, host []hostMount) answer {
	if p.obj.MountRoot {
		if err := sys.SetAttr(p.fd, 0, sys.AttrReadOnly, false); err != nil {
			return failed("cannot make it writable", err)
		}
		w.setOptions(p.mount.ID, "rw")
		for _, h := range w.hostMounts(p, host) {
			// EPERM: read-only on the host, and stays so, as at launch.
			if c, err := w.child(h); err == nil {
				if sys.SetAttr(c, 0, sys.AttrReadOnly, false) == nil {
					w.setOptions(h.ID, "rw")
				}
				syscall.Close(c)
			}
		}
		return answer{Status: OK}
	}
	return w.overlay(p, false, host)
}

// readOnly puts a read-only mount of the object over it.
func (w *worker) readOnly(p place) answer {
	a := answer{Status: OK, Guards: []protection{{Do: opRO, Object: p.obj, Major: p.mount.Major, Minor: p.mount.Minor, Path: []byte(p.inFS())}}}
	if p.obj.MountRoot {
		a.merge(w.tighten(p.mount, p.fd))
		return a
	}
	a.merge(w.overlay(p, true, nil))
	return a
}

func (a *answer) merge(b answer) {
	if b.Status != OK && (a.Status == OK || a.Status == Busy) {
		a.Status, a.Text = b.Status, b.Text
	}
	a.Busy = append(a.Busy, b.Busy...)
	a.Again = a.Again || b.Again
	a.Held = append(a.Held, b.Held...)
	a.Guards = append(a.Guards, b.Guards...)
}

// hostMounts are the mounts inside below p that are mounts of the host at the
// same place, and not lines of the plan: only these become writable with the
// tree above them. A mask or overlay never does, even one that the caller forgot
// to keep, since the host has no such mount there.
func (w *worker) hostMounts(p place, host []hostMount) []mountinfo.Mount {
	if len(host) == 0 {
		return nil
	}
	at := map[string]hostMount{}
	for _, h := range host {
		at[string(h.Point)] = h
	}
	var out []mountinfo.Mount
	for _, m := range w.table.below(p.path) {
		h, ok := at[rel(m.Point, p.path)]
		if ok && h.Major == m.Major && h.Minor == m.Minor && string(h.Root) == m.Root && !w.keep.covers(m.Point, p.path) {
			out = append(out, m)
		}
	}
	return out
}

// child opens the root of a mount that is uncovered at its mount point.
func (w *worker) child(m mountinfo.Mount) (int, error) {
	fd, err := sys.OpenPathBelow(sys.AtCwd, m.Point)
	if err != nil {
		return -1, err
	}
	o, err := sys.ObjectOf(fd)
	if err == nil && (o.MountID != uint64(m.ID) || !o.MountRoot) {
		err = errCovered
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

var errCovered = errors.New("another mount lies over it")

// tighten makes m and what is mounted below it read-only, except what is kept.
// fd is its root.
func (w *worker) tighten(m mountinfo.Mount, fd int) answer {
	a := w.setReadOnly(m, fd)
	for _, c := range w.table.below(m.Point) {
		if c.ReadOnly() || special[c.FSType] || w.keep.covers(c.Point, m.Point) {
			continue
		}
		cfd, err := w.child(c)
		if err != nil {
			continue // covered: the sweep looks for its holders, verify for what is left
		}
		a.merge(w.setReadOnly(c, cfd))
		syscall.Close(cfd)
	}
	return a
}

// busyTries is how often a busy mount is tried again at once.
const busyTries = 100

// setReadOnly takes write access from the mount m whose root is fd. The answer
// asks the sweep to take it from other mounts of the same object too.
func (w *worker) setReadOnly(m mountinfo.Mount, fd int) answer {
	o, err := sys.ObjectOf(fd)
	if err != nil {
		return failed("cannot look at it", err)
	}
	a := answer{Status: OK, Guards: []protection{{Do: opRemountRO, Object: o, Major: m.Major, Minor: m.Minor, Path: []byte(m.Root)}}}
	err = sys.SetAttr(fd, sys.AttrReadOnly, 0, false)
	// A call that writes (rename, mkdir) holds the mount for microseconds; one
	// that is repeated on and on must not keep it writable.
	for range busyTries {
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		err = sys.SetAttr(fd, sys.AttrReadOnly, 0, false)
	}
	switch {
	case err == nil:
		w.setOptions(m.ID, "ro")
	case errors.Is(err, syscall.EBUSY):
		a.Status, a.Busy = Busy, []busyMount{{m.ID, []byte(m.Point), m.Major, m.Minor}}
	default:
		return failed("cannot make it read-only", err)
	}
	return a
}

// setOptions keeps the table true after a change of our own.
func (w *worker) setOptions(id int, first string) {
	if i, ok := w.table.byID[id]; ok {
		_, rest, _ := strings.Cut(w.table.mounts[i].Options, ",")
		w.table.mounts[i].Options = first + "," + rest
	}
}

// overlay puts a recursive clone of what the sandbox sees at p over it: every
// mask and overlay below is in the clone, so no moment is without them.
//
// A clone leaves the mounts below the old place behind, where processes with an
// old working directory or descriptor go on using them. So each old writable
// mount is moved on top of its copy, and what is done to the visible mount
// reaches those processes too; its copy, covered from then on, is read-only. The
// kernel changes mounts below the top of a clone only after it is attached.
func (w *worker) overlay(p place, readOnly bool, host []hostMount) answer {
	result := answer{Status: OK}
	clone, err := sys.CloneTree(p.fd)
	if err != nil {
		return failed("cannot clone it", err)
	}
	defer syscall.Close(clone)
	set, clear := uint64(0), uint64(sys.AttrReadOnly)
	if readOnly {
		set, clear = clear, 0
	}
	if err := sys.SetAttr(clone, set, clear, readOnly); err != nil {
		return failed("cannot set it up", err)
	}

	type pair struct {
		old, copy int
		inside    []int // copies of writable mounts below old, which old brings along
	}
	var moves []pair
	defer func() {
		for _, m := range moves {
			closeAll(append(m.inside, m.old, m.copy))
		}
	}()
	below := w.table.below(p.path)
	var moved []string
	for _, m := range below {
		if m.ReadOnly() || special[m.FSType] {
			continue
		}
		if i := slices.IndexFunc(moved, func(d string) bool { return mountplan.Under(m.Point, d) }); i >= 0 {
			if cp, err := sys.OpenPathBelow(clone, rel(m.Point, p.path)); err == nil {
				moves[i].inside = append(moves[i].inside, cp)
			}
			continue
		}
		old, err := w.child(m)
		if err != nil {
			continue
		}
		if readOnly && !w.keep.covers(m.Point, p.path) {
			result.merge(w.setReadOnly(m, old))
			syscall.Close(old)
			continue
		}
		cp, err := sys.OpenPathBelow(clone, rel(m.Point, p.path))
		if err != nil {
			syscall.Close(old)
			return failed("cannot follow the clone", err)
		}
		moves = append(moves, pair{old: old, copy: cp})
		moved = append(moved, m.Point)
	}
	if err := sys.MoveMount(clone, p.fd); err != nil {
		return failed("cannot mount it", err)
	}
	for _, m := range moves {
		// A mount that came with a host mount is locked to its place; its copy
		// then stands for it. EBUSY: a writer was quicker, and a revocation
		// will name it.
		if sys.MoveMount(m.old, m.copy) == nil {
			for _, fd := range append(m.inside, m.copy) {
				sys.SetAttr(fd, sys.AttrReadOnly, 0, false)
			}
		}
	}
	for _, m := range w.hostMounts(p, host) {
		if underAny(m.Point, moved) {
			continue
		}
		// EPERM: read-only on the host, and stays so, as at launch.
		if c, err := sys.OpenPathBelow(clone, rel(m.Point, p.path)); err == nil {
			sys.SetAttr(c, 0, sys.AttrReadOnly, false)
			syscall.Close(c)
		}
	}
	if len(below) > 0 {
		w.table = nil
		return result
	}
	o, err := sys.ObjectOf(clone)
	if err != nil {
		return failed("cannot read it back", err)
	}
	n := p.mount
	n.ID, n.Parent, n.Root, n.Point = int(o.MountID), p.mount.ID, p.inFS(), p.path
	w.table.add(n)
	w.setOptions(n.ID, map[bool]string{true: "ro", false: "rw"}[readOnly])
	return result
}

func underAny(p string, dirs []string) bool {
	for _, d := range dirs {
		if mountplan.Under(p, d) {
			return true
		}
	}
	return false
}

// cover puts a mask, a data file or a tmpfs over the object at p.
func (w *worker) cover(req request, p place, fds []int) answer {
	fd, name, err := w.content(req, p, fds)
	if err != nil {
		return failed("cannot make what is to be mounted", err)
	}
	defer syscall.Close(fd)
	if err := sys.MoveMount(fd, p.fd); err != nil {
		return failed("cannot mount it", err)
	}
	if o, err := sys.ObjectOf(fd); err != nil || w.table == nil || len(w.table.below(p.path)) > 0 {
		w.table = nil // to be read anew
	} else {
		writable := req.Do == opTmpfs || req.Mode == "rw"
		w.table.add(mountinfo.Mount{ID: int(o.MountID), Parent: p.mount.ID, Major: o.Major, Minor: o.Minor, Root: "/" + name, Point: p.path,
			Options: map[bool]string{true: "rw", false: "ro"}[writable], FSType: "tmpfs"})
	}
	a := answer{Status: OK}
	if req.Do != opTmpfs && req.Mode == "" {
		a.Guards = []protection{{Do: req.Do, Object: p.obj, Major: p.mount.Major, Minor: p.mount.Minor, Path: []byte(p.inFS()), Content: []byte(name)}}
	}
	return a
}

// content makes the detached mount for an operation, and says under what name
// the store makes more of it.
func (w *worker) content(req request, p place, fds []int) (fd int, name string, err error) {
	if req.Do == opTmpfs {
		if !p.obj.IsDir() {
			return -1, "", syscall.ENOTDIR
		}
		fd, err = sys.NewTmpfs(req.Mode, sys.AttrNoSuid|sys.AttrNoDev)
		return fd, "", err
	}
	if req.Do == opMaskDir != p.obj.IsDir() {
		if req.Do == opMaskDir {
			return -1, "", syscall.ENOTDIR
		}
		return -1, "", syscall.EISDIR
	}
	if err := w.needStore(); err != nil {
		return -1, "", err
	}
	switch req.Do {
	case opMaskFile:
		name = emptyFile
	case opMaskDir:
		name = emptyFolder
	case opData:
		mode := os.FileMode(0o444)
		if req.Mode == "rw" {
			mode = 0o600
		}
		d, err := syscall.Dup(fds[0])
		if err != nil {
			return -1, "", err
		}
		f := os.NewFile(uintptr(d), "content")
		name, err = w.store.add(f, mode)
		f.Close()
		if err != nil {
			return -1, "", err
		}
	}
	fd, err = w.store.clone(name, req.Do == opData && req.Mode == "rw")
	return fd, name, err
}

// swap puts a new mount in the place of the one whose root is p: the host
// renamed another file over the one that is bound there, or a data file is made
// anew. The old one is taken away first, since one more mount would stay for
// every save of an editor. What is under it is the session's own tmpfs or the
// host's object of the same name; the new mount goes on a descriptor of that.
func (w *worker) swap(req request, p place, fds []int) answer {
	var fd int
	switch req.Do {
	case opData, opTmpfs:
		var err error
		if fd, _, err = w.content(req, p, fds); err != nil {
			return failed("cannot make what is to be mounted", err)
		}
		defer syscall.Close(fd)
	default:
		fd = fds[0] // from the host, checked there
		o, err := sys.ObjectOf(fd)
		if err != nil || req.Host == nil || !o.Same(*req.Host) || !o.MountRoot {
			return refused("the host's object changed meanwhile")
		}
		if o.IsDir() != p.obj.IsDir() {
			return refused("the host has another kind of file there now")
		}
		set := uint64(sys.AttrNoSuid)
		clear := uint64(0)
		if req.Do != opDev {
			set |= sys.AttrNoDev
		}
		if req.Do == opRO {
			set |= sys.AttrReadOnly
		}
		if err := sys.SetAttr(fd, set, clear, true); err != nil {
			return failed("cannot set it up", err)
		}
		if len(req.Inner) > 0 {
			if fd, err = w.stage(req.Inner, fds); err != nil {
				return failed("cannot put its protections on it", err)
			}
			defer syscall.Close(fd)
		}
	}
	parent, name := path.Split(p.path)
	dir, err := sys.OpenPathBelow(sys.AtCwd, path.Clean(parent))
	if err != nil {
		return failed("cannot open the folder above it", err)
	}
	defer syscall.Close(dir)
	// Only a mount is taken away that is this one, and is read-only or leads
	// nowhere that the plan would not have it lead.
	if o, err := sys.ObjectAt(dir, name); err != nil || o.MountID != p.obj.MountID || !o.MountRoot {
		return refused("it changed meanwhile")
	}
	if a := w.setReadOnly(p.mount, p.fd); a.Status == Refused {
		return a
	}
	if err := sys.DetachAt(dir, name); err != nil {
		return failed("cannot take the old mount away", err)
	}
	w.table = nil
	under, err := sys.OpenPathBelow(dir, name)
	if err != nil {
		return failed("cannot open what is under the old mount", err)
	}
	defer syscall.Close(under)
	if err := sys.MoveMount(fd, under); err != nil {
		return failed("cannot mount it", err)
	}
	return answer{Status: OK}
}

// stage puts protections on the clone fds[0] where nobody sees it, and returns
// the whole as a new clone. The first failure is the end: a tree that lacks one
// is not shown.
func (w *worker) stage(inner []inner, fds []int) (int, error) {
	masks := make([]int, len(inner))
	defer func() {
		for _, fd := range masks {
			if fd > 0 {
				syscall.Close(fd)
			}
		}
	}()
	for i, in := range inner {
		if in.Do == opRO || in.Do == opRW {
			continue
		}
		req := request{Do: in.Do, Mode: in.Mode}
		var content []int
		if in.Do == opData {
			if in.FD <= 0 || in.FD >= len(fds) {
				return -1, syscall.EBADF
			}
			content = fds[in.FD : in.FD+1]
		}
		var err error
		if masks[i], _, err = w.content(req, place{obj: in.Host}, content); err != nil {
			return -1, err
		}
	}
	if err := w.needStore(); err != nil {
		return -1, err
	}
	return w.store.assemble(fds[0], func(root int) error {
		for i, in := range inner {
			if err := put(root, in, masks[i]); err != nil {
				return fmt.Errorf("%s: %w", in.Path, err)
			}
		}
		return nil
	})
}

// put does one inner operation below root.
func put(root int, in inner, mask int) error {
	fd, err := sys.OpenPathBelow(root, string(in.Path))
	if err != nil {
		return err
	}
	defer syscall.Close(fd)
	o, err := sys.ObjectOf(fd)
	if err != nil {
		return err
	}
	if !o.Same(in.Host) {
		return errors.New("it changed meanwhile")
	}
	if in.Do != opRO && in.Do != opRW {
		return sys.MoveMount(mask, fd)
	}
	if !o.MountRoot {
		tree, err := sys.CloneTree(fd)
		if err != nil {
			return err
		}
		defer syscall.Close(tree)
		if err := sys.MoveMount(tree, fd); err != nil {
			return err
		}
		fd = tree
	}
	if in.Do == opRO {
		return sys.SetAttr(fd, sys.AttrReadOnly, 0, true)
	}
	return nil
}

func (w *worker) needStore() (err error) {
	if w.store == nil {
		w.store, err = newStore()
	}
	return err
}

// clone makes a detached mount of a host's object, in a source worker.
func (w *worker) clone(req request) (answer, []int) {
	fd, err := sys.OpenPathBelow(sys.AtCwd, string(req.From))
	if err != nil {
		return failed("cannot open it on the host", err), nil
	}
	defer syscall.Close(fd)
	o, err := sys.ObjectOf(fd)
	if err != nil || req.Host == nil || !o.Same(*req.Host) {
		return refused("the host's object changed meanwhile"), nil
	}
	tree, err := sys.CloneTree(fd)
	if err != nil {
		return failed("cannot clone it on the host", err), nil
	}
	return answer{Status: OK}, []int{tree}
}

// private takes the session's mounts out of propagation, except those at and
// below the skipped paths.
func (w *worker) private(top string, skip [][]byte) answer {
	p, err := w.find(top)
	if err != nil {
		return failed("cannot open it in the sandbox", err)
	}
	defer syscall.Close(p.fd)
	if !p.obj.MountRoot {
		return refused("it is not a mount point")
	}
	if len(skip) == 0 {
		if err := sys.MakePrivate(p.fd, true); err != nil {
			return failed("cannot make it private", err)
		}
	}
	skipped := func(point string) bool {
		for _, s := range skip {
			if mountplan.Under(point, string(s)) {
				return true
			}
		}
		return false
	}
	for _, m := range w.table.mounts {
		if len(skip) == 0 || !m.Shared && !m.Master || !mountplan.Under(m.Point, top) || skipped(m.Point) {
			continue
		}
		fd, err := w.child(m)
		if err != nil {
			continue // seen below, in the table read anew
		}
		err = sys.MakePrivate(fd, false)
		syscall.Close(fd)
		if err != nil {
			return failed("cannot make "+m.Point+" private", err)
		}
	}
	w.table = nil
	if err := w.read(); err != nil {
		return failed("cannot read it back", err)
	}
	for _, m := range w.table.mounts {
		if (m.Shared || m.Master) && mountplan.Under(m.Point, top) && !skipped(m.Point) {
			return refused("%s still receives mounts of the host", m.Point)
		}
	}
	return answer{Status: OK}
}
