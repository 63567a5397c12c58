package repair

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/nsjoin"
	"agent-sandbox/internal/sys"
)

// A Target names a session's sandbox.
type Target struct {
	PID     int
	Start   uint64 // field 22 of /proc/PID/stat
	MountNS uint64 // inode
}

// ErrCannotEnter says that the namespaces could not be entered or that the
// kernel lacks the calls: nothing was done.
var ErrCannotEnter = errors.New("cannot enter the session")

// ErrDeadline says that time ran out: results tell what was done.
var ErrDeadline = errors.New("the deadline passed")

// passes bounds the sweeps over the processes of a session that keeps opening
// new ways while it is swept; what is left is reported.
const passes = 16

// A run is one set of operations on one session.
type run struct {
	target Target
	ops    []Op
	main   *client
	source *client            // made when needed
	nested map[uint64]*client // by inode of the mount namespace
	// Mount namespaces that could not be entered, and why.
	closed map[uint64]error
	host   *table
	guards []protection

	mu      sync.Mutex
	results []Result
	done    []bool
	clients []*client
	over    bool
}

// Run does ops in the session, and writes one result a line, in order, when all
// is done and read back. all says whether every result is ok.
func Run(t Target, ops []Op, errs map[int]error, timeout time.Duration, w io.Writer) (all bool, err error) {
	r := &run{target: t, ops: ops, nested: map[uint64]*client{}, closed: map[uint64]error{}, results: make([]Result, len(ops)), done: make([]bool, len(ops))}
	defer r.stop()
	finished := make(chan error, 1)
	go func() { finished <- r.all(ops, errs) }()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err = <-finished:
	case <-timer.C:
		// A file system that does not answer holds a worker; it is ended, and
		// what it did stays.
		r.stop()
		err = fmt.Errorf("%w after %v", ErrDeadline, timeout)
	}
	if errors.Is(err, ErrCannotEnter) {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all = true
	bw := bufio.NewWriter(w)
	for i, res := range r.results {
		if !r.done[i] {
			res = Result{Status: Refused, Text: "not done: " + fmt.Sprint(err)}
		} else if err != nil && res.Status == OK {
			res = Result{Status: Busy, Text: "done, but not checked to the end: " + err.Error()}
		}
		all = all && res.Status == OK
		fmt.Fprintln(bw, res.Line())
	}
	if e := bw.Flush(); err == nil {
		err = e
	}
	return all, err
}

// stop ends the workers, and waits for their ends: an orphan would be left to
// whoever is above, to be reaped there. One that a file system holds is left.
func (r *run) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	for _, c := range r.clients {
		c.kill()
	}
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	for _, c := range r.clients {
		select {
		case <-c.ended:
		case <-timer.C:
			return
		}
	}
}

func (r *run) set(i int, res Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.results[i], r.done[i] = res, true
	}
}

func (r *run) all(ops []Op, errs map[int]error) error {
	if !sys.HaveMountSetattr() {
		return fmt.Errorf("%w: the kernel has no mount_setattr(2): Linux 5.12 or newer is needed", ErrCannotEnter)
	}
	if err := r.enter(); err != nil {
		return fmt.Errorf("%w: %w", ErrCannotEnter, err)
	}
	var missing []int // protections that could not be mounted
	for i, op := range ops {
		if err := errs[i]; err != nil {
			r.set(i, Result{Status: Refused, Text: err.Error()})
			continue
		}
		without := ""
		if j := slices.IndexFunc(missing, func(j int) bool { return mountplan.Under(ops[j].Path, op.Path) }); j >= 0 && (op.Do == opRW || op.Do == opRemountRW) {
			without = ops[missing[j]].Path
		}
		status, err := r.do(i, ops, without)
		if err != nil {
			return err
		}
		if protects[op.Do] && status != OK {
			missing = append(missing, i)
		}
		if without != "" && status == OK {
			// Bound anew, with its protections: they are there now.
			missing = slices.DeleteFunc(missing, func(j int) bool {
				if mountplan.Under(ops[j].Path, op.Path) {
					status, err = r.do(j, ops, "")
				}
				return err == nil && status == OK
			})
			if err != nil {
				return err
			}
		}
	}
	return r.sweep()
}

