package execd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/denylist"
)

// homeList is the user's list below his home.
const homeList = ".config/agent-sandbox-exec/denylist"

// emptyTime is how long a sandbox without processes keeps its keys, so that a
// loop of short commands does not fill and empty the map all the time.
const emptyTime = time.Minute

// A box is one uid's sandbox. Its queue's worker alone touches what has no lock.
type box struct {
	uid    uint32
	home   string
	cgroup uint64 // 0: none made yet
	set    *denylist.Set
	who    identity // of the last request: whom the home list is read as without one
	known  bool     // who is set
	watch  int
	timer  *time.Timer
	told   string // warnings that the log has had
}

func (d *Daemon) box(uid uint32) *box {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.boxes[uid]
	if b == nil {
		b = &box{uid: uid, set: &denylist.Set{}}
		d.boxes[uid] = b
	}
	return b
}

func (d *Daemon) boxDir(uid uint32) string { return filepath.Join(d.cgroups, boxPath(uid)) }

// recover takes over what a daemon before this one left in the kernel: keys of
// cgroups that are still there stay in force, the others go.
func (d *Daemon) recover() error {
	tracked := map[uint64]*box{}
	list, err := os.ReadDir(filepath.Join(d.cgroups, parentName))
	if err != nil {
		return err
	}
	for _, e := range list {
		uid, ok := boxUID(e.Name())
		if !ok {
			continue
		}
		b := d.box(uid)
		if err := d.ensure(b); err != nil {
			return err
		}
		tracked[b.cgroup] = b
	}
	var gone []uint64
	if err := d.kernel.Tracked(func(id uint64, _ uint32) {
		if tracked[id] == nil {
			gone = append(gone, id)
		}
	}); err != nil {
		return err
	}
	var objects []denylist.Key
	var names []denylist.NameKey
	err = errors.Join(
		d.kernel.Objects(func(k denylist.Key, v denylist.Value) {
			if b := tracked[k.Cgroup]; b != nil {
				b.set.AddObject(k, v)
			} else {
				objects = append(objects, k)
			}
		}),
		d.kernel.Names(func(k denylist.NameKey, v denylist.Value) {
			if b := tracked[k.Cgroup]; b != nil {
				b.set.AddName(k, v)
			} else {
				names = append(names, k)
			}
		}))
	for _, b := range tracked {
		b.set.Sort()
	}
	err = errors.Join(err, d.kernel.DeleteObjects(objects), d.kernel.DeleteNames(names))
	for _, id := range gone {
		err = errors.Join(err, d.kernel.Untrack(id))
	}
	return err
}

// ensure makes the box's cgroup. Where root removed it and made it again it has
// another id, and nothing in the map.
func (d *Daemon) ensure(b *box) error {
	id, err := makeCgroup(d.boxDir(b.uid))
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.parentAgain(); err == nil {
			id, err = makeCgroup(d.boxDir(b.uid))
		}
	}
	if err != nil {
		return fmt.Errorf("cgroup: %w", err)
	}
	if id == b.cgroup {
		return nil
	}
	if b.cgroup != 0 {
		if err := d.clear(b); err != nil {
			return err
		}
	}
	if err := d.kernel.Track(id, b.uid); err != nil {
		return fmt.Errorf("agent_cgid_set: %w", err)
	}
	b.cgroup = id
	n, err := d.events.Add(filepath.Join(d.boxDir(b.uid), "cgroup.events"))
	if err != nil {
		return err
	}
	d.mu.Lock()
	delete(d.watched, b.watch)
	b.watch = n
	d.watched[n] = b.uid
	d.mu.Unlock()
	return nil
}

// parentAgain makes the parent cgroup that root removed, and tells the program
// its new id.
func (d *Daemon) parentAgain() error {
	id, err := makeParent(filepath.Join(d.cgroups, parentName))
	if err != nil {
		return err
	}
	readers, err := makeCgroup(filepath.Join(d.cgroups, parentName, readersName))
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Join(d.cgroups, parentName, readersName))
	if err != nil {
		return err
	}
	d.readers.moveTo(dir)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settings.Parent, d.settings.Readers = id, readers
	return d.kernel.Set(d.settings)
}

