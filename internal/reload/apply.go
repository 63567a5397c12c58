package reload

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/mountplan"
)

// mounts reads the session's mount table, which shows in /proc whoever owns the
// namespace.
func (r *reloader) mounts() ([]mountinfo.Mount, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(r.rec.Sandbox.PID) + "/mountinfo")
	if err != nil || !r.rec.Sandbox.Alive() {
		return nil, fmt.Errorf("session %s has ended: nothing was changed", r.rec.ID)
	}
	return mountinfo.Parse(data)
}

// strays finds writable mounts of the host that neither the record nor the plan
// has at their place: what a reload that was killed half way left behind.
func (r *reloader) strays() ([]mountplan.Change, error) {
	table, err := r.mounts()
	if err != nil {
		return nil, err
	}
	listed := map[string]bool{}
	for _, c := range r.changes {
		listed[c.Mount.Path] = true
	}
	var out []mountplan.Change
	for _, m := range table {
		if m.ReadOnly() || m.SuperReadOnly() || listed[m.Point] {
			continue
		}
		g, ok := mountplan.Governing(r.layout.Plan.Mounts, m.Point)
		if !ok || g.Kind != mountplan.RO && g.Kind != mountplan.MaskFile && g.Kind != mountplan.MaskDir {
			continue
		}
		listed[m.Point] = true
		out = append(out, mountplan.Change{Action: mountplan.Revoke, Mount: mountplan.Mount{Kind: mountplan.RW, Path: m.Point}})
	}
	return out, nil
}

// result is what became of a change.
type result struct {
	word   mountplan.Action
	detail string
}

func (r *reloader) apply() ([]Line, error) {
	results := make([]result, len(r.changes))
	var todo []int
	for i, c := range r.changes {
		results[i] = result{c.Action, c.Detail}
		if why := r.refusal(c); why != "" {
			results[i] = result{Refused, why}
		} else if c.Action == mountplan.Add || c.Action == mountplan.Revoke {
			todo = append(todo, i)
		}
	}
	if len(todo) > 0 {
		old := r.rec.Mounts
		// A reloader that is killed from here on leaves a record that is true
		// or stricter: what is revoked counts as revoked before it is.
		if err := r.prepare(todo); err != nil {
			return nil, err
		}
		err := r.do(todo, results)
		if err != nil && !r.rec.Sandbox.Alive() {
			return nil, fmt.Errorf("session %s ended during the reload", r.rec.ID)
		}
		if errors.Is(err, errNothing) {
			r.rec.Mounts = old
			r.reg.Write(r.rec)
			return nil, err
		}
		if err != nil {
			r.p.Error(err)
		}
		if err := r.readBack(todo, results); err != nil {
			return r.lines(results), err
		}
		r.rec.Mounts = mountplan.Next(old, r.layout.Plan.Mounts, r.changes, func(c mountplan.Change) bool {
			for i := range r.changes {
				if r.changes[i].Mount.Path == c.Mount.Path && r.changes[i].Action == c.Action {
					return !applied(results[i].word)
				}
			}
			return true
		})
		if err := r.reg.Write(r.rec); err != nil {
			return r.lines(results), fmt.Errorf("cannot rewrite the session record: %w", err)
		}
		r.tell()
	}
	return r.lines(results), nil
}

func applied(w mountplan.Action) bool {
	return w == mountplan.Add || w == mountplan.Revoke || w == Detach
}

func (r *reloader) lines(results []result) []Line {
	var out []Line
	for i, c := range r.changes {
		out = append(out, line(results[i].word, c.Mount, results[i].detail))
	}
	return out
}

