// Package execd is agent-sandbox-execd: it takes launch requests, moves the
// processes that made them into their users' cgroups and keeps the kernel's map
// of listed files as the lists say. agent-sandbox-execd(8) is its document.
//
//	cgroup.go   the cgroups, moving a process
//	folder.go   the folders of requests and answers
//	request.go  who asks: fanotify, checks, answers
//	queue.go    one queue a uid
//	box.go      one uid's sandbox: lists to keys, keys to the kernel
//	base.go     the base list, read once for all who wait for it
//	reader.go   children that read lists as their users; child.go is what they run
//	users.go    homes
//	selftest.go is a listed file denied at all
package execd

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/denylist"
	"agent-sandbox/internal/sys"
)

// Kernel is the BPF program with its maps; internal/bpf has it.
type Kernel interface {
	Set(denylist.Settings) error
	Descriptors(pid int) (map[int]denylist.Object, error)
	Watch(pid int) error
	Seen(pid int) ([]denylist.Seen, error)
	PutObjects([]denylist.Key, []denylist.Value) error
	PutNames([]denylist.NameKey, []denylist.Value) error
	DeleteObjects([]denylist.Key) error
	DeleteNames([]denylist.NameKey) error
	Objects(func(denylist.Key, denylist.Value)) error
	Names(func(denylist.NameKey, denylist.Value)) error
	Track(cgroup uint64, uid uint32) error
	Untrack(cgroup uint64) error
	Tracked(func(cgroup uint64, uid uint32)) error
}

// Config says where things are.
type Config struct {
	Cgroups  string // mount point of cgroup2
	RunDir   string // has req and ans
	BaseList string
}

// A Daemon is the running daemon.
type Daemon struct {
	Config
	cgroups  string
	kernel   Kernel
	log      *Log
	settings denylist.Settings
	readers  *readers
	base     *base
	users    users
	folder   *folder
	queues   *Queues[job]
	events   *sys.FileWatch
	reload   chan struct{} // capacity 1: somebody wants all lists read again

	mu      sync.Mutex
	boxes   map[uint32]*box
	watched map[int]uint32 // number of a watch of cgroup.events, uid

	complained map[uint32]time.Time // when a refusal of the uid was logged
}

// Prepare makes what the BPF program has to know before it is loaded: the
// cgroups and the request folder.
func Prepare(c Config) (denylist.Settings, error) {
	var s denylist.Settings
	parent := filepath.Join(c.Cgroups, parentName)
	var err error
	if s.Parent, err = makeParent(parent); err != nil {
		return s, fmt.Errorf("cgroup %s: %w", parent, err)
	}
	readers := filepath.Join(parent, readersName)
	if s.Readers, err = makeCgroup(readers); err != nil {
		return s, fmt.Errorf("cgroup %s: %w", readers, err)
	}
	endReaders(c.Cgroups) // of a daemon that was killed
	f, err := openFolder(c.RunDir)
	if err != nil {
		return s, err
	}
	defer f.close()
	s.ReqDev, s.ReqIno = f.dev, f.ino
	return s, nil
}

// New makes the daemon of a loaded program.
func New(c Config, settings denylist.Settings, k Kernel, log *Log) (*Daemon, error) {
	d := &Daemon{Config: c, cgroups: c.Cgroups, kernel: k, log: log, settings: settings,
		boxes: map[uint32]*box{}, watched: map[int]uint32{}, reload: make(chan struct{}, 1), complained: map[uint32]time.Time{}}
	d.users.other = map[uint32]otherHome{}
	cg, err := os.Open(filepath.Join(c.Cgroups, parentName, readersName))
	if err != nil {
		return nil, err
	}
	d.readers = &readers{kernel: k, cgroup: cg, idle: map[identity]*reader{}}
	d.base = &base{readers: d.readers, list: c.BaseList}
	d.queues = NewQueues(requestsWaiting, d.handle)
	if d.events, err = sys.NewFileWatch(); err != nil {
		return nil, err
	}
	if d.folder, err = openFolder(c.RunDir); err != nil {
		return nil, err
	}
	return d, nil
}

// Run recovers what the kernel still has, starts to take requests, calls ready
// and works until an error that cannot be mended.
func (d *Daemon) Run(ready func()) error {
	if err := d.SelfTest(); err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	if err := d.recover(); err != nil {
		return err
	}
	if err := d.readers.prepare(); err != nil {
		return err
	}
	failed := make(chan error, 2)
	requests, err := d.folder.watch()
	if err != nil {
		return err
	}
	go func() { failed <- d.watchBoxes() }()
	go func() { failed <- d.listen(requests) }()
	ready()
	// Only now, in the background: a user's list may take as long as it likes.
	go d.reloadAll()
	d.Reload()
	return <-failed
}

// Reload has all lists read again and applied to the sandboxes that have
// processes. It does not wait; one that has not begun yet is this one too.
func (d *Daemon) Reload() {
	select {
	case d.reload <- struct{}{}:
	default:
	}
}

// reloadsAtOnce is how many lists a reload reads at the same time. A process each for
// thousands of users would take the processors and the memory from their launches.
const reloadsAtOnce = 8

func (d *Daemon) reloadAll() {
	slots := make(chan struct{}, reloadsAtOnce)
	for range d.reload {
		d.mu.Lock()
		uids := slices.Collect(maps.Keys(d.boxes))
		d.mu.Unlock()
		for _, uid := range uids {
			slots <- struct{}{}
			// Where too many launches wait already they read the list.
			if !d.queues.Submit(uid, job{reloaded: func() { <-slots }}) {
				<-slots
			}
		}
	}
}

// watchBoxes notices sandboxes that have become empty.
func (d *Daemon) watchBoxes() error {
	for {
		numbers, err := d.events.Read()
		if err != nil {
			return err
		}
		for _, n := range numbers {
			d.mu.Lock()
			uid, ok := d.watched[n]
			d.mu.Unlock()
			if ok {
				d.changed(uid)
			}
		}
	}
}

// A Log writes the daemon's messages, one line each.
type Log struct {
	mu sync.Mutex
	p  cli.Printer
}

// NewLog returns a log on p.
func NewLog(p cli.Printer) *Log { return &Log{p: p} }

// Errorf writes a message.
func (l *Log) Errorf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p.Errorf(format, args...)
}

// Warnf writes a warning.
func (l *Log) Warnf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.p.Warn(fmt.Sprintf(format, args...))
}

// Remove takes the folders and the empty cgroups away; a sandbox that has
// processes stays and is named.
func Remove(c Config) error {
	var errs []error
	parent := filepath.Join(c.Cgroups, parentName)
	endReaders(c.Cgroups)
	list, err := os.ReadDir(parent)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range list {
		if e.IsDir() {
			if err := os.Remove(filepath.Join(parent, e.Name())); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := os.Remove(parent); err != nil && !errors.Is(err, os.ErrNotExist) && len(errs) == 0 {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, removeFolder(c.RunDir))...)
}