// protects are the operations that take access away. What lies above one that
// failed is not made writable in the same run.
var protects = map[string]bool{opRO: true, opMaskFile: true, opMaskDir: true, opData: true}

// do does operation i and keeps its result. without is a protection below its
// path that failed: then the path becomes writable only where it is bound anew
// together with its protections.
func (r *run) do(i int, ops []Op, without string) (status string, err error) {
	a, err := r.one(ops[i], ops, without)
	if errors.Is(err, errTooLarge) {
		a, err = refused("%v", err), nil
	}
	if err != nil {
		return "", err
	}
	for _, g := range a.Guards {
		g.Op = i
		r.guards = append(r.guards, g)
	}
	res := Result{Status: a.Status, Text: a.Text}
	if a.Status == Busy {
		res.Text = r.describe(a.Busy)
	}
	r.set(i, res)
	return a.Status, nil
}

// enter checks the process and starts the worker in its namespaces.
func (r *run) enter() error {
	t := r.target
	// The pidfd first: as long as the process it holds lives, the pid is its.
	pidfd, err := sys.PidfdOpen(t.PID)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.PID, err)
	}
	defer pidfd.Close()
	st, err := sys.ReadProcStat(t.PID)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.PID, err)
	}
	if st.Start != t.Start {
		return fmt.Errorf("process %d started at %d, not at %d: the pid was used again", t.PID, st.Start, t.Start)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", t.PID))
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := sys.PidfdSignal(pidfd, 0); err != nil {
		return fmt.Errorf("process %d has ended", t.PID)
	}
	r.main, err = r.join(ns, t.MountNS)
	return err
}

func (r *run) join(ns *os.File, inode uint64) (*client, error) {
	return r.start([]string{nsjoin.Join, strconv.FormatUint(inode, 10)}, ns)
}

// one does a single operation of ops.
func (r *run) one(op Op, ops []Op, without string) (answer, error) {
	req := request{Do: op.Do, Path: []byte(op.Path), Mode: op.Mode, Without: []byte(without)}
	switch op.Do {
	case opKeep, opRemountRO, opDetach:
		a, _, err := r.main.ask(req)
		return a, err
	case opPrivate:
		for _, s := range op.Skip {
			req.Skip = append(req.Skip, []byte(s))
		}
		a, _, err := r.main.ask(req)
		return a, err
	}
	object := op.Source
	var fds []int
	defer func() { closeAll(fds) }()
	if op.Do == opData {
		object = op.Path
		fd, err := openContent(op.Source)
		if err != nil {
			return refused("cannot use the content in %s: %v", op.Source, err), nil
		}
		fds = []int{fd}
	}
	fd, err := sys.OpenPathBelow(sys.AtCwd, object)
	switch {
	case err == nil:
		defer syscall.Close(fd)
		o, err := sys.ObjectOf(fd)
		if err != nil {
			return refused("cannot look at it on the host: %v", err), nil
		}
		req.Host = &o
	case errors.Is(err, syscall.ELOOP):
		return refused("a symbolic link is in the path on the host"), nil
	case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR):
		return refused("cannot open it on the host: %v", err), nil
	}
	if op.Do == opRW {
		if req.Below, err = r.hostBelow(op.Source); err != nil {
			return answer{}, err
		}
	}
	a, _, err := r.main.ask(req, fds...)
	// The host put another file where one is bound on its own: the new one is
	// not visible inside, and only a clone from the host brings it there.
	if err == nil && a.Status == Refused && req.Host != nil && (op.Do == opRO || op.Do == opRW || op.Do == opDev) {
		if tree, ok := r.fromHost(req, op.Source); ok {
			fds = []int{tree}
			if req.Host.IsDir() {
				req.Inner, fds = innerOps(op, ops, fds)
			}
			a, _, err = r.main.ask(req, fds...)
		}
	}
	return a, err
}

