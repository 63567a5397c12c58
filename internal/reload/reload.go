// Package reload applies the mount part of a changed configuration to a running
// session. The user's document "Live reload" says what it does, sentence by
// sentence; docs/reload-coverage.md maps its sentences to tests.
package reload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/layout"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
)

// Request is a reload as the user asked for it.
type Request struct {
	ID          string // an id or the beginning of one
	Project     string // --project
	DryRun      bool
	ForceDetach bool
	Timeout     time.Duration
}

// DefaultTimeout bounds a reload.
const DefaultTimeout = 30 * time.Second

// Words of the output that the plan's differences do not have.
const (
	Detach  mountplan.Action = "DETACH"
	Busy    mountplan.Action = "BUSY"
	Refused mountplan.Action = "REFUSED"
)

// Line is one line of the output.
type Line struct {
	Word    mountplan.Action
	Kind    string
	Subject string
	Detail  string
}

// Run reloads one session and returns the exit status.
func Run(ctx context.Context, req Request, stdout io.Writer, p cli.Printer) int {
	deadline := time.Now().Add(req.Timeout)
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	lines, err := run(ctx, req, deadline, p)
	if e := write(stdout, lines); e != nil {
		p.Error(fmt.Errorf("cannot write the answer: %w", e))
		return cli.Failed
	}
	if err != nil {
		p.Error(err)
		if lines != nil {
			return cli.Partly // some of it was applied
		}
		return cli.Failed
	}
	return summary(req, lines, p)
}

func summary(req Request, lines []Line, p cli.Printer) int {
	done, kept, open, busy := 0, 0, 0, false
	for _, l := range lines {
		switch l.Word {
		case mountplan.Add, mountplan.Revoke, Detach:
			done++
		case mountplan.Keep:
			kept++
		default:
			open++
			busy = busy || l.Word == Busy
		}
	}
	what := fmt.Sprintf("%d applied", done)
	switch {
	case len(lines) == 0:
		fmt.Fprintf(p.W, "%s: nothing to do\n", p.Name)
		return cli.OK
	case req.DryRun:
		what = fmt.Sprintf("%d would be applied", done)
	}
	if kept > 0 {
		what += fmt.Sprintf(", %d kept", kept)
	}
	if open > 0 {
		what += fmt.Sprintf(", %d not", open)
	}
	fmt.Fprintf(p.W, "%s: %s\n", p.Name, what)
	if busy && !req.ForceDetach {
		p.Hint("close what is listed and reload again; --force-detach hides the path from what is not open yet")
	}
	if open == 0 || req.DryRun {
		return cli.OK
	}
	return cli.Partly
}

func run(ctx context.Context, req Request, deadline time.Time, p cli.Printer) ([]Line, error) {
	u, err := host.Current()
	if err != nil {
		return nil, err
	}
	live, errs := session.Sweep(u)
	for _, err := range errs {
		p.Warn(err.Error())
	}
	defer session.CloseAll(live)
	e, err := choose(u, live, req, p)
	if err != nil {
		return nil, err
	}
	r := &reloader{reg: e.Registry, user: u, req: req, deadline: deadline, p: p, hidden: map[string]bool{}}
	if !req.DryRun {
		marker, err := r.reg.Mark(e.ID, deadline)
		if errors.Is(err, session.ErrBusy) {
			return nil, cli.WithHint(err, "try again when it has ended")
		}
		if err != nil {
			return nil, fmt.Errorf("cannot take the session's lock: %w", err)
		}
		defer marker.Release()
	}
	// What another reload has changed since the session was chosen counts.
	if r.rec, err = r.reg.Read(e.ID); err != nil {
		return nil, fmt.Errorf("cannot read the record of session %s: %w", e.ID, err)
	}
	here, err := session.Place()
	if err != nil {
		return nil, err
	}
	if r.rec.Live(here) != session.Running {
		return nil, fmt.Errorf("session %s has ended", e.ID)
	}
	return r.reload(ctx)
}

