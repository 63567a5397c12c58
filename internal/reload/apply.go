package reload

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
)

// result is what became of a change.
type result struct {
	word   mountplan.Action
	detail string
	// mount-repair ended before it said; the mount table tells what there is.
	unknown bool
}

// apply does the changes. Lines without an error, or with one that came after
// something was changed; no lines where nothing was.
func (r *reloader) apply() ([]Line, error) {
	results := make([]result, len(r.changes))
	var todo []int
	for i, c := range r.changes {
		results[i] = result{word: c.Action, detail: c.Detail}
		if why, no := r.refused[i]; no {
			results[i] = result{word: Refused, detail: why}
		} else if c.Action == mountplan.Add || c.Action == mountplan.Revoke {
			todo = append(todo, i)
		}
	}
	if len(todo) == 0 {
		return r.lines(results), nil
	}
	recorded := r.rec.Mounts
	if err := r.prepare(); err != nil {
		if !r.rec.Sandbox.Alive() {
			err = fmt.Errorf("session %s ended during the reload", r.rec.ID)
		}
		return nil, err
	}
	err := r.do(todo, results)
	if errors.Is(err, mountop.ErrNotEntered) && !r.rec.Sandbox.Alive() {
		return nil, fmt.Errorf("session %s ended during the reload", r.rec.ID)
	}
	if errors.Is(err, mountop.ErrNotEntered) {
		r.rec.Mounts = recorded
		return nil, errors.Join(fmt.Errorf("nothing was changed: %w", err), r.reg.Write(r.rec))
	}
	if err != nil {
		r.p.Error(err)
	}
	if err := r.readBack(todo, results); err != nil {
		return nil, err
	}
	r.rec.Mounts = slices.DeleteFunc(mountplan.Next(r.had, r.layout.Plan.Mounts, r.changes, r.failed(results)), func(m mountplan.Mount) bool { return r.hidden[m.Path] })
	if err := r.reg.Write(r.rec); err != nil {
		return r.lines(results), fmt.Errorf("cannot rewrite the session record: %w", err)
	}
	r.tell()
	return r.lines(results), nil
}

