// Package guard watches the mounts of one session and puts back what the host
// takes away: a rename over a bound file, a removed and re-created folder, an
// automounter that drops a mount. See mount-guard(8).
//
// It sleeps in poll(2) on two sources of events, since neither sees all. The
// session's mountinfo changes when a mount is attached or detached. inotify on
// the host's folders sees what changes no mount: a masked folder moved away with
// its mask, a new file over one that is bound into a tmpfs. After an event it
// compares, line by line of the plan, the object at the host's path with the one
// that is mounted inside, and has mount-repair mount again what differs.
package guard

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/sys"
)

// repairTimeout bounds one run of mount-repair: a reload waits for it.
const repairTimeout = 10 * time.Second

// retryEvery is how often a guard without inotify watches looks.
const retryEvery = time.Second

// settle is for how long after the launch nothing but mountinfo is watched.
const settle = 100 * time.Millisecond

// A Guard watches one session.
type Guard struct {
	reg       *session.Registry
	id        string
	log       *sessionlog.Log
	rec       session.Record
	root      int // O_PATH: the session's / as its pid 1 has it
	mountinfo *os.File
	inotify   *sys.Inotify // nil: none to be had
	watches   map[int]*folder
	signals   int // readable after SIGUSR1

	// said is, by plan path, what the log last said of it: an unchanged state is
	// logged once.
	said map[string]string
	// at is where a writable mount of the plan was last seen right, by mount id.
	at map[int]string
	// narrowed are the mounts that this guard made read-only since the host moved
	// them away; only those does it make writable again.
	narrowed map[int]bool
}

// New prepares to guard the session that the staged record describes. signals becomes
// readable with each SIGUSR1.
func New(reg *session.Registry, id string, log *sessionlog.Log, signals int) (*Guard, error) {
	g := &Guard{reg: reg, id: id, log: log, signals: signals, watches: map[int]*folder{}, said: map[string]string{}, at: map[int]string{}, narrowed: map[int]bool{}}
	var err error
	g.rec, err = reg.ReadStaged(id)
	if errors.Is(err, fs.ErrNotExist) {
		g.rec, err = reg.Read(id) // the launcher was faster, and has put it in place
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the session record: %w", err)
	}
	return g, nil
}

// Enter looks at the mounts that the launch made. It is called when they are
// complete, before the command runs.
func (g *Guard) Enter() (err error) {
	if g.mountinfo, err = os.Open(fmt.Sprintf("/proc/%d/mountinfo", g.rec.Sandbox.PID)); err != nil {
		return err
	}
	// Opened now: a pid 1 that the kernel lets nobody look at later, or that is gone,
	// does not matter any more.
	if g.root, err = sys.OpenLink(fmt.Sprintf("/proc/%d/root", g.rec.Sandbox.PID)); err != nil {
		return err
	}
	table, err := g.table()
	if err != nil {
		return err
	}
	if !g.rec.Sandbox.Alive() {
		return errors.New("the sandbox has ended")
	}
	g.locate(table)
	return nil
}

// locate notes the mounts at the writable paths of the plan, as the launch made them.
func (g *Guard) locate(table map[int]mountinfo.Mount) {
	rw := map[string]bool{}
	for _, m := range g.plan() {
		rw[m.Path] = m.Kind == mountplan.RW
	}
	for id, m := range table {
		if rw[m.Point] && !m.ReadOnly() && !m.SuperReadOnly() {
			g.at[id] = m.Point
		}
	}
}

// Off says whether the session is not to be guarded (MOUNT_GUARD=off).
func (g *Guard) Off() bool { return g.setting("MOUNT_GUARD") == "off" }

