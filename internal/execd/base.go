package execd

import (
	"errors"
	"fmt"
	"sync"
)

// base is the base list. Those who want it read wait for one reading that starts
// after they asked.
type base struct {
	readers *readers
	list    string

	mu      sync.Mutex
	next    *flight // not started yet
	running bool
	last    *found // of the last reading that succeeded
	stuck   bool   // the last reading took too long: nobody waits for the next
}

type flight struct {
	done  chan struct{}
	found *found
	err   error
}

// read returns what the base list says now. Once a look-up was stuck (a listed
// path leads to a file system that does not answer, which may be a user's), the
// others go on with what was found before, until a reading in the background
// succeeds.
func (b *base) read() (*found, error) {
	b.mu.Lock()
	f := b.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		b.next = f
		if !b.running {
			b.running = true
			go b.work()
		}
	}
	last, stuck := b.last, b.stuck
	b.mu.Unlock()
	if stuck && last != nil {
		return last, nil
	}
	<-f.done
	if errors.Is(f.err, errReadTime) && last != nil {
		return last, nil
	}
	return f.found, f.err
}

func (b *base) work() {
	for {
		b.mu.Lock()
		f := b.next
		b.next = nil
		if f == nil {
			b.running = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		f.found, f.err = b.readers.read(identity{}, false, b.list)
		if f.err != nil {
			f.err = fmt.Errorf("base list: %w", f.err)
		}
		b.mu.Lock()
		b.stuck = errors.Is(f.err, errReadTime)
		if f.err == nil && f.found.report.Refused == "" {
			b.last = f.found
		}
		b.mu.Unlock()
		close(f.done)
	}
}
