package launch

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"agent-sandbox/internal/backend"
	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/firejail"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/landlock"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
)

// backend is the one asked for.
func (r *run) backend() string {
	if r.req.Backend != "" {
		return r.req.Backend
	}
	return r.settings().Scalar("SANDBOX_BACKEND")
}

// on runs the session on a backend. With auto the start on bwrap is the probe of
// bwrap: only where it fails is looked at why, and another backend taken if bwrap
// cannot work here at all.
func (r *run) on(name string, stdout io.Writer) (int, error) {
	switch name {
	case "firejail":
		return r.firejail(stdout)
	case "landlock":
		return r.landlock(stdout)
	case "bwrap":
		return r.bwrap(stdout)
	}
	code, err := r.bwrap(stdout)
	// Whatever else went wrong would with another backend.
	var failed *bwrap.StartError
	if !errors.As(err, &failed) || errors.Is(err, bwrap.ErrLimit) {
		return code, err
	}
	findings, usable := backend.Probe("bwrap")
	// A trial start that Ctrl-C has ended says nothing of bwrap.
	if stopped := bwrap.Interruption(); stopped != nil {
		return 0, stopped
	}
	if usable {
		return code, err
	}
	name, none := backend.Choose("firejail", "landlock")
	if none != nil {
		return 0, fmt.Errorf("%w; %w", err, none)
	}
	for _, f := range findings {
		if f.State == "no" {
			r.warn(fmt.Sprintf("bwrap does not work here (%s): %s is used, which protects less", f.Why, name))
		}
	}
	return r.on(name, stdout)
}

// confined is what firejail and landlock sessions have in common.
func (r *run) confined(name string) (backend.Session, error) {
	s := backend.Session{
		Dir: r.workdir(), Command: r.req.Command, NProc: r.settings().Scalar("SANDBOX_NPROC_LIMIT"),
		Nested: r.settings().Bool("NESTED_SANDBOX"), Env: r.environ(name),
	}
	var err error
	if s.Init, err = cli.Self(); err != nil {
		return s, err
	}
	s.Isolated, err = r.isolateNet()
	return s, err
}

// admit warns of every protection that the backend lacks, and refuses where the
// administrator asks for one of them.
func (r *run) admit(name string, losses []mountplan.Loss) error {
	for _, l := range losses {
		r.warn(name + ": " + l.Text)
	}
	return backend.Refused(name, losses)
}

// unlisted starts a session that gets no record, lets its command run, and waits.
// plan has the placeholders that the backend needs.
func (r *run) unlisted(name string, plan *mountplan.Plan, s backend.Session, start func(backend.Session) (*bwrap.Session, error)) (int, error) {
	return r.registered(func(here session.Here) (int, error) {
		if _, err := r.claim(here, plan); err != nil {
			return 0, err
		}
		if err := r.reg.WriteUnlisted(session.Unlisted{ID: r.id, Backend: name, Project: r.Project}); err != nil {
			return 0, err
		}
		s.Private = r.reg.DataDir(r.id)
		s.Env = append(s.Env, "SANDBOX_SESSION="+r.id)
		running, err := start(s)
		if err != nil {
			return 0, err
		}
		bwrap.Ignore()
		r.banner()
		if err := running.Go(); err != nil {
			running.Kill()
			running.Wait()
			return 0, err
		}
		return running.Wait(), nil
	})
}

func (r *run) landlock(stdout io.Writer) (int, error) {
	abi, err := landlock.ABI()
	if err != nil {
		return 0, cli.WithHint(fmt.Errorf("cannot use the landlock backend: %w", err), "agent-sandbox check says what works here")
	}
	losses := backend.LandlockLosses(r.settings(), r.User, abi)
	if err := r.withoutChaperon("landlock"); err != nil {
		return 0, err
	}
	if err := r.Replan(landlock.Share); err != nil {
		return 0, err
	}
	r.warnings()
	fs, err := host.NewFS()
	if err != nil {
		return 0, err
	}
	rules, err := landlock.FromPlan(fs, r.Plan)
	if err != nil {
		return 0, err
	}
	if err := r.admit("landlock", append(rules.Losses, losses...)); err != nil {
		return 0, err
	}
	if len(rules.Closed) > 0 {
		r.warn("landlock: entry by entry, so that what is protected in them stays closed, these are granted, and new entries in them cannot be used: " + quoted(rules.Closed))
	}
	s, err := r.confined("landlock")
	if err != nil {
		return 0, err
	}
	if r.req.DryRun {
		fmt.Fprintln(stdout, backend.LandlockLine(s))
		for _, rule := range rules.Rules {
			fmt.Fprintf(stdout, "# %s %s\n", rule.Access, cli.Quote(rule.Path))
		}
		return cli.OK, nil
	}
	return r.unlisted("landlock", &mountplan.Plan{}, s, func(s backend.Session) (*bwrap.Session, error) { return backend.Landlock(s, rules) })
}

func (r *run) firejail(stdout io.Writer) (int, error) {
	if err := r.withoutChaperon("firejail"); err != nil {
		return 0, err
	}
	if err := r.plan(); err != nil {
		return 0, err
	}
	path, err := firejail.Find()
	if err != nil {
		return 0, err
	}
	s, err := r.confined("firejail")
	if err != nil {
		return 0, err
	}
	fs, err := host.NewFS()
	if err != nil {
		return 0, err
	}
	profile, err := firejail.FromPlan(fs, firejail.Spec{
		Plan: r.Plan, UID: r.User.UID, Home: r.User.Home, PasswdHome: r.User.PasswdHome, Init: s.Init,
		PrivateTmp: r.settings().Bool("PRIVATE_TMP"), PrivateIPC: r.settings().Bool("PRIVATE_IPC"), IsolateNet: s.Isolated, Nested: s.Nested,
	})
	if err != nil {
		return 0, err
	}
	if err := r.admit("firejail", append(profile.Losses, backend.FirejailLosses(s.Isolated)...)); err != nil {
		return 0, err
	}
	if r.req.DryRun {
		fmt.Fprintln(stdout, backend.FirejailLine(s, path, profile))
		return cli.OK, nil
	}
	return r.unlisted("firejail", r.Plan, s, func(s backend.Session) (*bwrap.Session, error) { return backend.Firejail(s, path, profile) })
}

func quoted(paths []string) string {
	var out []string
	for _, p := range paths {
		out = append(out, cli.Quote(p))
	}
	return strings.Join(out, ", ")
}