// innerOps are the kept mounts and the operations of the run below op's path. A
// folder that is bound anew from the host has none of the session's protections:
// they are put on it before it is seen, wherever in the run they stand. fds grows
// by their contents.
func innerOps(op Op, ops []Op, fds []int) ([]inner, []int) {
	// Protections first: the clone of a folder above one takes it along.
	var covers, folders []inner
	seen := map[string]bool{}
	for _, o := range ops {
		if o.Path == op.Path || !mountplan.Under(o.Path, op.Path) || seen[o.Path] {
			continue
		}
		do := o.Do
		if do == opKeep {
			do = o.Kind
		}
		in := inner{Do: do, Path: []byte(rel(o.Path, op.Path)), Mode: o.Mode}
		switch do {
		case opRO, opRW, opMaskFile, opMaskDir:
			if o.Source != o.Path {
				continue
			}
		case opData:
			fd, err := openContent(o.Source)
			if err != nil {
				// Empty is stricter than what the host has there.
				in.Do = opMaskFile
				break
			}
			in.FD = len(fds)
			fds = append(fds, fd)
		default:
			continue
		}
		fd, err := sys.OpenPathBelow(sys.AtCwd, o.Path)
		if err != nil {
			continue
		}
		in.Host, err = sys.ObjectOf(fd)
		syscall.Close(fd)
		if err != nil {
			continue
		}
		seen[o.Path] = true
		if do == opRW {
			folders = append(folders, in)
		} else {
			covers = append(covers, in)
		}
	}
	return append(covers, folders...), fds
}

