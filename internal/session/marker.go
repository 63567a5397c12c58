package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/sys"
)

// Marker is the file <id>.reload that a reloader holds while it applies: its pid
// and start time, a lock, and as modification time the moment after which it
// means nothing.
type Marker struct {
	file  *os.File
	reg   *Registry
	name  string
	quiet func()
}

// ErrBusy says that another reload of the session runs.
var ErrBusy = errors.New("another reload of this session runs")

// Mark takes the marker of a session until the deadline. Where another process
// holds it, the error is ErrBusy with that process.
func (g *Registry) Mark(id string, deadline time.Time) (*Marker, error) {
	name := id + ".reload"
	for range 10 {
		f, err := sys.OpenAt(g.dir, name, syscall.O_RDWR|syscall.O_CREAT|syscall.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		if err := sys.CheckPrivate(f, g.uid); err != nil {
			f.Close()
			return nil, err
		}
		if err := sys.Lock(f, false); err != nil {
			holder, _ := sys.ReadLimited(f, 100)
			f.Close()
			if errors.Is(err, sys.ErrLocked) {
				return nil, fmt.Errorf("%w: process %s", ErrBusy, strings.Fields(string(holder) + " ?")[0])
			}
			return nil, err
		}
		// The last holder may have removed the name between open and lock.
		mine, err1 := sys.Fstat(f)
		there, err2 := sys.StatAt(g.dir, name)
		if err1 != nil || err2 != nil || mine.Ino != there.Ino {
			f.Close()
			continue
		}
		self, err := Self()
		if err == nil {
			err = f.Chmod(0o600) // whatever the umask
		}
		if err == nil {
			err = f.Truncate(0)
		}
		if err == nil {
			_, err = f.WriteAt([]byte(self.String()+"\n"), 0)
		}
		if err == nil {
			err = sys.SetMtime(f, deadline)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		// Once the guard has seen the marker it begins no repair; one that it
		// has begun is waited for, so that none lands in the midst.
		quiet, err := g.hold(id, true)
		if err != nil {
			sys.UnlinkAt(g.dir, name, false)
			f.Close()
			return nil, err
		}
		return &Marker{f, g, name, quiet}, nil
	}
	return nil, ErrBusy
}

// Release takes the marker away.
func (m *Marker) Release() {
	// The lock first: the guard wakes when the marker goes, and has to get it.
	m.quiet()
	sys.UnlinkAt(m.reg.dir, m.name, false)
	m.file.Close()
}

// Repairing holds the session for one repair of its guard; ok is false while a
// reload applies.
func (g *Registry) Repairing(id string) (done func(), ok bool) {
	done, err := g.hold(id, false)
	if err != nil {
		return nil, false
	}
	if _, _, reloading := g.Reloading(id); reloading {
		done()
		return nil, false
	}
	return done, true
}

// hold locks a session's mounts against other programs of the suite, by a lock
// on its folder.
func (g *Registry) hold(id string, wait bool) (func(), error) {
	f, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := sys.Lock(f, wait); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Reloading says whether a reload of the session applies right now: a marker
// whose process lives and whose deadline has not passed. Until says when it ends
// at the latest, and Proc which process it is.
func (g *Registry) Reloading(id string) (p Proc, until time.Time, ok bool) {
	f, err := sys.OpenAt(g.dir, id+".reload", syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return p, until, false
	}
	defer f.Close()
	st, err := sys.Fstat(f)
	if err != nil || !st.IsRegular() || sys.CheckPrivate(f, g.uid) != nil {
		return p, until, false
	}
	data, err := sys.ReadLimited(f, 100)
	if err != nil {
		return p, until, false
	}
	p, err = ParseProc(strings.TrimSuffix(string(data), "\n"))
	until = time.Unix(0, st.MtimeNs)
	if err != nil || !p.Alive() || time.Now().After(until) {
		return p, until, false
	}
	return p, until, true
}

// Gone says whether the record of a session is no longer there.
func (g *Registry) Gone(id string) bool {
	_, err := sys.StatAt(g.dir, id)
	return errors.Is(err, fs.ErrNotExist)
}
