// Package sandboxinit supervises the command inside a bwrap session: it tells the
// launcher when the sandbox is complete, starts the command on its word, passes
// signals and stops on, and ends with the command's status. It is the
// agent-sandbox binary itself, bound into the session.
//
// It runs with the agent's rights. What it tells is believed only as far as it
// concerns the session's own life.
package sandboxinit

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execpath"
	"agent-sandbox/internal/landlock"
	"agent-sandbox/internal/quickstart"
	"agent-sandbox/internal/sys"
)

// Path is the name that bwrap executes it by.
const Path = "/run/agent-sandbox/init"

// First is the number of the first descriptor it is given: the control socket, a
// file with the command, and the caller's standard input, output and error.
const First = 6

// Descriptors is how many there are.
const Descriptors = 5

const (
	fdControl = First + iota
	fdCommand
	fdStdin
	fdStdout
	fdStderr
)

// Words on the control socket, the first byte of a message. Forward and Stopped
// carry a signal number in the second, Forward in the third the number of Stopped
// that the launcher has heard.
const (
	Ready     = 'r' // to the launcher: every mount is in place
	Start     = 'g' // to init: run the command
	Forward   = 's' // to init: the launcher got this signal
	Stopped   = 't' // to the launcher: the command stopped
	Continued = 'c' // to the launcher: it runs again
	Resume    = 'f' // to init: the launcher was continued, with the number of stops it had been told of
)

// A Command is what to run.
type Command struct {
	NProc string            // RLIMIT_NPROC, empty for the caller's
	Start quickstart.Change // to be undone
	Hint  string            // what to do where there is no such command
	Env   []string          // the whole environment
	Args  []string          // at least the name
}

// Marshal makes the content of the command file.
func (c Command) Marshal() []byte {
	fields := append([]string{c.NProc, c.Start.String(), c.Hint, strconv.Itoa(len(c.Env))}, c.Env...)
	return []byte(strings.Join(append(fields, c.Args...), "\x00"))
}

func unmarshal(data string) (c Command, err error) {
	fields := strings.Split(data, "\x00")
	const first = 4 // of the environment
	if len(fields) < first {
		return c, errors.New("no command given")
	}
	start, err := quickstart.Parse(fields[1])
	n, err2 := strconv.Atoi(fields[3])
	if err != nil || err2 != nil || n < 0 || len(fields) < first+n+1 {
		return c, errors.New("no command given")
	}
	return Command{NProc: fields[0], Start: start, Hint: fields[2], Env: fields[first : first+n], Args: fields[first+n:]}, nil
}

// path is the value of PATH; the first counts, as for getenv(3).
func (c Command) path() string {
	for _, e := range c.Env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			return p
		}
	}
	return ""
}

// Restrict is called on the thread that becomes the command's parent, to put the
// command under rules that do not bind the supervisor. An error is reported and
// the command does not run. Backends other than bwrap have more to restrict.
var Restrict = landlock.RestrictWhereScoped

// Self is the path by which this binary can be executed in the session.
var Self = Path

// Subreaper says that there is no pid 1 in whose end everything ends: orphans of
// the command come to this process (PR_SET_CHILD_SUBREAPER), which reaps them and
// ends them with the session.
var Subreaper = false

// Main supervises and returns the exit status of the session. With arguments it
// is the step between supervisor and command that sets limits.
func Main() int {
	if len(os.Args) > 3 && os.Args[1] == "limit" {
		return limit(os.Args[2], os.Args[3:])
	}
	command, err := readCommand()
	if err != nil {
		return fail(err)
	}
	for i := range 3 {
		if err := sys.Dup2(fdStdin+i, i); err != nil {
			return fail(err)
		}
	}
	if err := sys.CloexecFrom(3); err != nil {
		return fail(err)
	}
	if err := sys.Send(fdControl, []byte{Ready}); err != nil {
		return fail(err)
	}
	if m, err := sys.Recv(fdControl); err != nil || len(m.Data) == 0 || m.Data[0] != Start {
		return cli.LaunchFailed // the launcher is gone
	}

	// Until the command runs, what would end it ends the session.
	s := &supervisor{}
	if err := s.start(command); err != nil {
		return cannotRun(command.Args[0], command.Hint, err)
	}
	// Nothing here holds the caller's files open once the command has closed them.
	if null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0); err == nil {
		for i := range 3 {
			sys.Dup2(null, i)
			syscall.Close(fdStdin + i)
		}
	}
	go s.listen()
	code := s.wait()
	endOrphans()
	return code
}

