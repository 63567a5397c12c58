package session

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"agent-sandbox/internal/host"
)

// Entry is a record of a live session and the registry it lies in.
type Entry struct {
	Record
	Registry *Registry
}

// Sweep looks through the user's registries: it gives the live sessions, oldest
// first, ends sandboxes whose launcher is gone, and takes dead sessions away with
// what they left on the host. errs are of records that could not be used; they
// are left as they are. Close the registries of what is returned with CloseAll.
func Sweep(u host.User) (live []Entry, errs []error) {
	here, err := Place()
	if err != nil {
		return nil, []error{err}
	}
	regs, errs := Existing(u)
	for i, reg := range regs {
		others := slices.Concat(regs[:i], regs[i+1:])
		ids, err := reg.IDs()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, id := range ids {
			e, err := reg.sweep(others, id, here)
			if err != nil {
				errs = append(errs, fmt.Errorf("session %s in %q: %w", id, reg.Path, err))
			}
			if e != nil {
				live = append(live, *e)
			}
		}
	}
	slices.SortFunc(live, func(a, b Entry) int {
		if c := a.Started.Compare(b.Started); c != 0 {
			return c
		}
		return int(int64(a.Launcher.Start) - int64(b.Launcher.Start))
	})
	return live, errs
}

// killWait is how long a killed sandbox may take to go before its record is left
// to the next sweep.
const killWait = 2 * time.Second

func (g *Registry) sweep(others []*Registry, id string, here Here) (*Entry, error) {
	r, err := g.Read(id)
	if errors.Is(err, fs.ErrNotExist) {
		// A launch that has not written its record yet, or was killed before.
		c, err := g.readClaims(id)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, g.dropNobodys(id)
		}
		if err != nil || c.here.Host != here.Host || c.here.Boot == here.Boot && (c.here.PIDNS != here.PIDNS || c.launcher.Alive()) {
			return nil, nil
		}
		return nil, g.End(others, id)
	}
	if err != nil {
		return nil, err
	}
	switch r.Live(here) {
	case Running:
		return &Entry{r, g}, nil
	case Foreign:
		return nil, nil
	case Orphaned:
		if err := r.Kill(); err != nil {
			return nil, err
		}
		for end := time.Now().Add(killWait); r.Sandbox.Alive(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				return nil, fmt.Errorf("process %d does not end", r.Sandbox.PID)
			}
		}
	}
	return nil, g.End(others, id)
}

// CloseAll closes the registries of entries.
func CloseAll(entries []Entry) {
	for _, e := range entries {
		e.Registry.Close()
	}
}
