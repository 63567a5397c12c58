package bwrap

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/quickstart"
	"agent-sandbox/internal/sandboxinit"
	"agent-sandbox/internal/sys"
)

// attempts is how often a start is tried that fails because the host's mount
// table changes meanwhile.
const attempts = 5

// A Session is a started sandbox.
type Session struct {
	InitPID    int      // pid 1 of the sandbox, as the host sees it
	InitPidfd  *os.File // of pid 1
	Supervisor int      // pid of sandbox-init, which enters nothing and reads nothing of the agent's
	MountNS    uint64   // inode of the mount namespace
	PIDNS      uint64   // inode of the pid namespace

	control int                     // socket to sandbox-init
	socket  uint64                  // inode of the other end
	pidfd   int                     // of bwrap
	pid     int                     // of bwrap
	exited  chan syscall.WaitStatus // see watchEnd
	stderr  *os.File                // what bwrap printed
	stops   stops
	owns    func(pgrp int) bool // whether a process group is the session's
}

// Interrupted is the error of Start where a signal came that ends a program.
type Interrupted struct{ Signal syscall.Signal }

func (i *Interrupted) Error() string {
	return fmt.Sprintf("the start of the sandbox was interrupted: %s", i.Signal)
}

// Status is the exit status for it.
func (i *Interrupted) Status() int { return cli.SignalBase + int(i.Signal) }

// Start starts the sandbox and returns when every mount is in place. The command
// does not run before Go. The error says what is wrong and how to mend it. w may be
// nil; it is used up.
//
// From here on the signals that end, stop or inform a program are caught, and
// Session.Wait passes them on. Every descriptor of the launcher above 2 becomes
// close-on-exec, those its caller left open included.
func Start(spec Spec, w *Waiting) (*Session, error) {
	for try := 1; ; try++ {
		s, err := start(spec, w)
		w = nil
		var f *failure
		if err == nil || !errors.As(err, &f) {
			return s, err
		}
		if !f.transient() || try == attempts {
			return nil, f.explain(spec.Bwrap)
		}
	}
}

func start(spec Spec, w *Waiting) (*Session, error) {
	opts, content := options(spec), copies(spec.Mounts)
	if n := len(opts); n > maxArgs-10 {
		w.Abandon()
		return nil, cli.WithHint(fmt.Errorf("cannot start bwrap: %d mounts make %d arguments, it takes %d", len(spec.Mounts), n, maxArgs),
			"name common parent folders in the configuration instead of single entries")
	}
	if w == nil || len(content) > spares {
		w.Abandon()
		w = await(spec.Bwrap, len(content))
	}
	c, err := w.take()
	if err != nil {
		return nil, err
	}
	err = errors.Join(sys.Fill(c.seccomp, spec.Seccomp), sys.Fill(c.command, command(spec).Marshal()))
	for i, m := range content {
		err = errors.Join(err, sys.Fill(c.content[i], m.Content))
	}
	if err == nil && spec.Before != nil {
		err = spec.Before(c.session.socket)
	}
	if err != nil {
		c.abandon()
		return nil, err
	}
	defer c.open.close()
	// A bwrap that is gone says why when it is waited for.
	io.WriteString(c.args, strings.Join(opts, "\x00")+"\x00")
	syscall.Shutdown(int(c.args.Fd()), syscall.SHUT_WR)
	c.args.Close()
	created := func(s *Session) error {
		if err := s.readInfo(c.info); err != nil {
			return unknown(err)
		}
		if spec.Meanwhile == nil {
			return nil
		}
		return spec.Meanwhile(s)
	}
	return c.session.await(created, func(s *Session, m sys.Message) error {
		if err := s.identify(m); err != nil {
			return unknown(err)
		}
		return nil
	})
}

func command(s Spec) sandboxinit.Command {
	return sandboxinit.Command{NProc: s.NProc, Start: quickstart.Changed(), Hint: s.Hint, Env: s.Env, Args: s.Command}
}