// openContent opens the file of a data operation: one that only its owner, who
// is the caller, could write.
func openContent(name string) (int, error) {
	fd, err := sys.OpenFile(sys.AtCwd, name, syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	o, err := sys.ObjectOf(fd)
	switch {
	case err != nil:
	case !o.IsRegular():
		err = errors.New("not a regular file")
	case int(o.UID) != os.Getuid():
		err = fmt.Errorf("it belongs to uid %d", o.UID)
	case o.Mode&0o022 != 0:
		err = errors.New("others can write it")
	case o.Size > maxContent:
		err = fmt.Errorf("it is larger than %d bytes", maxContent)
	}
	if err != nil {
		syscall.Close(fd)
		return -1, err
	}
	return fd, nil
}

// readHost reads the host's mount table once.
func (r *run) readHost() error {
	if r.host != nil {
		return nil
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	r.host, err = parseTable(data)
	return err
}

// hostBelow are the topmost mounts of the host below path.
func (r *run) hostBelow(path string) ([]hostMount, error) {
	if err := r.readHost(); err != nil {
		return nil, err
	}
	at := map[string]hostMount{}
	for _, m := range r.host.below(path) {
		p := rel(m.Point, path)
		at[p] = hostMount{[]byte(p), m.Major, m.Minor, []byte(m.Root)}
	}
	var out []hostMount
	for _, h := range at {
		out = append(out, h)
	}
	return out, nil
}

func (r *run) fromHost(req request, source string) (int, bool) {
	var err error
	if r.source == nil {
		if r.source, err = r.start([]string{nsjoin.Source}, nil); err != nil {
			return -1, false
		}
	}
	a, fds, err := r.source.ask(request{Do: doClone, From: []byte(source), Host: req.Host})
	if err != nil || a.Status != OK || len(fds) != 1 {
		closeAll(fds)
		return -1, false
	}
	return fds[0], true
}

// sweep reaches what shows a protected object under another name or under none,
// until a pass over the session's processes finds nothing new, and reads the
// mount tables back.
func (r *run) sweep() error {
	if len(r.guards) == 0 {
		return nil
	}
	var left map[int][]string
	for range passes {
		again, l, err := r.pass()
		if err != nil {
			return err
		}
		left = l
		if !again {
			break
		}
	}
	for i, who := range left {
		r.mu.Lock()
		if res := &r.results[i]; res.Status == OK || res.Status == Busy {
			res.Status = Busy
			if res.Text != "" {
				who = append(strings.Split(res.Text, "; "), who...)
			}
			res.Text = strings.Join(unique(who), "; ")
		}
		r.mu.Unlock()
	}
	return nil
}

// pass is one look at all that the session has; left says by operation who
// escapes it.
func (r *run) pass() (again bool, left map[int][]string, err error) {
	left = map[int][]string{}
	seen, err := look(r.target.PID, func(o sys.Object) bool { return len(r.onDevice(o)) > 0 })
	if err != nil {
		return false, nil, err
	}
	defer seen.close()
	r.enterNested(seen.namespaces)

	for _, c := range r.everywhere() {
		for part := range chunks(r.guards) {
			a, _, err := c.ask(request{Do: doEnforce, Guard: part})
			if err != nil {
				return false, nil, err
			}
			again = again || a.Again
			for _, op := range a.Held {
				for _, b := range a.Busy {
					left[op] = append(left[op], seen.writersOrUnknown(b)...)
				}
			}
		}
	}
	done := map[string]bool{}
	for _, h := range seen.held {
		guards := r.inherited(h, r.onDevice(h.obj))
		key := fmt.Sprint(h.obj.MountID, h.obj.Major, h.obj.Minor, h.obj.Inode, h.link)
		if done[key] {
			continue
		}
		for part := range chunks(guards) {
			a, err := r.askHolder(request{Do: doHolder, Path: []byte(h.link), Guard: part, Write: h.write}, h.fd)
			if err != nil {
				return false, nil, err
			}
			again = again || a.Again
			for _, op := range a.Held {
				left[op] = append(left[op], h.String())
			}
			if len(a.Held) == 0 {
				done[key] = true
			}
		}
	}
	for _, c := range r.everywhere() {
		for part := range chunks(r.guards) {
			a, _, err := c.ask(request{Do: doVerify, Guard: part})
			if err != nil {
				return false, nil, err
			}
			for i, op := range a.Held {
				left[op] = append(left[op], seen.writersOrUnknown(a.Busy[i])...)
			}
		}
	}
	for _, who := range seen.inFlight {
		for _, g := range r.guards {
			left[g.Op] = append(left[g.Op], who)
		}
	}
	for inode, err := range r.closed {
		for _, g := range r.guards {
			left[g.Op] = append(left[g.Op], fmt.Sprintf("mount namespace %d inside the session cannot be entered: %v", inode, err))
		}
	}
	return again, left, nil
}

// inherited leaves out the protections that a descriptor of the host's own mounts
// has nothing to do with: one that the command was started with (its standard
// output, say) is no mount of the session's, and the host's path tells where it is.
func (r *run) inherited(h holding, guards []protection) []protection {
	if r.readHost() != nil {
		return guards
	}
	if _, ok := r.host.get(h.obj.MountID); !ok || strings.HasSuffix(h.link, " (deleted)") {
		return guards
	}
	return slices.DeleteFunc(slices.Clone(guards), func(g protection) bool {
		return !mountplan.Under(h.link, r.ops[g.Op].Source)
	})
}

// askHolder asks the worker in whose namespace the holder's mount is. A mount
// that is in none is detached.
func (r *run) askHolder(req request, fd int) (answer, error) {
	first, _, err := r.main.ask(req, fd)
	if err != nil || !first.Unknown {
		return first, err
	}
	for _, c := range r.nested {
		if a, _, err := c.ask(req, fd); err != nil || !a.Unknown {
			return a, err
		}
	}
	return first, nil
}

func (r *run) everywhere() []*client {
	out := []*client{r.main}
	for _, c := range r.nested {
		out = append(out, c)
	}
	return out
}

// enterNested starts a worker in every mount namespace that processes of the
// session made for themselves.
func (r *run) enterNested(namespaces map[uint64]string) {
	own, _ := sys.NSInode("self", "mnt")
	r.closed = map[uint64]error{}
	for inode, link := range namespaces {
		if inode == r.target.MountNS || inode == own || r.nested[inode] != nil {
			continue
		}
		f, err := os.Open(link)
		if os.IsNotExist(err) {
			continue // its process has ended
		}
		var c *client
		if err == nil {
			c, err = r.join(f, inode)
			f.Close()
		}
		if err != nil {
			r.closed[inode] = err
			continue
		}
		r.nested[inode] = c
	}
}

func (r *run) onDevice(o sys.Object) []protection {
	var out []protection
	for _, g := range r.guards {
		if g.Object.Major == o.Major && g.Object.Minor == o.Minor {
			out = append(out, g)
		}
	}
	return out
}

// chunks cuts guards so that a part fits in one packet: a path of 4,096 bytes
// is 5,500 in base64.
func chunks(guards []protection) func(func([]protection) bool) {
	return func(yield func([]protection) bool) {
		for len(guards) > 0 {
			n, size := 0, 0
			for n < len(guards) && size < maxPacket/2 {
				size += 512 + 2*len(guards[n].Path)
				n++
			}
			if !yield(guards[:n]) {
				return
			}
			guards = guards[n:]
		}
	}
}

// describe names the writers of busy mounts.
func (r *run) describe(busy []busyMount) string {
	seen, err := look(r.target.PID, func(o sys.Object) bool {
		return slices.ContainsFunc(busy, func(b busyMount) bool { return uint64(b.ID) == o.MountID })
	})
	if err != nil {
		return err.Error()
	}
	defer seen.close()
	var out []string
	for _, b := range busy {
		out = append(out, seen.writersOrUnknown(b)...)
	}
	return strings.Join(unique(out), "; ")
}

func unique(in []string) []string {
	slices.Sort(in)
	return slices.Compact(in)
}

// A client is a worker process, seen from outside.
type client struct {
	ended chan struct{} // closed when the worker is reaped
	sock  int
	cmd   *exec.Cmd
	buf   []byte
	once  sync.Once
}

// start runs this binary again as a worker, with the descriptors that nsjoin
// knows, and waits until it has entered.
func (r *run) start(args []string, ns *os.File) (*client, error) {
	here, there, err := sys.SocketPair()
	if err != nil {
		return nil, err
	}
	sock := os.NewFile(uintptr(there), "socket")
	defer sock.Close()
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{sock}
	if ns != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, ns)
	}
	if err := cmd.Start(); err != nil {
		syscall.Close(here)
		return nil, fmt.Errorf("cannot start a worker: %w", err)
	}
	c := &client{sock: here, cmd: cmd, buf: make([]byte, maxPacket), ended: make(chan struct{})}
	r.mu.Lock()
	r.clients = append(r.clients, c)
	over := r.over
	r.mu.Unlock()
	if over {
		c.kill()
	}
	data, _, err := sys.ReceivePacket(here, c.buf)
	switch {
	case errors.Is(err, io.EOF):
		err = errors.New("the worker ended")
	case err == nil && string(data) != nsjoin.Joined:
		err = errors.New(string(data))
	}
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// kill ends the worker, and does not wait for one that a file system holds.
func (c *client) kill() {
	c.once.Do(func() {
		c.cmd.Process.Kill()
		syscall.Shutdown(c.sock, syscall.SHUT_RDWR)
		go func() {
			c.cmd.Wait()
			close(c.ended)
		}()
	})
}

func (c *client) ask(req request, fds ...int) (answer, []int, error) {
	var a answer
	if err := send(c.sock, req, fds...); err != nil {
		return a, nil, fmt.Errorf("worker: %w", err)
	}
	data, got, err := sys.ReceivePacket(c.sock, c.buf)
	if err != nil {
		return a, nil, fmt.Errorf("worker: %w", err)
	}
	if err := json.Unmarshal(data, &a); err != nil {
		closeAll(got)
		return a, nil, fmt.Errorf("worker: %w", err)
	}
	return a, got, nil
}
