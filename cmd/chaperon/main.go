// Command chaperon is the Slurm proxy of one session. See chaperon(8).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/chaperon"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/helper"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/session"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/slurm"
	"agent-sandbox/internal/sys"
)

const usage = `usage: chaperon RECORD LAUNCHER

Started by agent-sandbox for the session whose record is the file RECORD, with a
socket at descriptor 3: takes the Slurm commands of the session's processes from a
FIFO, checks them against a list of what is allowed, and runs them on the host.
Jobs run through the program LAUNCHER, so in a sandbox as well. SIGUSR1 makes it
read the record again.

Example:
  chaperon /run/user/1000/agent-sandbox/sessions/3fa9c1d2 /usr/bin/agent-sandbox
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) != 2 {
		io.WriteString(stderr, usage)
		return cli.Usage
	}
	p := cli.Printer{Name: "chaperon", W: stderr}
	reread := make(chan os.Signal, 1)
	signal.Notify(reread, syscall.SIGUSR1)
	s, err := start(args[0], args[1])
	if errors.Is(err, io.EOF) {
		return cli.OK // the launcher has given the session up
	}
	if err == nil {
		err = s.serve(reread)
	}
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	return cli.OK
}

// A service is what serves one session.
type service struct {
	server *chaperon.Server
	view   *chaperon.View
	fifo   *os.File
}

// start does all that needs no sandbox, and then waits for the launcher to hand it
// over.
func start(recordFile, launcher string) (*service, error) {
	if err := sys.CloexecFrom(helper.FD); err != nil {
		return nil, err
	}
	// What a command of Slurm leaves behind ends with the session.
	if err := sys.BecomeSubreaper(); err != nil {
		return nil, err
	}
	u, err := host.Current()
	if err != nil {
		return nil, err
	}
	id := filepath.Base(recordFile)
	reg, err := session.OpenRegistry(filepath.Dir(recordFile), u.UID)
	if err != nil {
		return nil, err
	}
	fifo, err := openFIFO(reg, id, u.UID)
	if err != nil {
		return nil, err
	}
	answers, env, err := receive()
	if err != nil {
		return nil, err
	}
	// From its beginning: the position is the sender's too.
	text, err := io.ReadAll(io.NewSectionReader(env, 0, 1<<30))
	env.Close()
	if err != nil {
		return nil, err
	}
	view := &chaperon.View{Registry: reg, User: u, Launcher: launcher, Env: strings.Split(string(text), "\x00")}
	rec, err := view.Open(id)
	if err != nil {
		return nil, err
	}
	days, _ := strconv.Atoi(chaperon.Setting(rec, "CHAPERON_LOG_RETAIN_DAYS"))
	view.Log = sessionlog.New(sessionlog.Options{
		StateHome: u.StateHome, UID: u.UID, Folder: []string{"agent-sandbox", "log", "chaperon"}, ID: id,
		Level: chaperon.Setting(rec, "CHAPERON_LOG_LEVEL"), Keep: time.Duration(days) * 24 * time.Hour,
		Max: maxLog, Total: maxLogs,
	})
	return &service{&chaperon.Server{Answers: answers, UID: u.UID, Log: view.Log, Session: view.Session, Run: slurm.Run}, view, fifo}, nil
}

// Sizes in bytes of a session's log and of all of them.
const (
	maxLog  = 4 << 20
	maxLogs = 50 << 20
)

// receive waits for the launcher to hand over the session.
func receive() (answers, env *os.File, err error) {
	m, err := sys.Recv(helper.FD)
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("descriptor %d is not the launcher's socket: %w", helper.FD, err)
	case len(m.Data) == 0:
		return nil, nil, io.EOF
	case m.Data[0] != helper.Serve || len(m.FDs) != 2:
		return nil, nil, errors.New("the launcher handed over no session")
	}
	return os.NewFile(uintptr(m.FDs[0]), relay.Answers), os.NewFile(uintptr(m.FDs[1]), "environment"), nil
}

// openFIFO opens the request FIFO for reading, and for writing too, so that it never
// ends. Then nobody else can open it for reading: a process inside could take the
// requests of others.
func openFIFO(reg *session.Registry, id string, uid int) (*os.File, error) {
	dir, err := reg.OpenChaperonDir(id, false)
	if err != nil {
		return nil, fmt.Errorf("cannot open the request FIFO: %w", err)
	}
	defer dir.Close()
	f, err := sys.OpenAt(dir, relay.Name, syscall.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the request FIFO: %w", err)
	}
	st, err := sys.Fstat(f)
	if err == nil && (!st.IsFIFO() || int(st.UID) != uid) {
		err = fmt.Errorf("%q is no FIFO of the user's", f.Name())
	}
	if err == nil {
		err = f.Chmod(0o200)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// endTime is how long commands of Slurm have to end with the session.
const endTime = 2 * time.Second

// serve serves until the launcher is gone.
func (s *service) serve(reread <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(ctx, s.fifo) }()
	go func() {
		for range reread {
			s.view.Reread()
		}
	}()
	if err := sys.Send(helper.FD, []byte{helper.Ready}); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		sys.Recv(helper.FD) // nothing more is sent
		close(gone)
	}()
	var err error
	select {
	case err = <-served:
	case <-gone:
		cancel()
		select {
		case err = <-served:
		case <-time.After(endTime):
		}
	}
	sys.KillDescendants()
	return err
}