func unknown(err error) error { return fmt.Errorf("cannot tell the processes of the sandbox: %w", err) }

// A Program runs sandbox-init: bwrap, or what another backend has in its place.
type Program struct {
	Path    string
	Args    []string
	Env     []string // of the program itself
	Dir     string   // working directory, empty for the caller's
	Command sandboxinit.Command
	// Before gets the descriptors from 3 to sandboxinit.First, After those from
	// sandboxinit.First+sandboxinit.Descriptors on.
	Before, After []*os.File
	DieWithUs     bool // killed when the launcher is
}

// StartProgram is Start for a backend that has no pid namespace of its own, or none
// that the caller may look at: InitPID, MountNS and PIDNS of the session stay 0.
func StartProgram(p Program) (*Session, error) {
	var open files
	defer open.close()
	command, err := open.memfd("command", p.Command.Marshal())
	if err != nil {
		return nil, err
	}
	s, err := p.fork(command)
	if err != nil {
		return nil, err
	}
	s.owns = func(pgrp int) bool { return sys.Descends(pgrp, os.Getpid()) }
	s, err = s.await(nil, func(s *Session, m sys.Message) error {
		s.Supervisor = m.PID
		return nil
	})
	var f *failure
	if errors.As(err, &f) {
		text := f.text
		if text == "" {
			text = fmt.Sprintf("%s ended with status %d and said nothing", p.Path, status(f.status))
		}
		return nil, fmt.Errorf("cannot set up the sandbox: %s", text)
	}
	return s, err
}

// files are descriptors that are closed together.
type files []*os.File

func (open *files) close() {
	for _, f := range *open {
		f.Close()
	}
}

func (open *files) memfd(name string, content []byte) (*os.File, error) {
	f, err := sys.Memfd(name, content)
	if err == nil {
		*open = append(*open, f)
	}
	return f, err
}

// fork starts p, with the file that sandbox-init reads its command from.
func (p Program) fork(command *os.File) (s *Session, err error) {
	if err := sys.CloexecFrom(3); err != nil {
		return nil, err
	}
	// bwrap ends before pid 1 of the sandbox does; the launcher reaps that, not
	// whatever reaps orphans on this host, so that nothing is left when it ends.
	if err := sys.BecomeSubreaper(); err != nil {
		return nil, err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	stderr, err := sys.Memfd("stderr", nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			stderr.Close()
		}
	}()
	ours, theirs, err := sys.SocketPair()
	if err != nil {
		return nil, err
	}
	socket, err := sys.Inode(theirs)
	if err == nil {
		err = sys.PassCred(ours)
	}
	if err != nil {
		return nil, err
	}

	// The program's own three: bwrap's monitor and pid 1 keep them as long as they
	// live, so they must not be the caller's. It makes /dev/console of a terminal
	// at 1.
	fds := []uintptr{null.Fd(), terminalOr(null.Fd()), stderr.Fd()}
	for i := range sandboxinit.First - 3 {
		f := null
		if i < len(p.Before) {
			f = p.Before[i]
		}
		fds = append(fds, f.Fd())
	}
	fds = append(fds, uintptr(theirs), command.Fd(), 0, 1, 2)
	for _, f := range p.After {
		fds = append(fds, f.Fd())
	}

	s = &Session{control: ours, socket: socket, stderr: stderr}
	s.owns = func(pgrp int) bool {
		ns, err := sys.NSInode(strconv.Itoa(pgrp), "pid")
		return err == nil && ns == s.PIDNS
	}
	attr := &syscall.SysProcAttr{PidFD: &s.pidfd}
	if p.DieWithUs {
		attr.Pdeathsig = syscall.SIGKILL
	}
	var pid int
	onLastingThread(func() {
		mask := sys.SetSigMask(sys.AllSignals())
		pid, err = syscall.ForkExec(p.Path, append([]string{p.Path}, p.Args...), &syscall.ProcAttr{Dir: p.Dir, Env: p.Env, Files: fds, Sys: attr})
		sys.SetSigMask(mask)
	})
	syscall.Close(theirs)
	if err != nil {
		syscall.Close(ours)
		return nil, notStarted(p.Path, err)
	}
	s.pid = pid
	return s, nil
}