func (g *Guard) setting(name string) string {
	for _, s := range g.rec.Settings {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// Run guards until the session's namespace is gone.
func (g *Guard) Run() error {
	// A command that ends at once neither shares its processors with this, nor waits
	// until the kernel has let go of the watches, which takes longer than such a
	// command (fsnotify_destroy_group). What happened since the launch, the check finds.
	sys.WaitChange(nil, int(g.mountinfo.Fd()), settle)
	g.watch()
	g.check()
	for {
		// Watching costs nothing until something happens; what loading left of
		// the heap goes back first.
		debug.FreeOSMemory()
		if err := g.wait(); err != nil {
			return err
		}
		g.watch()
		g.check()
	}
}

// wait returns when something happened that may concern the plan.
func (g *Guard) wait() error {
	for {
		fds := []int{g.signals}
		timeout := time.Duration(-1)
		if g.inotify != nil {
			fds = append(fds, g.inotify.FD())
		} else {
			timeout = retryEvery
		}
		if reloader, until, resting := g.reg.Reloading(g.id); resting {
			g.rest(reloader, until)
			return nil
		}
		ready, changed, err := sys.WaitChange(fds, int(g.mountinfo.Fd()), timeout)
		if err != nil {
			return err
		}
		relevant := changed
		if ready[0] {
			var buf [64]byte
			syscall.Read(g.signals, buf[:])
			g.reload()
			relevant = true
		}
		if g.inotify != nil && ready[1] {
			events, err := g.inotify.Read()
			if err != nil {
				return err
			}
			for _, e := range events {
				relevant = relevant || g.concerns(e)
			}
		}
		if relevant || g.inotify == nil {
			return nil
		}
	}
}

// rest waits while a reload applies: until its marker or its process goes, or its
// time is up.
func (g *Guard) rest(reloader session.Proc, until time.Time) {
	gone, err := reloader.Open()
	if err != nil {
		return
	}
	defer gone.Close()
	fds := []int{int(gone.Fd())}
	in, err := sys.NewInotify()
	if err == nil {
		defer in.Close()
		if dir, err := sys.OpenPathBelow(sys.AtCwd, g.reg.Path); err == nil {
			in.Watch(dir, true)
			syscall.Close(dir)
		}
		fds = append(fds, in.FD())
	}
	for {
		// After the watch, so that an end in between is not missed.
		if p, _, still := g.reg.Reloading(g.id); !still || p != reloader {
			break
		}
		timeout := max(0, time.Until(until))
		if in == nil {
			timeout = min(timeout, retryEvery)
		}
		ready, _, err := sys.WaitChange(fds, -1, timeout)
		if err != nil || ready[0] {
			break
		}
		if in != nil && ready[1] {
			in.Read()
		}
	}
	// The reloader may have been killed before it told us.
	g.reload()
}

// reload reads the record anew; one that does not validate changes nothing.
func (g *Guard) reload() {
	rec, err := g.reg.Read(g.id)
	if err != nil {
		g.log.Line(sessionlog.Error, "cannot read the session record, the last one stays in force: %v", err)
		return
	}
	if rec.Sandbox != g.rec.Sandbox || rec.MountNS != g.rec.MountNS {
		g.log.Line(sessionlog.Error, "the session record is of another sandbox, the last one stays in force")
		return
	}
	g.rec = rec
	g.log.Line(sessionlog.Info, "read the session record again: guarding %d mounts", len(rec.Mounts))
}

// table reads the session's mount table.
func (g *Guard) table() (map[int]mountinfo.Mount, error) {
	// From the start, with the descriptor that is polled.
	data, err := io.ReadAll(io.NewSectionReader(g.mountinfo, 0, 1<<40))
	if err != nil {
		return nil, err
	}
	ms, err := mountinfo.Parse(data)
	if err != nil {
		return nil, err
	}
	t := make(map[int]mountinfo.Mount, len(ms))
	for _, m := range ms {
		t[m.ID] = m
	}
	return t, nil
}

// A finding is a plan line that does not hold, and what is to be done.
type finding struct {
	op      mountop.Op
	why     string
	narrows []int // of remount-ro: the mounts that it takes write access from
}

// check compares and repairs.
func (g *Guard) check() {
	found, err := g.compare()
	if err != nil {
		g.log.Line(sessionlog.Error, "cannot compare: %v", err)
		return
	}
	if len(found) == 0 {
		return
	}
	if g.setting("MOUNT_GUARD") == "warn" {
		for _, f := range found {
			g.say(f, sessionlog.Warn, "not as planned: "+f.why)
		}
		return
	}
	done, ok := g.reg.Repairing(g.id)
	if !ok {
		return // a reload applies: everything is checked when it has ended
	}
	defer done()
	// What a reload changed since the comparison is in the record before its
	// lock goes: a revoked path must not be made writable again.
	if rec, err := g.reg.Read(g.id); err == nil && rec.Sandbox == g.rec.Sandbox && rec.MountNS == g.rec.MountNS && !reflect.DeepEqual(rec, g.rec) {
		g.rec = rec
		if found, err = g.compare(); err != nil {
			return
		}
	}
	// What fails is tried once more: a folder above it may have been bound anew.
	// What changed again meanwhile goes on being put back.
	var failed map[string]string
	for i := 0; i < maxRounds && err == nil && len(found) > 0; i++ {
		if i > 1 && !slices.ContainsFunc(found, func(f finding) bool { return failed[f.op.Path] == "" }) {
			break
		}
		failed = g.repair(found)
		// Our own mounts are no news; what the host did before this shows below.
		sys.WaitChange(nil, int(g.mountinfo.Fd()), 0)
		found, err = g.compare()
	}
	for _, f := range found {
		g.say(f, sessionlog.Error, "cannot be put back now, tried again on the next change: "+f.why+": "+failed[f.op.Path])
	}
}

// maxRounds bounds the repairs after one event.
const maxRounds = 100

// repair runs mount-repair on what was found and says what it did; failed is, by
// path, why something was not done.
func (g *Guard) repair(found []finding) (failed map[string]string) {
	failed = map[string]string{}
	var ops []mountop.Op
	for _, m := range g.plan() {
		for _, f := range found {
			if m.Path != f.op.Path && mountplan.Under(m.Path, f.op.Path) {
				op := g.op(m)
				op.Do, op.Kind = mountop.Keep, op.Do
				ops = append(ops, op)
				break
			}
		}
	}
	keeps := len(ops)
	for _, f := range found {
		ops = append(ops, f.op)
	}
	results, err := mountop.Run(g.rec.Target(), ops, repairTimeout)
	if err != nil {
		for _, f := range found {
			failed[f.op.Path] = err.Error()
		}
	}
	for i, r := range results[min(keeps, len(results)):] {
		switch f := found[i]; r.Status {
		case mountop.OK:
			g.say(f, sessionlog.Info, "put back: "+f.why)
			// By id: the host may have moved them on since.
			for _, id := range f.narrows {
				g.narrowed[id] = true
			}
		case mountop.Busy:
			g.say(f, sessionlog.Warn, "put back: "+f.why+"; still in use: "+r.Text)
			failed[f.op.Path] = "in use: " + r.Text
		default:
			failed[f.op.Path] = r.Status + " " + r.Text
		}
	}
	return failed
}

// say logs what is new about a path.
func (g *Guard) say(f finding, level, text string) {
	if level == sessionlog.Info {
		delete(g.said, f.op.Path)
	} else if g.said[f.op.Path] == text {
		return
	} else {
		g.said[f.op.Path] = text
	}
	g.log.Line(level, "%s %q %s", f.op.Do, f.op.Path, text)
}
