package bwrap

import (
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	"agent-sandbox/internal/sandboxinit"
	"agent-sandbox/internal/sys"
)

// deadly are the signals that end a launch which has not come to its command.
var deadly = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// forwarded are the others that the launcher passes on. Few: each costs some
// switches between threads at every launch. A resize of the window and SIGTTIN come
// to the command by the kernel, and the Go runtime drops the rest.
var forwarded = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP}

// ignored would stop or end the launcher: SIGTTIN and SIGTTOU by the terminal,
// SIGPIPE by a message to a closed standard error.
var ignored = []os.Signal{syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE}

// Catch receives, from now on, the signals meant for the command; Start calls it
// too. A launcher calls it before it makes anything that it must tidy up: a signal
// that comes before the command runs then ends Start with Interrupted. What the
// caller ignored (nohup's SIGHUP, the SIGINT of a shell's background job) stays
// ignored, here and in the command. It does not wait until that is so.
func Catch() { go catch() }

var signals = make(chan os.Signal, 64)

// catch returns when the deadly signals are received, catchAll when all are.
var catch = sync.OnceFunc(func() {
	if signal.Ignored(syscall.SIGINT) {
		// The Go runtime has taken it over by now; shells ignore both.
		signal.Ignore(syscall.SIGQUIT)
	}
	notify(deadly)
})

var catchAll = sync.OnceFunc(func() {
	catch()
	notify(forwarded)
})

// Interruption is an *Interrupted where a signal came, since Catch, that ends a
// launch, else nil. It is for what a launch does beside Start.
func Interruption() error {
	catch()
	for {
		select {
		case sig := <-signals:
			if slices.Contains(deadly, sig) {
				return &Interrupted{sig.(syscall.Signal)}
			}
		default:
			return nil
		}
	}
}

// notify is signal.Notify for those of the signals that are not ignored. Each costs
// a few switches between threads.
func notify(which []os.Signal) {
	for _, s := range which {
		if !sys.SigIgnored(s.(syscall.Signal)) {
			signal.Notify(signals, s)
		}
	}
}

// stops keeps SIGTSTP from stopping the command twice. Sent to the whole group
// it comes to the launcher as well, which may learn that the command has stopped,
// and stop, before it has looked at its own signal; when it does, later, that is
// done with. Sandbox-init cannot tell by then: SIGCONT has discarded the stop
// signals that were pending there.
type stops struct {
	mu     sync.Mutex
	n      byte // reports of the command having stopped
	passed bool // sent on since the command was last continued
	due    bool // it has stopped the command and not come here
}

// message is what sandbox-init is told of sig, nil for nothing. It says how many
// stops had been reported here: where there is one more by now, sig was its cause.
func (s *stops) message(sig syscall.Signal) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sig == syscall.SIGTSTP {
		due := s.due
		s.due, s.passed = false, true
		if due {
			return nil
		}
	}
	return []byte{sandboxinit.Forward, byte(sig), s.n}
}

// stopped notes which signal stopped the command, and says how many stops that makes.
func (s *stops) stopped(sig syscall.Signal) byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.n++
	s.due = sig == syscall.SIGTSTP && !s.passed
	return s.n
}

func (s *stops) continued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed = false
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
func (t terminal) takeBack(owns func(pgrp int) bool) int {
	own := syscall.Getpgrp()
	cur, err := sys.ForegroundGroup(int(t.f.Fd()))
	if err != nil || cur <= 0 || cur == own {
		return 0
	}
	gone := syscall.Kill(-cur, 0) == syscall.ESRCH
	if !gone && !owns(cur) {
		return 0
	}
	if sys.SetForegroundGroup(int(t.f.Fd()), own) != nil || gone {
		return 0
	}
	return cur
}

// stop stops the launcher, so that its shell sees the job stopped, and returns when
// it was continued. The terminal goes to the shell's job and, if that is still in
// the foreground afterwards, back to the group inside that had it.
func stop(owns func(pgrp int) bool) {
	t, ok := openTerminal()
	inside := 0
	if ok {
		defer t.f.Close()
		inside = t.takeBack(owns)
	}
	sys.StopSelf()
	if inside != 0 {
		if cur, err := sys.ForegroundGroup(int(t.f.Fd())); err == nil && cur == syscall.Getpgrp() {
			sys.SetForegroundGroup(int(t.f.Fd()), inside)
		}
	}
}