// watchEnd has the program's status come to s.exited when it has ended.
func (s *Session) watchEnd() {
	if s.exited == nil {
		s.exited = make(chan syscall.WaitStatus, 1)
		go func() {
			ws, _ := sys.WaitChild(s.pid)
			s.exited <- ws
		}()
	}
}

// await waits until sandbox-init has reported, or the program has ended. created, if
// not nil, is called at once, and found with the report.
func (s *Session) await(created func(*Session) error, found func(*Session, sys.Message) error) (*Session, error) {
	defer s.stderr.Close() // what it says is part of the error
	if err := s.awaitReady(created, found); err != nil {
		syscall.Close(s.control)
		return nil, err
	}
	return s, nil
}

// onLastingThread runs f on a thread that lives as long as the process: the death
// signal of a child is tied to the thread that forked it.
func onLastingThread(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if syscall.Gettid() == syscall.Getpid() {
		f() // the main thread lasts, and another one costs time
		return
	}
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		f()
		close(done)
		select {}
	}()
	<-done
}

// terminalOr is the first of the caller's descriptors that is a terminal.
func terminalOr(other uintptr) uintptr {
	for _, fd := range []int{1, 0, 2} {
		if sys.IsTerminal(fd) {
			return uintptr(fd)
		}
	}
	return other
}

// awaitReady returns when sandbox-init has reported, bwrap has ended, or a signal
// came that ends a program.
func (s *Session) awaitReady(created func(*Session) error, found func(*Session, sys.Message) error) error {
	s.watchEnd()
	var interrupted atomic.Int32
	ready := make(chan struct{})
	watched := make(chan struct{})
	var early []os.Signal
	go func() {
		defer close(watched)
		for {
			select {
			case <-ready:
				return
			case ws := <-s.exited:
				// Its child, if left waiting, holds the socket open.
				s.exited <- ws
				sys.Shutdown(s.control)
				return
			case sig := <-signals:
				if slices.Contains(deadly, sig) {
					interrupted.Store(int32(sig.(syscall.Signal)))
					s.Kill()
				} else {
					early = append(early, sig)
				}
			}
		}
	}()
	go catchAll() // it takes a while, in which this waits anyway
	var failed error
	if created != nil {
		failed = created(s) // the end of bwrap, where that is why, says more
	}
	m, err := sys.Recv(s.control)
	catchAll()
	close(ready)
	<-watched
	for _, sig := range early {
		select {
		case signals <- sig:
		default:
		}
	}
	sig := interrupted.Load()
	if sig != 0 || err != nil || len(m.Data) == 0 {
		ws := s.end()
		keeper.EndHolders(s.socket) // what bwrap left before it told of its child
		if sig != 0 {
			return &Interrupted{syscall.Signal(sig)}
		}
		return s.failure(ws)
	}
	if failed == nil {
		failed = found(s, m)
	}
	if failed != nil {
		s.end()
	}
	return failed
}