// choose finds the session: by id, by project, or by the current folder.
func choose(u host.User, live []session.Entry, req Request, p cli.Printer) (session.Entry, error) {
	var match func(session.Entry) bool
	what := ""
	switch {
	case req.ID != "":
		what = "with the id " + cli.Quote(req.ID)
		match = func(e session.Entry) bool { return strings.HasPrefix(e.ID, req.ID) }
	case req.Project != "":
		dir, err := layout.Physical(req.Project)
		if err != nil {
			return session.Entry{}, err
		}
		what = "of the project " + cli.Quote(dir)
		match = func(e session.Entry) bool { return e.Project == dir }
	default:
		dir, err := layout.Physical("")
		if err != nil {
			return session.Entry{}, err
		}
		what = "of a project that holds " + cli.Quote(dir)
		match = func(e session.Entry) bool { return mountplan.Under(dir, e.Project) }
	}
	live = slices.DeleteFunc(slices.Clone(live), func(e session.Entry) bool { return !match(e) })
	switch len(live) {
	case 0:
		if err := unsupported(u, req); err != nil {
			return session.Entry{}, err
		}
		return session.Entry{}, cli.WithHint(fmt.Errorf("no live session %s", what), "agent-sandbox sessions lists them")
	case 1:
		return live[0], nil
	}
	for _, e := range live {
		fmt.Fprintf(p.W, "%s: session %s\t%s\t%s\n", p.Name, e.ID, cli.Quote(e.Project), cli.Quote(e.Command))
	}
	return session.Entry{}, cli.WithHint(fmt.Errorf("%d live sessions %s", len(live), what), "name one: agent-sandbox reload %s", live[0].ID)
}

type reloader struct {
	reg      *session.Registry
	rec      session.Record
	user     host.User
	req      Request
	deadline time.Time
	p        cli.Printer
	layout   *layout.Layout
	had      []mountplan.Mount // what the session really has of its record
	changes  []mountplan.Change
	refused  map[int]string  // by index of changes: what must not be tried, and why
	hidden   map[string]bool // paths of the plan that a detach left empty
}

func (r *reloader) reload(ctx context.Context) ([]Line, error) {
	if r.rec.Version != cli.Version {
		return []Line{{mountplan.Restart, "session", r.rec.ID, fmt.Sprintf("needs restart: it was started by version %s, this is %s", r.rec.Version, cli.Version)}}, nil
	}
	t, err := r.table()
	if err != nil {
		return nil, err
	}
	here, err := readTable("self")
	if err != nil {
		return nil, err
	}
	running := r.rec
	running.Mounts = present(r.rec.Mounts, t, here)
	r.had = running.Mounts
	r.layout, err = layout.Make(ctx, layout.Options{Project: r.rec.Project, Running: &running})
	if err != nil {
		return nil, cli.WithHint(err, "nothing was changed: the session keeps its last good set")
	}
	for _, w := range r.layout.Warnings {
		r.p.Warn(w)
	}
	r.number()
	plan := r.layout.Plan.Mounts
	r.changes = mountplan.Diff(r.had, plan, r.layout.Retained, shown(r.had, t, here))
	last := slices.IndexFunc(r.changes, func(c mountplan.Change) bool {
		return c.Action != mountplan.Add && c.Action != mountplan.Revoke
	})
	if last < 0 {
		last = len(r.changes)
	}
	all := func(mountplan.Change) bool { return false }
	r.changes = slices.Insert(r.changes, last, strays(mountplan.Next(r.had, plan, r.changes, all), r.changes, t)...)
	r.refuse()

	var settings []Line
	for _, name := range r.layout.Differ {
		settings = append(settings, Line{mountplan.Restart, "setting", name, "needs restart: only a launch can change it"})
	}
	if len(r.changes) == 0 {
		return settings, nil
	}
	if r.req.DryRun {
		return append(r.foretell(), settings...), nil
	}
	lines, err := r.apply()
	if lines != nil {
		lines = append(lines, settings...)
	}
	return lines, err
}

