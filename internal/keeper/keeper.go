// Package keeper ends a sandbox whose launcher is gone. bwrap's death signals do
// that too, but the agent can take them away from the sandbox's pid 1 by ptrace;
// a process outside the sandbox that holds pidfds of both cannot be talked out of
// it.
//
// The launcher starts the keeper, mount-guard, before bwrap makes its child, and
// hands it the pidfds over a socket when the sandbox is complete; the command runs
// after the keeper has said that it watches. Until then the keeper knows a sandbox by the
// socket that its processes hold: a bwrap that dies before it has let its child go
// leaves that waiting, without a death signal, for ever.
package keeper

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/helper"
	"agent-sandbox/internal/sys"
)

// First bytes of messages.
const (
	expect   = 'e' // to the keeper, with the inode of the sandbox's socket
	prepare  = 'p' // to the keeper: the session's record can be read
	watch    = 'w' // to the keeper, with the pidfds of launcher and pid 1
	watching = 'k' // to the launcher
)

// A Process is a running keeper, as the launcher sees it.
type Process struct{ *helper.Process }

// Start executes the keeper at path with the arguments args. Its environment is the
// caller's.
func Start(path string, args ...string) (*Process, error) {
	env := append(slices.DeleteFunc(os.Environ(), maxProcs), "GOMAXPROCS=1") // it starts faster
	p, err := helper.Start(env, path, args...)
	if err != nil {
		return nil, err
	}
	return &Process{p}, nil
}

func maxProcs(e string) bool { return strings.HasPrefix(e, "GOMAXPROCS=") }

// Expect tells the keeper, before bwrap is started, which socket the processes of
// the sandbox will hold: the inode of it. Should the launcher go before Watch, the
// keeper ends what holds it.
func (p *Process) Expect(socket uint64) error {
	return p.talk(binary.LittleEndian.AppendUint64([]byte{expect}, socket))
}

// Prepare tells the keeper that the record of the session has been staged.
func (p *Process) Prepare() error { return p.talk([]byte{prepare}) }

func (p *Process) talk(message []byte) error {
	if err := p.Send(message); err != nil {
		return fmt.Errorf("cannot talk to the keeper: %w", err)
	}
	return nil
}

// Watch hands over pid 1 of the sandbox. The command may run when Watching has
// returned.
func (p *Process) Watch(init *os.File) error {
	self, err := sys.PidfdOpen(os.Getpid())
	if err != nil {
		return err
	}
	defer self.Close()
	if err := p.Send([]byte{watch}, int(self.Fd()), int(init.Fd())); err != nil {
		return unwatched(err)
	}
	return nil
}

// Watching returns when the keeper watches the sandbox.
func (p *Process) Watching() error {
	if err := p.Answer(watching); err != nil {
		return unwatched(err)
	}
	return nil
}

func unwatched(err error) error { return fmt.Errorf("the keeper does not watch the sandbox: %w", err) }

// A Ward is what a keeper keeps, on the keeper's side.
type Ward struct {
	launcher, init int // pidfds
}

// Accept, called by the keeper, waits for the launcher to hand over the sandbox.
// load is called whenever a record has been staged; where it fails, the sandbox is
// ended and that is the error. Else the error is io.EOF where the launcher ended, or gave the session up, first; what
// there was of a sandbox has been ended then.
func Accept(load func() error) (*Ward, error) {
	if err := sys.CloexecFrom(helper.FD); err != nil {
		return nil, err
	}
	var socket uint64
	var failed error
	for {
		m, err := sys.Recv(helper.FD)
		switch {
		case err != nil && socket == 0:
			return nil, fmt.Errorf("descriptor %d is not the launcher's socket: %w", helper.FD, err)
		case err != nil || len(m.Data) == 0:
			if socket != 0 {
				EndHolders(socket)
			}
			return nil, io.EOF
		case m.Data[0] == expect && len(m.Data) == 9:
			socket = binary.LittleEndian.Uint64(m.Data[1:])
		case m.Data[0] == prepare:
			failed = load()
		case m.Data[0] == watch && len(m.FDs) == 2:
			w := &Ward{m.FDs[0], m.FDs[1]}
			if failed != nil {
				w.End()
				return nil, failed
			}
			return w, nil
		default:
			return nil, errors.New("the launcher handed over no sandbox")
		}
	}
}

// EndHolders kills what holds a socket until nothing does.
func EndHolders(socket uint64) {
	for range maxRounds {
		pids := sys.SocketHolders(socket)
		for _, pid := range pids {
			end(pid, socket)
		}
		if len(pids) == 0 {
			return
		}
	}
}

// maxRounds bounds the rounds: a process that is killed forks no more, so two or
// three do.
const maxRounds = 100

// end kills a process that holds the socket and waits for its end. It looks again
// after it has a pidfd, for the pid may be another's by then.
func end(pid int, socket uint64) {
	f, err := sys.PidfdOpen(pid)
	if err != nil {
		return
	}
	defer f.Close()
	if !slices.Contains(sys.SocketHolders(socket), pid) {
		return
	}
	sys.PidfdSignal(f, syscall.SIGKILL)
	sys.WaitReadable(int(f.Fd()))
	sys.WaitChild(pid) // where it was ours
}

// Watching tells the launcher that the sandbox is being kept: the command may run.
func (w *Ward) Watching() error { return sys.Send(helper.FD, []byte{watching}) }

// End ends the sandbox, where a keeper that the launcher may have left gives up.
func (w *Ward) End() { sys.PidfdSend(w.init, syscall.SIGKILL) }

// Watch waits until launcher or sandbox is gone. It sleeps in poll(2) until then.
// Where the launcher went first it kills pid 1, and with it all of the sandbox, and
// waits for its end; orphaned says so: there is a session left to tidy up.
func (w *Ward) Watch() (orphaned bool, err error) {
	ready, err := sys.WaitReadable(w.launcher, w.init)
	if err == nil && ready[1] && !ready[0] {
		return false, nil
	}
	w.End()
	if err != nil {
		return true, err
	}
	_, err = sys.WaitReadable(w.init)
	return true, err
}