// failed says for the record whether a change was not done. Where that is not
// known the stricter is written.
func (r *reloader) failed(results []result) func(mountplan.Change) bool {
	type key struct {
		action mountplan.Action
		path   string
	}
	failed := map[key]bool{}
	for i, c := range r.changes {
		loosens := c.Action == mountplan.Add && !c.Mount.Protection()
		failed[key{c.Action, c.Mount.Path}] = !applied(results[i].word) && (loosens || !results[i].unknown)
	}
	return func(c mountplan.Change) bool { return failed[key{c.Action, c.Mount.Path}] }
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

// prepare makes on the host what the changes need, and writes the stricter record:
// a reloader that is killed from here on leaves one that is true or stricter.
func (r *reloader) prepare() error {
	full := r.rec
	full.Mounts = r.layout.Plan.Mounts
	if _, err := session.Parse(full.Marshal()); err != nil {
		return fmt.Errorf("cannot record the changes: %w", err)
	}
	made, err := r.reg.ClaimMore(r.rec, r.needs())
	if err != nil {
		return err
	}
	r.rec.Made = made
	for _, dir := range r.layout.Plan.Create {
		if err := host.MakeFolder(dir); err != nil {
			return fmt.Errorf("cannot make a folder of HOME_WRITABLE: %w", err)
		}
	}
	recorded := map[string]bool{}
	for _, m := range r.rec.Mounts {
		recorded[m.Path] = m.Kind == mountplan.Data
	}
	for i, c := range r.changes {
		// What the launch has shown once stays as it was.
		if _, no := r.refused[i]; no || c.Action != mountplan.Add || c.Mount.Kind != mountplan.Data || recorded[c.Mount.Path] {
			continue
		}
		if err := r.reg.ReplaceData(r.rec.ID, strconv.Itoa(c.Mount.N), c.Mount.Content); err != nil {
			return err
		}
	}
	strict := r.rec
	strict.Mounts = mountplan.Strict(r.had, r.layout.Plan.Mounts, r.changes)
	return r.reg.Write(strict)
}

// needs is the plan with the placeholders of what is going to be mounted only.
func (r *reloader) needs() *mountplan.Plan {
	above := map[string]bool{}
	for i, c := range r.changes {
		if _, no := r.refused[i]; no || c.Action != mountplan.Add {
			continue
		}
		for p := c.Mount.Path; p != "" && !above[p]; p = p[:strings.LastIndexByte(p, '/')] {
			above[p] = true
		}
	}
	plan := *r.layout.Plan
	plan.Make = nil
	for _, p := range r.layout.Plan.Make {
		if above[p.Path] {
			plan.Make = append(plan.Make, p)
		}
	}
	return &plan
}

// do runs the operations through one mount-repair and, with --force-detach, what
// was busy through a second.
func (r *reloader) do(todo []int, results []result) error {
	ops, at := r.operations(todo, mountop.RemountRO)
	got, err := r.run(ops)
	if errors.Is(err, mountop.ErrNotEntered) {
		return err
	}
	r.take(ops, at, got, results, err)
	if !r.req.ForceDetach {
		return err
	}
	var again []int
	for _, i := range todo {
		if results[i].word != Busy || r.changes[i].Action != mountplan.Revoke {
			continue
		}
		if in := r.protected(r.changes[i].Mount.Path); in != "" {
			results[i] = result{word: Refused, detail: "a detach would drop the protection of " + in + " too; busy: " + results[i].detail}
			continue
		}
		again = append(again, i)
	}
	if len(again) == 0 {
		return err
	}
	ops, at = r.operations(again, mountop.Detach)
	got, err2 := r.run(ops)
	if errors.Is(err2, mountop.ErrNotEntered) {
		// What the first run did stays.
		return errors.Join(err, fmt.Errorf("cannot detach: %v", err2))
	}
	r.take(ops, at, got, results, err2)
	for _, i := range again {
		// Busy: detached, and what held it still does.
		if w := results[i].word; w == mountplan.Revoke || w == Busy {
			results[i] = result{word: Detach, detail: "open descriptors and working directories there keep their access"}
		}
	}
	return errors.Join(err, err2, r.overlay(again, results))
}

// overlay mounts, where a mount was detached and the plan shows the path, a
// read-only one. Where that cannot be, since the sandbox has no view of the host's
// folder under it, the path is no longer in the record: only a restart shows it.
func (r *reloader) overlay(detached []int, results []result) error {
	var ops []mountop.Op
	var at []int
	for _, i := range detached {
		for _, m := range r.layout.Plan.Mounts {
			if m.Path == r.changes[i].Mount.Path && m.Kind == mountplan.RO && results[i].word == Detach {
				ops, at = append(ops, mountop.Op{Do: mountop.RO, Path: m.Path, Source: m.From()}), append(at, i)
			}
		}
	}
	if len(ops) == 0 {
		return nil
	}
	got, err := r.run(ops)
	for k, i := range at {
		if k >= len(got) || got[k].Status != mountop.OK && got[k].Status != mountop.Busy {
			r.hidden[r.changes[i].Mount.Path] = true
			results[i].detail += "; the path is empty inside, a restart shows it read-only"
		}
	}
	if errors.Is(err, mountop.ErrNotEntered) {
		return nil // the record says less than there is
	}
	return err
}

// run has mount-repair do ops before the deadline, with time left for the record.
func (r *reloader) run(ops []mountop.Op) ([]mountop.Result, error) {
	left := time.Until(r.deadline) - min(time.Second, r.req.Timeout/4)
	if left <= 0 {
		return nil, fmt.Errorf("%w: time ran out", mountop.ErrNotEntered)
	}
	return mountop.Run(r.rec.Target(), ops, left)
}

// protected is a protection mounted below p, if there is one.
func (r *reloader) protected(p string) string {
	for _, list := range [][]mountplan.Mount{r.had, r.layout.Plan.Mounts} {
		for _, m := range mountplan.Inside(list, p) {
			if m.Protection() && !m.Absent {
				return m.Path
			}
		}
	}
	return ""
}

// operations are the lines for mount-repair; at gives for each the index of its
// change, -1 for one that stands for none.
func (r *reloader) operations(todo []int, revoke string) (ops []mountop.Op, at []int) {
	for _, p := range keeps(r.layout.Plan.Mounts, r.changes) {
		ops, at = append(ops, mountop.Op{Do: mountop.Keep, Path: p}), append(at, -1)
	}
	for _, i := range todo {
		c := r.changes[i]
		op := mountop.Op{Do: string(c.Mount.Kind), Path: c.Mount.Path, Source: c.Mount.From()}
		switch {
		case c.Mount.Absent:
			continue // the guard mounts it when it appears
		case c.Action == mountplan.Revoke:
			op = mountop.Op{Do: revoke, Path: c.Mount.Path}
		case c.Mount.Kind == mountplan.Data:
			op.Source = r.reg.DataDir(r.rec.ID) + "/" + strconv.Itoa(c.Mount.N)
			op.Mode = string(c.Mount.Mode)
		}
		ops, at = append(ops, op), append(at, i)
	}
	return ops, at
}

// keeps are the mounts of the plan inside changed paths that stay as the plan has
// them: all inside what becomes writable, the writable ones inside what is closed.
func keeps(plan []mountplan.Mount, changes []mountplan.Change) []string {
	done := map[string]bool{}
	for _, c := range changes {
		if c.Action == mountplan.Revoke {
			done[c.Mount.Path] = true
		}
	}
	var out []string
	for _, c := range changes {
		if c.Action != mountplan.Add && c.Action != mountplan.Revoke {
			continue
		}
		opens := c.Action == mountplan.Add && !c.Mount.Protection()
		for _, m := range mountplan.Inside(plan, c.Mount.Path) {
			if !done[m.Path] && (opens || !m.Protection()) {
				done[m.Path] = true
				out = append(out, m.Path)
			}
		}
	}
	return out
}

// take reads the results of one run into those of the changes.
func (r *reloader) take(ops []mountop.Op, at []int, got []mountop.Result, results []result, err error) {
	for k := range ops {
		i := at[k]
		if i < 0 {
			continue
		}
		if k >= len(got) {
			results[i] = result{Refused, fmt.Sprintf("not done, or not checked to the end: %v", err), true}
			continue
		}
		switch g := got[k]; g.Status {
		case mountop.OK:
			results[i] = result{word: r.changes[i].Action, detail: r.changes[i].Detail}
		case mountop.Busy:
			results[i] = result{word: Busy, detail: g.Text}
		default:
			results[i] = result{word: Refused, detail: g.Text}
		}
	}
}

// readBack compares the session's mount table with what is about to be reported:
// ADD and REVOKE are printed for what is there, not for what was asked.
func (r *reloader) readBack(todo []int, results []result) error {
	t, err := r.table()
	if err != nil {
		return fmt.Errorf("%w: during the reload", err)
	}
	for _, i := range todo {
		c := r.changes[i]
		if c.Mount.Absent {
			results[i].detail = whenItAppears
			continue
		}
		m, ok := t.at(c.Mount.Path)
		why := ""
		switch {
		case c.Action == mountplan.Revoke && !(ok && readOnly(m)):
			why = "the kernel still shows it writable"
		case c.Action == mountplan.Add && !(ok && m.Point == c.Mount.Path):
			why = "the kernel shows no mount there"
		case c.Action == mountplan.Add && c.Mount.Kind == mountplan.RW && m.ReadOnly():
			why = "the kernel still shows it read-only"
		case c.Action == mountplan.Add && c.Mount.Protection() && !readOnly(m):
			why = "the kernel shows it writable"
		}
		switch res := &results[i]; {
		case applied(res.word) && why != "":
			*res = result{word: Refused, detail: why}
		case res.unknown && why == "" && c.Mount.Kind == mountplan.RW && c.Action == mountplan.Add:
			*res = result{word: c.Action, detail: c.Detail}
		case res.word == Busy && why == "":
			// Made read-only where it shows, though not for all who hold it. The
			// record says so, or a guard would mount it writable again.
			res.unknown = true
		}
	}
	return nil
}
