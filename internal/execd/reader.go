package execd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"agent-sandbox/internal/denylist"
	"agent-sandbox/internal/record"
)

// An identity is whom a list is read as; groups are separated by spaces, so
// that two identities can be compared.
type identity struct {
	uid, gid uint32
	groups   string
}

const (
	readTime  = 3 * time.Second  // for a list and its paths; the launcher waits 5 s
	idleTime  = 10 * time.Second // how long a reader waits for the same user
	idleLimit = 32               // readers that may wait
)

var errReadTime = fmt.Errorf("took longer than %v", readTime)

// found is what a list says, in terms of the kernel.
type found struct {
	report  *denylist.Report
	objects map[int]denylist.Object
	seen    []denylist.Seen
}

// readers starts list readers and keeps those that may soon be wanted: one that
// is no one yet, since starting a program is most of what a launch costs, and
// for a while the one of each user that launched something.
type readers struct {
	kernel Kernel
	cgroup *os.File // folder of the cgroup they run in

	mu    sync.Mutex
	spare *reader
	idle  map[identity]*reader
}

type reader struct {
	process *os.Process
	in, out *os.File
	lines   *bufio.Reader
	who     *identity
	timer   *time.Timer
}

// close ends the reader and says how it ended, which is of interest where it
// ended by itself.
func (r *reader) close() string {
	r.in.Close()
	r.out.Close()
	r.process.Kill()
	state, err := r.process.Wait()
	if err != nil {
		return err.Error()
	}
	return state.String()
}

// start starts a reader in the readers' cgroup, so that its opens are noted and
// that nothing of it is in the cgroup of the daemon.
func (p *readers) start() (*reader, error) {
	inR, inW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return nil, err
	}
	process, err := os.StartProcess("/proc/self/exe", []string{"agent-sandbox-execd", ReaderArg}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"},
		Files: []*os.File{inR, outW, os.Stderr},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(p.cgroup.Fd()), Setsid: true},
	})
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		return nil, fmt.Errorf("start list reader: %w", err)
	}
	return &reader{process: process, in: inW, out: outR, lines: bufio.NewReaderSize(outR, 64<<10)}, nil
}

// moveTo makes later readers start in another cgroup.
func (p *readers) moveTo(cgroup *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cgroup.Close()
	p.cgroup = cgroup
}

// prepare makes sure that a reader is ready to become someone.
func (p *readers) prepare() error {
	p.mu.Lock()
	have := p.spare != nil
	p.mu.Unlock()
	if have {
		return nil
	}
	r, err := p.start()
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := p.spare
	p.spare = r
	p.mu.Unlock()
	if old != nil {
		old.close()
	}
	return nil
}

// take returns a reader with this identity, one that waits or, with fresh, a new one.
func (p *readers) take(who identity, fresh bool) (*reader, error) {
	var r *reader
	if !fresh {
		p.mu.Lock()
		if r = p.idle[who]; r != nil {
			delete(p.idle, who)
		} else {
			r, p.spare = p.spare, nil
		}
		p.mu.Unlock()
	}
	if r != nil && r.who != nil {
		r.timer.Stop()
		return r, nil
	}
	if r == nil {
		var err error
		if r, err = p.start(); err != nil {
			return nil, err
		}
	}
	r.who = &who
	// If this fails, so does what is asked next.
	fmt.Fprintf(r.in, "%s %d %d %s\n", sayIdentity, who.uid, who.gid, who.groups)
	return r, nil
}

// put gives a reader back, to be used again by the same user.
func (p *readers) put(r *reader) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.idle[*r.who] != nil || len(p.idle) >= idleLimit {
		go r.close()
		return
	}
	p.idle[*r.who] = r
	r.timer = time.AfterFunc(idleTime, func() {
		p.mu.Lock()
		mine := p.idle[*r.who] == r
		if mine {
			delete(p.idle, *r.who)
		}
		p.mu.Unlock()
		if mine {
			r.close()
		}
	})
}

// read has a list read and looked up with an identity.
func (p *readers) read(who identity, home bool, list string) (*found, error) {
	r, err := p.take(who, false)
	if err != nil {
		return nil, err
	}
	f, err := p.ask(r, home, list)
	if ended(err) {
		// It may have been killed while it waited: its user may do that.
		r.close()
		if r, err = p.take(who, true); err != nil {
			return nil, err
		}
		f, err = p.ask(r, home, list)
	}
	if err != nil {
		how := r.close()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = errReadTime
		case ended(err):
			err = fmt.Errorf("list reader ended: %s", how)
		}
		return nil, err
	}
	p.put(r)
	return f, nil
}

func ended(err error) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrUnexpectedEOF)
}

func (p *readers) ask(r *reader, home bool, list string) (*found, error) {
	if err := p.kernel.Watch(r.process.Pid); err != nil {
		return nil, err
	}
	word := sayBase
	if home {
		word = sayHome
	}
	r.out.SetReadDeadline(time.Now().Add(readTime))
	_, err := fmt.Fprintf(r.in, "%s %s\n", word, record.Escape(list))
	f := &found{}
	if err == nil {
		f.report, err = denylist.ReadReport(r.lines)
	}
	if err == nil {
		f.objects, err = p.kernel.Descriptors(r.process.Pid)
	}
	seen, seenErr := p.kernel.Seen(r.process.Pid)
	f.seen = seen
	if err = errors.Join(err, seenErr); err != nil {
		return nil, err
	}
	_, err = io.WriteString(r.in, sayDone+"\n")
	return f, err
}

func groupsString(groups []uint32) string {
	return strings.Trim(fmt.Sprint(groups), "[]")
}