// prepare makes on the host what the changes need, and writes the stricter record.
func (r *reloader) prepare(todo []int) error {
	made, err := r.reg.ClaimMore(r.rec, r.layout.Plan)
	if err != nil {
		return err
	}
	r.rec.Made = made
	for _, dir := range r.layout.Plan.Create {
		if err := host.MakeFolder(dir); err != nil {
			return fmt.Errorf("cannot make a folder of HOME_WRITABLE: %w", err)
		}
	}
	for _, i := range todo {
		if m := r.changes[i].Mount; m.Kind == mountplan.Data {
			if err := r.reg.WriteData(r.rec.ID, strconv.Itoa(m.N), m.Content, 0o444); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
	}
	strict := r.rec
	strict.Mounts = mountplan.Next(r.rec.Mounts, r.layout.Plan.Mounts, r.changes, func(c mountplan.Change) bool { return c.Action != mountplan.Revoke })
	return r.reg.Write(strict)
}

// errNothing says that no operation was done.
var errNothing = errors.New("nothing was changed")

// do runs the operations through one mount-repair and, with --force-detach, what
// was busy through a second.
func (r *reloader) do(todo []int, results []result) error {
	ops, at := r.operations(todo, func(i int) string { return string(mountop.RemountRO) })
	got, err := mountop.Run(r.rec.Target(), ops, r.remaining())
	if err != nil && len(got) == 0 {
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	r.take(ops, at, got, results, err)
	if !r.req.ForceDetach {
		return err
	}
	var again []int
	for _, i := range todo {
		if results[i].word != Busy {
			continue
		}
		if in := protected(r.layout.Plan.Mounts, r.changes[i].Mount.Path); in != "" {
			results[i] = result{Refused, "a detach would drop the protection of " + in + " too; " + results[i].detail}
			continue
		}
		again = append(again, i)
	}
	if len(again) == 0 {
		return err
	}
	ops, at = r.operations(again, func(i int) string { return string(mountop.Detach) })
	got, err2 := mountop.Run(r.rec.Target(), ops, r.remaining())
	r.take(ops, at, got, results, err2)
	for _, i := range again {
		if results[i].word == mountplan.Revoke {
			results[i] = result{Detach, "open descriptors and working directories there keep their access"}
		}
	}
	return errors.Join(err, err2)
}

func (r *reloader) remaining() time.Duration {
	return max(time.Second, time.Until(r.deadline)-time.Second)
}

// protected is a protection mounted below p, if there is one.
func protected(mounts []mountplan.Mount, p string) string {
	for _, m := range mountplan.Inside(mounts, p) {
		if m.Protection() {
			return m.Path
		}
	}
	return ""
}

// operations are the lines for mount-repair; at gives for each the index of its
// change, -1 for one that stands for none.
func (r *reloader) operations(todo []int, revoke func(int) string) (ops []mountop.Op, at []int) {
	kept := map[string]bool{}
	for _, i := range todo {
		if c := r.changes[i]; c.Action == mountplan.Revoke {
			for _, m := range mountplan.Inside(r.layout.Plan.Mounts, c.Mount.Path) {
				if (m.Kind == mountplan.RW || m.Kind == mountplan.Dev || m.Kind == mountplan.Tmpfs || m.Kind == mountplan.Data && m.Mode == mountplan.DataRW) && !kept[m.Path] {
					kept[m.Path] = true
					ops, at = append(ops, mountop.Op{Do: mountop.Keep, Path: m.Path}), append(at, -1)
				}
			}
		}
	}
	for _, i := range todo {
		c := r.changes[i]
		op := mountop.Op{Do: string(c.Mount.Kind), Path: c.Mount.Path, Source: c.Mount.From()}
		switch {
		case c.Mount.Absent:
			continue // the guard mounts it when it appears
		case c.Action == mountplan.Revoke:
			op = mountop.Op{Do: revoke(i), Path: c.Mount.Path}
		case c.Mount.Kind == mountplan.Data:
			op.Source = r.reg.DataDir(r.rec.ID) + "/" + strconv.Itoa(c.Mount.N)
			op.Mode = string(c.Mount.Mode)
		}
		ops, at = append(ops, op), append(at, i)
	}
	return ops, at
}

// take reads the results of one run into those of the changes.
func (r *reloader) take(ops []mountop.Op, at []int, got []mountop.Result, results []result, err error) {
	for k := range ops {
		i := at[k]
		if i < 0 {
			continue
		}
		if k >= len(got) {
			results[i] = result{Refused, fmt.Sprintf("not done: %v", err)}
			continue
		}
		switch g := got[k]; g.Status {
		case mountop.OK:
			results[i] = result{r.changes[i].Action, r.changes[i].Detail}
		case mountop.Busy:
			results[i] = result{Busy, g.Text}
		default:
			results[i] = result{Refused, g.Text}
		}
	}
}

// readBack compares the session's mount table with what is about to be reported:
// ADD and REVOKE are printed for what is there, not for what was asked.
func (r *reloader) readBack(todo []int, results []result) error {
	table, err := r.mounts()
	if err != nil {
		return fmt.Errorf("session %s ended during the reload", r.rec.ID)
	}
	for _, i := range todo {
		c := r.changes[i]
		if !applied(results[i].word) || c.Mount.Absent {
			continue
		}
		m, ok := shown(table, c.Mount.Path)
		readOnly := ok && (m.ReadOnly() || m.SuperReadOnly())
		why := ""
		switch {
		case c.Action == mountplan.Revoke && !readOnly:
			why = "the kernel still shows it writable"
		case c.Action == mountplan.Add && (!ok || m.Point != c.Mount.Path):
			why = "the kernel shows no mount there"
		case c.Action == mountplan.Add && c.Mount.Kind == mountplan.RW && m.ReadOnly():
			why = "the kernel still shows it read-only"
		case c.Action == mountplan.Add && c.Mount.Kind != mountplan.RW && c.Mount.Mode != mountplan.DataRW && !readOnly:
			why = "the kernel shows it writable"
		}
		if why != "" {
			results[i] = result{Refused, why}
		}
	}
	return nil
}

// shown is the mount that is on top at p: of those whose points are p or above
// it, the one that no other covers. Lines of mountinfo are in the order of mounting.
func shown(table []mountinfo.Mount, p string) (mountinfo.Mount, bool) {
	var best mountinfo.Mount
	found := false
	for _, m := range table {
		if mountplan.Under(p, m.Point) && (!found || len(m.Point) >= len(best.Point)) {
			best, found = m, true
		}
	}
	return best, found
}
