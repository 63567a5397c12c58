// Package helper starts the programs that run beside a session, outside the sandbox,
// as children of the launcher: mount-guard and chaperon. Each has a socket to the
// launcher, whose end tells it that the launcher is gone, by whatever signal.
package helper

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/sys"
)

// FD is where a helper finds its end of the socket.
const FD = 3

// First bytes of the messages between launcher and chaperon.
const (
	Serve = 's' // to the chaperon, with the session's answer folder and a file that has its environment
	Ready = 'r' // to the launcher: requests are served
)

// A Process is a running helper, as the launcher sees it.
type Process struct {
	PID    int
	sock   int
	stderr *os.File
}

// Start executes the program at path with the arguments args, in a process group
// of its own, since neither Ctrl-C nor a kill of the launcher's job may reach it.
// It has no standard input and output.
func Start(env []string, path string, args ...string) (*Process, error) {
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
	// as long as the helper tidies up.
	stderr, err := sys.Memfd("stderr", nil)
	if err != nil {
		syscall.Close(ours)
		return nil, err
	}
	// The child is this job's until it has a group of its own: stopped with the job
	// before that, it would not be continued with it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	mask := sys.SetSigMask(sys.AllSignals())
	defer sys.SetSigMask(mask)
	sys.SetSigMask(mask | sys.StopSignals)
	pid, err := syscall.ForkExec(path, append([]string{path}, args...), &syscall.ProcAttr{
		Dir:   "/", // it must not keep the caller's file system busy
		Env:   env,
		Files: []uintptr{null.Fd(), null.Fd(), stderr.Fd(), FD: uintptr(theirs)},
		Sys:   &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		syscall.Close(ours)
		stderr.Close()
		return nil, fmt.Errorf("cannot start %q: %w", path, err)
	}
	return &Process{PID: pid, sock: ours, stderr: stderr}, nil
}

// Send sends the helper a message of at most 64 bytes, and descriptors.
func (p *Process) Send(data []byte, fds ...int) error { return sys.Send(p.sock, data, fds...) }

// Ask is Send, and waits for the answer, of one byte. The error has what the helper
// printed.
func (p *Process) Ask(answer byte, data []byte, fds ...int) error {
	if err := p.Send(data, fds...); err != nil {
		return p.said(err)
	}
	return p.Answer(answer)
}

// Answer waits for an answer of one byte. The error has what the helper printed.
func (p *Process) Answer(answer byte) error {
	m, err := sys.Recv(p.sock)
	if err == nil && (len(m.Data) != 1 || m.Data[0] != answer) {
		err = errors.New("it has ended")
	}
	if err != nil {
		return p.said(err)
	}
	return nil
}

// said adds what the helper printed to an error.
func (p *Process) said(err error) error {
	said, _ := io.ReadAll(io.NewSectionReader(p.stderr, 0, 4096))
	if text := strings.TrimSpace(string(said)); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// Kill ends the helper at once. End reaps it.
func (p *Process) Kill() { syscall.Kill(p.PID, syscall.SIGKILL) }

// endTime bounds how long a session's end waits for a helper.
const endTime = 5 * time.Second

// End tells the helper that the session has ended, and waits until it has.
func (p *Process) End() {
	syscall.Close(p.sock)
	late := time.AfterFunc(endTime, func() { syscall.Kill(p.PID, syscall.SIGKILL) })
	sys.WaitChild(p.PID)
	late.Stop()
	p.stderr.Close()
}