func endOrphans() {
	if Subreaper {
		sys.KillDescendants()
	}
}

func fail(err error) int {
	cli.Printer{Name: "agent-sandbox", W: os.Stderr}.Error(fmt.Errorf("cannot supervise the command: %w", err))
	return cli.LaunchFailed
}

func readCommand() (Command, error) {
	f := os.NewFile(fdCommand, "command")
	defer f.Close()
	data, err := io.ReadAll(f)
	if err != nil {
		return Command{}, err
	}
	return unmarshal(string(data))
}

type supervisor struct {
	pid     int // of the command
	pidfd   int
	stopped atomic.Bool
	stops   atomic.Uint32 // how often the command has stopped
	taking  sync.Mutex    // held while a stop is taken from the kernel and counted
}

// start forks the command from a thread of its own, which takes the rules of
// Restrict and ends: the command inherits them, the supervisor does not, so that
// the command can neither trace nor stop it where the rules hold.
func (s *supervisor) start(c Command) error {
	// This keeps the main thread from taking what follows, if it is the one.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The main thread cannot end, and whoever may trace it has the
			// process. Held here, it is not the one that the next call gets.
			done <- s.start(c)
			runtime.UnlockOSThread()
			return
		}
		done <- s.fork(c)
	}()
	return <-done
}

func (s *supervisor) fork(c Command) error {
	path, err := execpath.Look(c.Args[0], c.path())
	if err != nil {
		return err
	}
	argv := c.Args
	if c.NProc != "" {
		path, argv = Self, append([]string{Path, "limit", c.NProc, path}, c.Args...)
	}
	if err := Restrict(); err != nil {
		return &setupError{err}
	}
	c.Start.Undo()
	if signal.Ignored(syscall.SIGINT) {
		// A shell ignores both for a background job; the runtime leaves SIGINT
		// as it was and takes SIGQUIT.
		signal.Ignore(syscall.SIGQUIT)
	}
	// The child starts with this thread's mask. While that is empty, and it is until
	// some time after the child runs, a stop meant for the command must not stop
	// the supervisor.
	sys.SurviveStops()
	mask := sys.SetSigMask(0)
	defer sys.SetSigMask(mask)
	attr := &syscall.ProcAttr{Env: c.Env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{PidFD: &s.pidfd}}
	s.pid, err = syscall.ForkExec(path, argv, attr)
	if err == syscall.ENOEXEC {
		// As execvp(3) does with a script that does not name its interpreter.
		s.pid, err = syscall.ForkExec("/bin/sh", append([]string{"sh", path}, argv[1:]...), attr)
	}
	return err
}

// limit sets RLIMIT_NPROC and executes the command. The supervisor cannot set it
// on itself, its runtime could then start no more threads.
func limit(nproc string, args []string) int {
	path, command := args[0], args[1:]
	n, err := strconv.ParseUint(nproc, 10, 64)
	if err != nil {
		return fail(fmt.Errorf("limit of processes %s: not a number", cli.Quote(nproc)))
	}
	var r syscall.Rlimit
	if err := syscall.Getrlimit(sys.RlimitNProc, &r); err != nil {
		return fail(fmt.Errorf("getrlimit: %w", err))
	}
	r.Max = min(n, r.Max)
	r.Cur = r.Max
	if err := syscall.Setrlimit(sys.RlimitNProc, &r); err != nil {
		return fail(fmt.Errorf("setrlimit: %w", err))
	}
	if signal.Ignored(syscall.SIGINT) {
		signal.Ignore(syscall.SIGQUIT)
	}
	runtime.LockOSThread()
	quickstart.Changed().Undo()
	err = syscall.Exec(path, command, os.Environ())
	if err == syscall.ENOEXEC {
		err = syscall.Exec("/bin/sh", append([]string{"sh", path}, command[1:]...), os.Environ())
	}
	return cannotRun(command[0], "", err)
}

// A setupError is a failure before the command's own execve.
type setupError struct{ error }

func (e *setupError) Unwrap() error { return e.error }

