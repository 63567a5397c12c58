package sandboxinit

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"agent-sandbox/internal/sys"
)

// signals tells which signals this process was itself sent. The launcher has
// blocked all before it started bwrap, so that a Ctrl-C meant for the command ends
// neither bwrap nor this process. They stay pending here and are read from a
// signalfd, but for those that the Go runtime keeps unblocked in its threads:
// these are caught.
type signals struct {
	fd     int
	marked chan struct{}

	mu sync.Mutex
	at [marker]time.Time // when a caught one came last
}

var unblocked = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGABRT, syscall.SIGTERM}

// marker is the last real-time signal, which nothing here sends otherwise.
const marker = syscall.Signal(64)

// fresh is how long a caught signal counts. What came longer ago was not the one
// that the launcher tells of: somebody inside sent it.
const fresh = 2 * time.Second

func watchSignals() (*signals, error) {
	s := &signals{marked: make(chan struct{})}
	c := make(chan os.Signal, 64)
	for _, sig := range unblocked {
		if !sys.SigIgnored(sig.(syscall.Signal)) {
			signal.Notify(c, sig)
		}
	}
	signal.Notify(c, marker)
	go func() {
		for sig := range c {
			if sig == marker {
				s.marked <- struct{}{}
				continue
			}
			s.mu.Lock()
			s.at[sig.(syscall.Signal)] = time.Now()
			s.mu.Unlock()
		}
	}()
	var err error
	s.fd, err = sys.SignalFD(sys.AllSignals() &^ sys.Set(marker))
	return s, err
}

// take returns what has come since the last call. The kernel delivers pending
// signals lowest number first, and the runtime passes them on in that order: when
// the marker is through, so is all that was sent before the call.
func (s *signals) take() sys.SigSet {
	got := sys.TakeSignals(s.fd)
	syscall.Kill(syscall.Getpid(), marker)
	<-s.marked
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sig := range unblocked {
		n := sig.(syscall.Signal)
		if !s.at[n].IsZero() && time.Since(s.at[n]) < fresh {
			got |= sys.Set(n)
		}
		s.at[n] = time.Time{}
	}
	return got
}
