package chaperon

import (
	"fmt"
	"sync"
	"time"

	"agent-sandbox/internal/sessionlog"
)

// A flood bounds how many lines of one sort a session's log has: a client can have
// thousands of requests a second refused, and is not to turn the log over with them.
// There are so many at once, then one in a while; the others are counted.
type flood struct {
	log *sessionlog.Log

	mu   sync.Mutex
	free int // lines that may be written, beside those that time gives
	last time.Time
	more int // that were not written since the last line
}

const (
	floodStart = 100
	floodEvery = 10 * time.Second
)

func newFlood(log *sessionlog.Log) *flood {
	return &flood{log: log, free: floodStart, last: time.Now()}
}

// line writes a line, or counts it.
func (f *flood) line(level, format string, args ...any) (written bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := int(time.Since(f.last) / floodEvery); n > 0 {
		f.last = f.last.Add(time.Duration(n) * floodEvery)
		f.free = min(f.free+n, floodStart)
	}
	if f.free == 0 {
		f.more++
		return false
	}
	f.free--
	f.tell()
	f.log.Line(level, format, args...)
	return true
}

// settle writes how many lines were not written, as of now.
func (f *flood) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tell()
}

func (f *flood) tell() {
	if f.more > 0 {
		f.log.Line(sessionlog.Warn, "%d more like it", f.more)
	}
	f.more = 0
}

// events is the part of the log that one request has.
type events struct {
	s *Server
	n int
	// asked is what was asked, until it is written: with the first event, which comes
	// before anything is run. A refusal that is only counted takes it along.
	asked   string
	counted bool
}

// line writes an event of a request. A warning is that it was refused.
func (e *events) line(level, format string, args ...any) {
	for i := range args {
		args[i] = clipped(args[i])
	}
	text := fmt.Sprintf(format, args...)
	if level == sessionlog.Warn {
		if e.asked != "" {
			text += ": " + e.asked
		}
		e.counted = !e.s.refusals.line(level, "request %d: %s", e.n, text)
		if !e.counted {
			e.asked = ""
		}
		return
	}
	e.tell()
	e.s.Log.Line(level, "request %d: %s", e.n, text)
}

func (e *events) tell() {
	if e.asked != "" {
		e.s.refusals.settle()
		e.s.Log.Line(sessionlog.Info, "request %d: %s", e.n, e.asked)
	}
	e.asked = ""
}

// end writes how a request ended, unless that is counted.
func (e *events) end(format string, args ...any) {
	if !e.counted {
		e.line(sessionlog.Info, format, args...)
	}
}