// readInfo waits until bwrap tells of pid 1, which it does before it lets that process
// go on. A bwrap that ended first is an error, and InitPID stays 0.
func (s *Session) readInfo(info *os.File) error {
	var data []byte
	for !bytes.Contains(data, []byte("}")) && len(data) < 1<<16 {
		// Its children may hold the pipe open when it has ended.
		ready, err := sys.WaitReadable(int(info.Fd()), s.pidfd)
		if err == nil && !ready[0] {
			err = io.EOF
		}
		if err != nil {
			return err
		}
		buf := make([]byte, 512)
		n, err := info.Read(buf)
		if err != nil {
			return err
		}
		data = append(data, buf[:n]...)
	}
	// {"child-pid": N, ...}; not worth a JSON decoder in every launch.
	_, rest, _ := strings.Cut(string(data), `"child-pid":`)
	rest = strings.TrimLeft(rest, " \t\n")
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	pid, err := strconv.Atoi(rest[:max(end, 0)])
	if err != nil || pid <= 1 {
		return errors.New("bwrap reported no process")
	}
	f, err := sys.PidfdOpen(pid)
	if err != nil {
		return err
	}
	s.InitPID, s.InitPidfd = pid, f
	// No zombie has namespaces.
	if s.MountNS, err = sys.NSInode(strconv.Itoa(pid), "mnt"); err == nil {
		s.PIDNS, err = sys.NSInode(strconv.Itoa(pid), "pid")
	}
	return err
}

func (s *Session) identify(m sys.Message) error {
	if m.Data[0] != sandboxinit.Ready || m.PID <= 1 {
		return errors.New("sandbox-init reported no process")
	}
	st, err := sys.ReadProcStat(m.PID)
	if err != nil {
		return err
	}
	if st.PPID != s.InitPID {
		return fmt.Errorf("process %d has parent %d, not %d", m.PID, st.PPID, s.InitPID)
	}
	s.Supervisor = m.PID
	return nil
}

// Ignore has the launcher ignore, from now on, what a terminal or a closed pipe would
// stop or end it with. Not before the last bwrap has been started: what that
// inherits the command has too.
func Ignore() { signal.Ignore(ignored...) }

// Go lets the command run.
func (s *Session) Go() error {
	if err := sys.Send(s.control, []byte{sandboxinit.Start}); err != nil {
		return fmt.Errorf("cannot start the command: %w", err)
	}
	// What the command has closed must not stay open here. Standard error is kept for messages.
	if null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0); err == nil {
		sys.Dup2(null, 0)
		sys.Dup2(null, 1)
		syscall.Close(null)
	}
	return nil
}

// Wait passes signals and stops on until the command has ended, ends what it
// left behind, gives the terminal back, and returns the exit status.
func (s *Session) Wait() int {
	done := make(chan struct{})
	go s.listen()
	go func() {
		for {
			select {
			case sig := <-signals:
				if m := s.stops.message(sig.(syscall.Signal)); m != nil {
					sys.Send(s.control, m)
				}
			case <-done:
				return
			}
		}
	}()
	ws := s.end0()
	close(done)
	if t, ok := openTerminal(); ok {
		t.takeBack(s.owns)
		t.f.Close()
	}
	return status(ws)
}

func status(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return cli.SignalBase + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// listen hears what sandbox-init reports.
func (s *Session) listen() {
	for {
		m, err := sys.Recv(s.control)
		if err != nil || len(m.Data) == 0 {
			return
		}
		if len(m.Data) != 2 || m.Data[0] != sandboxinit.Stopped {
			continue
		}
		n := s.stops.stopped(syscall.Signal(m.Data[1]))
		if !sys.Readable(s.control) { // of several reports only the last is still true
			stop(s.owns)
			s.stops.continued()
			sys.Send(s.control, []byte{sandboxinit.Resume, n})
		}
	}
}

// Kill ends the session at once. Wait returns afterwards.
func (s *Session) Kill() { sys.PidfdSend(s.pidfd, syscall.SIGKILL) }

// end kills the sandbox and waits until nothing of it is left.
func (s *Session) end() syscall.WaitStatus {
	s.Kill()
	return s.end0()
}

// end0 waits for bwrap, then kills pid 1, which the agent may have freed of its
// death signal, and waits until the kernel has ended all of the pid namespace.
func (s *Session) end0() syscall.WaitStatus {
	s.watchEnd()
	ws := <-s.exited
	syscall.Close(s.pidfd)
	if s.InitPidfd != nil {
		sys.PidfdSignal(s.InitPidfd, syscall.SIGKILL)
		sys.WaitChild(s.InitPID)
	}
	return ws
}