// clear removes the box's keys.
func (d *Daemon) clear(b *box) error {
	err := d.change(b.cgroup, b.set, &denylist.Set{})
	err = errors.Join(err, d.kernel.Untrack(b.cgroup))
	b.set = &denylist.Set{}
	b.cgroup = 0
	return err
}

// handle works on what waits for a uid: first those who ask from outside, who may
// take keys away, then those inside, who only add.
func (d *Daemon) handle(uid uint32, jobs []job) {
	b := d.box(uid)
	type group struct {
		who    identity
		inside bool
	}
	var order []group
	groups := map[group][]job{}
	reload, forget := false, false
	for _, j := range jobs {
		if j.reloaded != nil {
			reload = true
			defer j.reloaded()
			continue
		}
		if j.forget {
			forget = true
			continue
		}
		g := group{j.who, j.inside}
		if groups[g] == nil {
			order = append(order, g)
		}
		groups[g] = append(groups[g], j)
	}
	slices.SortStableFunc(order, func(x, y group) int {
		switch {
		case x.inside == y.inside:
			return 0
		case y.inside:
			return -1
		}
		return 1
	})
	for _, g := range order {
		b.who, b.known = g.who, true
		d.serve(b, groups[g], g.inside)
	}
	if len(order) == 0 && reload {
		d.again(b)
	}
	if len(order) == 0 && forget {
		d.forget(b)
	}
	if len(order) > 0 {
		d.forgetLater(b) // if no process came of it, nothing else would
		d.readers.prepare()
	}
}

// serve launches processes of one identity. They are moved while the lists are
// read: moving waits for the kernel (an RCU grace period, most of a launch), and a
// process that waits for its answer may as well wait inside.
func (d *Daemon) serve(b *box, jobs []job, inside bool) {
	full, err := d.open(b)
	moved := make(chan []error, 1)
	go func() {
		errs := make([]error, len(jobs))
		for i, j := range jobs {
			if err == nil {
				errs[i] = d.move(j, boxPath(b.uid))
			}
		}
		moved <- errs
	}()
	var warnings []byte
	if err == nil {
		warnings, err = d.apply(b, full, inside)
	}
	for i, moveErr := range <-moved {
		switch j := jobs[i]; {
		case errors.Is(moveErr, errDied):
			d.folder.remove(j.name)
		case err != nil:
			d.refuse(j, err.Error())
		case moveErr != nil:
			d.refuse(j, moveErr.Error())
		default:
			d.tell(j, "ok", warnings)
		}
		jobs[i].pidfd.Close()
	}
}

// again applies the lists of a box without a request: after a restart, or on
// SIGHUP.
func (d *Daemon) again(b *box) {
	full, err := populated(d.boxDir(b.uid))
	if err != nil || !full {
		d.forgetLater(b)
		return
	}
	if !b.known {
		// The identity of the last launch is not known: that of a process in it.
		pids, _ := os.ReadFile(filepath.Join(d.boxDir(b.uid), "cgroup.procs"))
		for _, p := range bytes.Fields(pids) {
			var pid int
			fmt.Sscan(string(p), &pid)
			if uid, who, err := readIdentity(pid); err == nil && uid == b.uid {
				b.who, b.known = who, true
				break
			}
		}
	}
	if !b.known {
		return
	}
	full, err = d.open(b)
	if err == nil {
		_, err = d.apply(b, full, false)
	}
	if err != nil {
		d.log.Errorf("lists of uid %d cannot be applied, its sandbox keeps what it had: %w", b.uid, err)
	}
}

// open makes sure that a box has its cgroup, and says whether that has a process.
func (d *Daemon) open(b *box) (full bool, err error) {
	// First: who is no user gets no cgroup either.
	if b.home, err = d.users.home(b.uid); err != nil {
		return false, err
	}
	if err := d.ensure(b); err != nil {
		return false, err
	}
	return populated(d.boxDir(b.uid))
}

