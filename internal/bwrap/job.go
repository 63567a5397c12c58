package bwrap

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"agent-sandbox/internal/sys"
)

// forwarded are the signals that the launcher passes on: what a user, a shell or
// a batch system sends to end, stop or tell a program something.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTERM,
	syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGXCPU, syscall.SIGIO, syscall.SIGPWR, syscall.SIGWINCH,
	syscall.SIGTSTP, syscall.SIGTTIN,
}

// dropped are caught so that they neither end nor stop the launcher: a message to
// a closed standard error, a file above the limit.
var dropped = []os.Signal{syscall.SIGPIPE, syscall.SIGXFSZ}

// catch receives the signals meant for the command. What the caller ignored
// (nohup's SIGHUP, the SIGINT of a shell's background job) stays ignored, here
// and in the command.
func catch() chan os.Signal {
	c := make(chan os.Signal, 64)
	ignored := signal.Ignored(syscall.SIGINT)
	for _, s := range forwarded {
		switch {
		case sys.SigIgnored(s.(syscall.Signal)):
		case s == syscall.SIGQUIT && ignored:
			// The Go runtime has taken it over by now; shells ignore both.
			signal.Ignore(s)
		default:
			signal.Notify(c, s)
		}
	}
	signal.Notify(c, dropped...)
	return c
}

func isDropped(s os.Signal) bool {
	for _, d := range dropped {
		if s == d {
			return true
		}
	}
	return false
}

// A terminal is the launcher's controlling terminal.
type terminal struct{ f *os.File }

func openTerminal() (terminal, bool) {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	return terminal{f}, err == nil
}

// takeBack makes the launcher's process group the foreground one again where the
// foreground group is one of the session or is gone, as after an interactive shell
// inside. It returns the session's group, 0 where nothing was to do. A group of
// somebody else's, such as the shell's own, is left alone.
func (t terminal) takeBack(pidns uint64) int {
	own := syscall.Getpgrp()
	cur, err := sys.ForegroundGroup(int(t.f.Fd()))
	if err != nil || cur <= 0 || cur == own {
		return 0
	}
	gone := syscall.Kill(-cur, 0) == syscall.ESRCH
	if !gone {
		if ns, err := sys.NSInode(strconv.Itoa(cur), "pid"); err != nil || ns != pidns {
			return 0
		}
	}
	if sys.SetForegroundGroup(int(t.f.Fd()), own) != nil || gone {
		return 0
	}
	return cur
}

// stop stops the launcher, so that its shell sees the job stopped, and returns when
// it was continued. The terminal goes to the shell's job and, if that is still in
// the foreground afterwards, back to the group inside that had it.
func stop(pidns uint64) {
	t, ok := openTerminal()
	inside := 0
	if ok {
		defer t.f.Close()
		inside = t.takeBack(pidns)
	}
	sys.StopSelf()
	if inside != 0 {
		if cur, err := sys.ForegroundGroup(int(t.f.Fd())); err == nil && cur == syscall.Getpgrp() {
			sys.SetForegroundGroup(int(t.f.Fd()), inside)
		}
	}
}