func cannotRun(name, hint string, err error) int {
	p := cli.Printer{Name: "agent-sandbox", W: os.Stderr}
	status := cli.NotExec
	var setup *setupError
	switch {
	case errors.As(err, &setup):
		return fail(err)
	case errors.Is(err, fs.ErrNotExist) && strings.Contains(name, "/") && exists(name):
		err = cli.WithHint(errors.New("its interpreter is not there"), "see its first line (a script) or `file` (a program); what the sandbox shows: agent-sandbox plan")
	case errors.Is(err, fs.ErrNotExist):
		status = cli.NotFound
		if hint == "" {
			hint = "what the sandbox shows: agent-sandbox plan; READONLY_MOUNTS or HOME_READONLY add to it"
		}
		err = cli.WithHint(errors.New("no such command in the sandbox"), "%s", hint)
	case errors.Is(err, fs.ErrPermission):
		err = errors.New("not executable")
	}
	p.Error(fmt.Errorf("cannot run %s: %w", cli.Quote(name), err))
	return status
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// wait returns the command's status when it has ended, and tells the launcher of
// stops until then. Orphans of the command go to pid 1, which reaps them and ends
// with this process, unless this is a subreaper.
func (s *supervisor) wait() int {
	who := s.pid
	if Subreaper {
		who = -1
	}
	for {
		if err := sys.AwaitChild(who); err != nil {
			return fail(err)
		}
		var ws syscall.WaitStatus
		s.taking.Lock()
		pid, err := syscall.Wait4(who, &ws, syscall.WUNTRACED|syscall.WCONTINUED|syscall.WNOHANG, nil)
		if err == nil && pid == s.pid && ws.Stopped() {
			s.stopped.Store(true)
			s.stops.Add(1)
		}
		s.taking.Unlock()
		switch {
		case err == syscall.EINTR || err == nil && pid != s.pid:
		case err != nil:
			return fail(fmt.Errorf("wait: %w", err))
		case ws.Exited():
			return ws.ExitStatus()
		case ws.Signaled():
			return cli.SignalBase + int(ws.Signal())
		case ws.Stopped():
			sys.Send(fdControl, []byte{Stopped, byte(ws.StopSignal())})
		case ws.Continued():
			s.stopped.Store(false)
			sys.Send(fdControl, []byte{Continued})
		}
	}
}

// listen does what the launcher says, until it is gone.
func (s *supervisor) listen() {
	signals, err := watchSignals()
	if err != nil {
		os.Exit(fail(err))
	}
	var seen sys.SigSet
	for {
		m, err := sys.Recv(fdControl)
		if err != nil || len(m.Data) == 0 {
			endOrphans()
			os.Exit(cli.LaunchFailed)
		}
		switch {
		case m.Data[0] == Forward && len(m.Data) == 3:
			sig := syscall.Signal(m.Data[1])
			if sig == syscall.SIGTSTP && !s.toldOf(m.Data[2]) {
				continue // it has done its work
			}
			// Sent to the whole process group, it has reached this process
			// as well as the command, if that is still in the group.
			seen |= signals.take()
			same := s.sameGroup()
			if same && !seen.Has(sig) {
				// A thread may have taken it from the kernel and not yet noted it.
				time.Sleep(time.Millisecond)
				seen |= signals.take()
			}
			if !same || !seen.Has(sig) {
				s.signal(sig)
			}
			seen &^= sys.Set(sig)
		case m.Data[0] == Resume && len(m.Data) == 2 && s.isStopped() && s.toldOf(m.Data[1]):
			// Not where it was continued and has stopped once more since: asked in this
			// order, that may come between the two questions.
			// A command in a group of its own did not get the shell's SIGCONT.
			if pgid, err := syscall.Getpgid(s.pid); err == nil && pgid == s.pid {
				syscall.Kill(-pgid, syscall.SIGCONT)
			} else {
				s.signal(syscall.SIGCONT)
			}
		}
	}
}

// toldOf says whether the launcher, which knows of n stops, knows of the last one: the
// command may have stopped again, and nobody here have taken that from the kernel yet.
func (s *supervisor) toldOf(n byte) bool {
	s.taking.Lock()
	defer s.taking.Unlock()
	return byte(s.stops.Load()) == n && !sys.ChildStopped(s.pid)
}

func (s *supervisor) signal(sig syscall.Signal) { sys.PidfdSend(s.pidfd, sig) }

// sameGroup: a process group whose leader is outside this pid namespace is 0 for
// both.
func (s *supervisor) sameGroup() bool {
	pgid, err := syscall.Getpgid(s.pid)
	return err == nil && pgid == syscall.Getpgrp()
}

// isStopped asks the kernel, where proc is mounted: the report of a SIGCONT may
// not have been taken yet.
func (s *supervisor) isStopped() bool {
	if st, err := sys.ReadProcStat(s.pid); err == nil {
		return st.State == 'T'
	}
	return s.stopped.Load()
}