// apply reads the lists of a box and applies them; full says whether it had a
// process before. It returns the warnings for the user.
func (d *Daemon) apply(b *box, full, inside bool) ([]byte, error) {
	list := filepath.Join(b.home, homeList)
	type result struct {
		found *found
		err   error
	}
	baseDone := make(chan result, 1)
	go func() {
		f, err := d.base.read()
		baseDone <- result{f, err}
	}()
	own, err := d.readers.read(b.who, true, list)
	if err != nil {
		err = fmt.Errorf("home list %s: %w", cli.Quote(list), err)
	} else if own.report.Refused != "" {
		err = fmt.Errorf("home list %s: %s", cli.Quote(list), own.report.Refused)
	}
	all := <-baseDone
	if all.err == nil && all.found.report.Refused != "" {
		all.err = fmt.Errorf("base list %s: %s", cli.Quote(d.BaseList), all.found.report.Refused)
	}
	if err := errors.Join(err, all.err); err != nil {
		return nil, err
	}
	build := denylist.NewBuilder()
	for _, f := range []*found{all.found, own} {
		if err := build.Report(f.report, f.objects, f.seen); err != nil {
			return nil, err
		}
	}
	if inside || full {
		build.Keep(b.set, inside)
	}
	want := build.Set()
	if err := d.change(b.cgroup, b.set, want); err != nil {
		return nil, err
	}
	b.set = want
	return d.warnings(b, list, own.report, all.found.report), nil
}

// change makes the maps hold want instead of old: new keys first, so that they
// never hold less than wished. If there is no room it is undone.
func (d *Daemon) change(cgroup uint64, old, want *denylist.Set) error {
	objects, names := denylist.Diff(cgroup, old, want)
	err := errors.Join(put(objects, d.kernel.PutObjects, false), put(names, d.kernel.PutNames, false))
	if err != nil {
		undo := errors.Join(put(objects, d.kernel.PutObjects, true), put(names, d.kernel.PutNames, true),
			remove(objects, d.kernel.DeleteObjects, true), remove(names, d.kernel.DeleteNames, true))
		return errors.Join(err, undo)
	}
	return errors.Join(remove(names, d.kernel.DeleteNames, false), remove(objects, d.kernel.DeleteObjects, false))
}

// put writes the values after the change, or with undo those before.
func put[K any](changes []denylist.Change[K], write func([]K, []denylist.Value) error, undo bool) error {
	var keys []K
	var values []denylist.Value
	for _, c := range changes {
		v := c.New
		if undo {
			v = c.Old
		}
		if v != nil {
			keys, values = append(keys, c.Key), append(values, *v)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return write(keys, values)
}

// remove deletes the keys that are not there after the change, or with undo
// those that were not there before.
func remove[K any](changes []denylist.Change[K], del func([]K) error, undo bool) error {
	var keys []K
	for _, c := range changes {
		if !undo && c.New == nil || undo && c.Old == nil {
			keys = append(keys, c.Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	return del(keys)
}

// warnings returns the lines for the user, and logs them when they are others
// than before.
func (d *Daemon) warnings(b *box, list string, own, all *denylist.Report) []byte {
	var out []byte
	for _, r := range []struct {
		list   string
		report *denylist.Report
	}{{list, own}, {d.BaseList, all}} {
		for _, w := range r.report.Warnings {
			out = fmt.Appendf(out, "%s: line %d: %s\n", cli.Quote(r.list), w.N, w.Reason)
		}
	}
	if string(out) != b.told {
		b.told = string(out)
		for line := range bytes.SplitSeq(bytes.TrimSuffix(out, []byte{'\n'}), []byte{'\n'}) {
			if len(line) > 0 {
				d.log.Warnf("uid %d: %s", b.uid, line)
			}
		}
	}
	return out
}

// changed is called when a box may have become empty.
func (d *Daemon) changed(uid uint32) {
	if full, err := populated(d.boxDir(uid)); err == nil && full {
		return
	}
	d.forgetLater(d.box(uid))
}

func (d *Daemon) forgetLater(b *box) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(emptyTime, func() { d.queues.Submit(b.uid, job{forget: true}) })
}

// forget removes what an empty box has in the kernel, its cgroup, and the box.
func (d *Daemon) forget(b *box) {
	// The kernel refuses (EBUSY) while there is a process or a child cgroup.
	if err := os.Remove(d.boxDir(b.uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err := d.clear(b); err != nil {
		d.log.Errorf("sandbox of uid %d: %w", b.uid, err)
		return
	}
	d.mu.Lock()
	delete(d.boxes, b.uid)
	delete(d.watched, b.watch)
	d.mu.Unlock()
}
