// Package keeper ends a sandbox whose launcher is gone. bwrap's death signals do
// that too, but the agent can take them away from the sandbox's pid 1 by ptrace;
// a process outside the sandbox that holds pidfds of both cannot be talked out of
// it.
//
// The launcher starts the keeper, mount-guard, before bwrap, and hands it the
// pidfds over a socket when pid 1 is there; the command runs after the keeper has
// said that it watches. Further messages are the two programs' own affair.
package keeper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/sys"
)

// socketFD is where the keeper finds its end of the socket.
const socketFD = 3

// First bytes of messages.
const (
	watch    = 'w' // to the keeper, with the pidfds of launcher and pid 1
	watching = 'k' // to the launcher
)

// A Process is a running keeper, as the launcher sees it.
type Process struct {
	PID    int
	sock   int
	stderr *os.File
}

// Start executes the program at path with the arguments args, in a process group
// of its own, since neither Ctrl-C nor a kill of the launcher's job may reach it.
// It has no standard input and output. Its environment is the caller's.
func Start(path string, args ...string) (*Process, error) {
	if err := sys.CloexecFrom(3); err != nil {
		return nil, err
	}
	ours, theirs, err := sys.SocketPair()
	if err != nil {
		return nil, err
	}
	defer syscall.Close(theirs)
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		syscall.Close(ours)
		return nil, err
	}
	defer null.Close()
	// Not the caller's standard error: it would stay open after the session for
	// as long as the keeper tidies up.
	stderr, err := sys.Memfd("stderr", nil)
	if err != nil {
		syscall.Close(ours)
		return nil, err
	}
	pid, err := syscall.ForkExec(path, append([]string{path}, args...), &syscall.ProcAttr{
		Dir:   "/",                                                               // it must not keep the caller's file system busy
		Env:   append(slices.DeleteFunc(os.Environ(), maxProcs), "GOMAXPROCS=1"), // it starts faster
		Files: []uintptr{null.Fd(), null.Fd(), stderr.Fd(), socketFD: uintptr(theirs)},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		syscall.Close(ours)
		stderr.Close()
		return nil, fmt.Errorf("cannot start %q: %w", path, err)
	}
	return &Process{PID: pid, sock: ours, stderr: stderr}, nil
}

func maxProcs(e string) bool { return strings.HasPrefix(e, "GOMAXPROCS=") }

// Watch hands over pid 1 of the sandbox and returns when the keeper watches it.
func (p *Process) Watch(init *os.File) error {
	self, err := sys.PidfdOpen(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	err = sys.Send(p.sock, []byte{watch}, int(self.Fd()), int(init.Fd()))
	var m sys.Message
	if err == nil {
		m, err = sys.Recv(p.sock)
	}
	if err == nil && (len(m.Data) != 1 || m.Data[0] != watching) {
		err = errors.New("it has ended")
	}
	if err != nil {
		said, _ := io.ReadAll(io.NewSectionReader(p.stderr, 0, 4096))
		if text := strings.TrimSpace(string(said)); text != "" {
			err = fmt.Errorf("%w: %s", err, text)
		}
		return fmt.Errorf("the keeper does not watch the sandbox: %w", err)
	}
	return nil
}

// Send sends the keeper a message of at most 64 bytes.
func (p *Process) Send(message string) error { return sys.Send(p.sock, []byte(message)) }

// Stop ends the keeper, which has nothing left to do once the sandbox is gone, and
// reaps it.
func (p *Process) Stop() {
	syscall.Kill(p.PID, syscall.SIGKILL)
	sys.WaitChild(p.PID)
	syscall.Close(p.sock)
	p.stderr.Close()
}

// A Ward is what a keeper keeps, on the keeper's side.
type Ward struct {
	launcher, init int // pidfds
}

// Accept, called by the keeper, waits for the launcher to hand over the sandbox.
// The error is io.EOF where the launcher ended, or gave the session up, first.
func Accept() (*Ward, error) {
	m, err := sys.Recv(socketFD)
	if err == nil {
		err = sys.CloexecFrom(socketFD)
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("descriptor %d is not the launcher's socket: %w", socketFD, err)
	case len(m.Data) == 0:
		return nil, io.EOF
	case m.Data[0] != watch || len(m.FDs) != 2:
		return nil, errors.New("the launcher handed over no sandbox")
	}
	return &Ward{m.FDs[0], m.FDs[1]}, nil
}

// Watching tells the launcher that the sandbox is being kept: the command may run.
func (w *Ward) Watching() error { return sys.Send(socketFD, []byte{watching}) }

// Receive waits for the next message of the launcher's Send; io.EOF at its end.
func (w *Ward) Receive() (string, error) {
	m, err := sys.Recv(socketFD)
	if err == nil && len(m.Data) == 0 {
		err = io.EOF
	}
	return string(m.Data), err
}

// Watch waits until launcher or sandbox is gone. It sleeps in poll(2) until then.
// Where the launcher went first it kills pid 1, and with it all of the sandbox, and
// waits for its end; orphaned says so: there is a session left to tidy up.
func (w *Ward) Watch() (orphaned bool, err error) {
	ready, err := sys.WaitReadable(w.launcher, w.init)
	if err == nil && ready[1] && !ready[0] {
		return false, nil
	}
	sys.PidfdSend(w.init, syscall.SIGKILL)
	if err != nil {
		return true, err
	}
	_, err = sys.WaitReadable(w.init)
	return true, err
}
