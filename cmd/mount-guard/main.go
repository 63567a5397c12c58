// Command mount-guard keeps one session: it ends the sandbox when the launcher
// is gone, and puts back mounts that the host takes away. See mount-guard(8).
package main

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/guard"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/session"
)

const usage = `usage: mount-guard [RECORD]

Started by agent-sandbox for the session whose record is the file RECORD, with a
socket at descriptor 3: ends the sandbox when the launcher is gone, and puts back
the session's mounts that the host takes away. Without RECORD it watches no
mounts. SIGUSR1 makes it read the record again.

Example:
  mount-guard /run/user/1000/agent-sandbox/sessions/3fa9c1d2
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) > 1 {
		io.WriteString(stderr, usage)
		return cli.Usage
	}
	p := cli.Printer{Name: "mount-guard", W: stderr}
	// No collection by the clock: that alone would wake an idle guard. The heap
	// is given back after each piece of work.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	sleepWell()
	signals, err := userSignals()
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	// All that does not need the record is done before the launcher waits for it.
	var where place
	if len(args) == 1 {
		if where, err = find(args[0]); err != nil {
			p.Error(err)
			return cli.Failed
		}
	}
	var g *guard.Guard
	ward, err := keeper.Accept(func() (err error) {
		g, err = guard.New(where.reg, where.id, guard.NewLog(where.stateHome, os.Getuid(), where.id), signals)
		return err
	})
	if errors.Is(err, io.EOF) {
		return cli.OK
	}
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	// On its own: a file system of the host that does not answer may hold the
	// guard, never the keeper.
	ended := make(chan error, 1)
	go func() {
		_, err := ward.Watch()
		ended <- err
	}()
	switch {
	case g != nil:
		err = g.Enter()
	case len(args) == 1:
		err = errors.New("the launcher staged no record")
	}
	if err == nil {
		err = ward.Watching()
	}
	if err != nil {
		ward.End()
		p.Error(err)
		return cli.Failed
	}
	if g != nil && !g.Off() {
		go g.Run()
	}
	if err := <-ended; err != nil {
		p.Error(err)
		return cli.Failed
	}
	return cli.OK
}

// memoryLimit makes the collector work where a large plan is compared.
const memoryLimit = 8 << 20

// A place is where the session to be guarded is registered.
type place struct {
	reg       *session.Registry
	id        string
	stateHome string
}

func find(recordFile string) (place, error) {
	u, err := host.Current()
	if err != nil {
		return place{}, err
	}
	reg, err := session.OpenRegistry(filepath.Dir(recordFile), u.UID)
	return place{reg, filepath.Base(recordFile), u.StateHome}, err
}

// userSignals gives a descriptor that becomes readable with each SIGUSR1, for
// poll(2) together with the rest.
func userSignals() (int, error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return -1, err
	}
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGUSR1)
	go func() {
		for range ch {
			syscall.Write(p[1], []byte{0})
		}
	}()
	return p[0], nil
}