// number gives the files of new data mounts numbers that the session's folder
// does not have yet.
func (r *reloader) number() {
	next := 0
	have := map[string]mountplan.Mount{}
	for _, m := range r.rec.Mounts {
		if m.Kind == mountplan.Data {
			next = max(next, m.N+1)
			have[m.Path] = m
		}
	}
	for i := range r.layout.Plan.Mounts {
		m := &r.layout.Plan.Mounts[i]
		if m.Kind != mountplan.Data {
			continue
		}
		if o, ok := have[m.Path]; ok {
			m.N, m.Digest = o.N, o.Digest
			continue
		}
		m.N = next
		next++
	}
}

func line(word mountplan.Action, m mountplan.Mount, detail string) Line {
	return Line{word, string(m.Kind), m.Subject(), detail}
}

// foretell is the output of a dry run.
func (r *reloader) foretell() []Line {
	var lines []Line
	for i, c := range r.changes {
		word, detail := c.Action, c.Detail
		if why, no := r.refused[i]; no {
			word, detail = Refused, why
		} else if c.Mount.Absent {
			detail = whenItAppears
		}
		lines = append(lines, line(word, c.Mount, detail))
	}
	return lines
}

const whenItAppears = "it does not exist: the mount guard mounts it when it appears"

// refuse finds the changes that must not be tried, whatever the kernel would say.
func (r *reloader) refuse() {
	r.refused = map[int]string{}
	registries := r.registries()
	for i, c := range r.changes {
		if c.Action != mountplan.Add {
			continue
		}
		if c.Mount.Absent && r.rec.Guard == (session.Proc{}) {
			r.refused[i] = "it does not exist, no mount point can be made for it, and the session has no mount guard"
		}
		for _, dir := range registries {
			if c.Mount.Kind == mountplan.RW && mountplan.Under(dir, c.Mount.Path) {
				r.refused[i] = "it would cover the mask of the registry of sessions in " + dir + "; only a launch puts the mask on top"
			}
		}
		if link, ok := mountplan.Planted(r.had, c.Mount); ok {
			r.refused[i] = "the symbolic link " + link + " leads there, and the sandbox can put links in its folder; name the path itself"
		}
	}
	r.refuseAround()
}

// refuseAround refuses to make writable what has a protection inside that is not
// going to be mounted.
func (r *reloader) refuseAround() {
	for i, c := range r.changes {
		if _, no := r.refused[i]; no || c.Action != mountplan.Add || c.Mount.Kind != mountplan.RW {
			continue
		}
		for k := range r.refused {
			if p := r.changes[k].Mount; p.Protection() && mountplan.Under(p.Path, c.Mount.Path) {
				r.refused[i] = "the protection of " + p.Path + " inside it cannot be mounted"
			}
		}
	}
}

// registries are the folders of session records, as named and without links.
func (r *reloader) registries() []string {
	regs, _ := session.Existing(r.user)
	var out []string
	for _, g := range regs {
		out = append(out, g.Path)
		if p, err := filepath.EvalSymlinks(g.Path); err == nil && p != g.Path {
			out = append(out, p)
		}
		g.Close()
	}
	return out
}

// tell lets guard and chaperon read the record again. A helper that is gone is
// said, and nobody else is signalled.
func (r *reloader) tell() {
	for _, h := range []struct {
		name string
		proc session.Proc
	}{{"mount guard", r.rec.Guard}, {"chaperon", r.rec.Chaperon}} {
		if h.proc == (session.Proc{}) {
			continue
		}
		if err := h.proc.Signal(r.rec.Launcher, syscall.SIGUSR1); err != nil {
			r.p.Warn(fmt.Sprintf("cannot tell the session's %s to read the record again: %v", h.name, err))
		}
	}
}
