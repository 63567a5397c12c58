// Package layout brings together what launch, plan, --dry-run and reload all need:
// the user, the configuration for a project, and the mount plan that follows.
package layout

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"agent-sandbox/internal/agents"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/config"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/session"
)

// Options say for what a layout is made.
type Options struct {
	Project string // folder as the user gave it, empty: the current one
	Command string // the command of a launch; empty for plan and reload

	// Physical refuses a project that a link leads to: who names it knows where it
	// lies, and whoever may write above it could have put a link there.
	Physical bool

	// Running is the record of the session that is reloaded, nil otherwise: its
	// configuration environment is used, and what cannot change in a running
	// session stays as it was started.
	Running *session.Record
}

// Layout is a loaded configuration and the plan made from it.
type Layout struct {
	User     host.User
	Project  string // physical
	Config   *config.Result
	Plan     *mountplan.Plan
	Differ   []string          // reload: launch-only settings that differ from the session's
	Retained []mountplan.Mount // reload: protections of the session that left the configuration
	Warnings []string
	Chaperon bool // the Slurm proxy is part of the plan

	opts Options
}

// Physical gives the folder without symlinks, the current one where dir is empty.
func Physical(dir string) (string, error) {
	if dir == "" {
		dir = "."
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", cli.WithHint(fmt.Errorf("cannot find the current folder: %w", err), "cd to a folder that exists")
	}
	p, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return "", fmt.Errorf("cannot use the project folder %s: %w", cli.Quote(dir), unwrapPath(err))
	}
	st, err := os.Stat(p)
	if err != nil {
		return "", fmt.Errorf("cannot use the project folder %s: %w", cli.Quote(dir), unwrapPath(err))
	}
	if !st.IsDir() {
		return "", fmt.Errorf("cannot use the project folder %s: not a folder", cli.Quote(dir))
	}
	return p, nil
}

// unwrapPath takes the path out of an error whose message names it already.
func unwrapPath(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Configure finds the user and loads the configuration for a project, without
// the rules for project folders.
func Configure(ctx context.Context, o Options) (*Layout, error) {
	l := &Layout{}
	var err error
	if l.User, err = host.Current(); err != nil {
		return nil, err
	}
	if l.Project, err = Physical(o.Project); err != nil {
		return nil, err
	}
	if abs, _ := filepath.Abs(o.Project); o.Physical && o.Project != "" && l.Project != abs {
		return nil, cli.WithHint(fmt.Errorf("cannot use the project folder %s: a link leads from it to %s", cli.Quote(o.Project), cli.Quote(l.Project)), "leave out --physical, or name the folder itself")
	}
	req := config.Request{
		Home: l.User.Home, PasswdHome: l.User.PasswdHome, User: l.User.Name, UID: l.User.UID,
		ProjectDir: l.Project, Getenv: os.Getenv,
	}
	if r := o.Running; r != nil {
		req.Reload, req.ConfigDir = true, r.ConfigDir
		req.Getenv = func(name string) string {
			switch name {
			case "SANDBOX_CONF":
				return r.Conf
			case "HOME_ACCESS":
				return r.HomeAccess
			}
			return os.Getenv(name)
		}
	}
	if l.Config, err = config.Load(ctx, req); err != nil {
		return nil, err
	}
	l.Warnings = slices.Clone(l.Config.Warnings)
	return l, nil
}

// Checked is Configure with the rules for project folders.
func Checked(ctx context.Context, o Options) (*Layout, error) {
	l, err := Configure(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := l.Config.CheckProject(); err != nil {
		return nil, err
	}
	if o.Running != nil {
		if l.Differ, err = l.Config.ApplyLaunch(o.Running.Settings); err != nil {
			return nil, err
		}
	}
	l.opts = o
	l.Chaperon = l.chaperon()
	return l, nil
}

// Make is Checked with the plan.
func Make(ctx context.Context, o Options) (*Layout, error) {
	l, err := Checked(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := l.MakePlan(); err != nil {
		return nil, err
	}
	return l, nil
}

// Replan makes the plan anew with settings changed, for a backend that cannot give
// all that they ask for.
func (l *Layout) Replan(change func(*config.Settings)) error {
	change(l.Config.Settings)
	l.Warnings = slices.Clone(l.Config.Warnings)
	return l.MakePlan()
}

// chaperon says whether the Slurm proxy runs: with auto where the host has Slurm. In a
// running session nothing of that changes.
func (l *Layout) chaperon() bool {
	if r := l.opts.Running; r != nil {
		return r.Chaperon != session.Proc{}
	}
	switch l.Config.Settings.Scalar("CHAPERON") {
	case "on":
		return true
	case "auto":
		_, err := host.SlurmCommand("sbatch")
		return err == nil
	}
	return false
}

// slurm is what the proxy means for the plan.
func (l *Layout) slurm() (*mountplan.Slurm, error) {
	stub, err := cli.Helper("chaperon-stub")
	if err != nil {
		return nil, cli.WithHint(fmt.Errorf("cannot have the Slurm proxy: %w", err), "CHAPERON=off goes without; Slurm is then out of reach of the sandbox")
	}
	p := &mountplan.Slurm{Stub: stub, Names: relay.Commands}
	if r := l.opts.Running; r != nil {
		// Those of the launch, whose PATH may have been another.
		for _, m := range r.Mounts {
			if m.Kind == mountplan.RO && m.Source == stub && m.Path != relay.Stub {
				p.Commands = append(p.Commands, m.Path)
			}
		}
		return p, nil
	}
	for _, name := range p.Names {
		if path, err := host.SlurmCommand(name); err == nil {
			p.Commands = append(p.Commands, path)
		}
	}
	return p, nil
}

// MakePlan makes the plan of a layout from Checked.
func (l *Layout) MakePlan() error {
	o := l.opts
	l.Chaperon = l.chaperon()
	in, err := l.input(o.Command)
	if err != nil {
		return err
	}
	fs, err := host.NewFS()
	if err != nil {
		return err
	}
	if l.Plan, err = mountplan.Build(fs, in); err != nil {
		return err
	}
	if o.Running != nil {
		// Protections that left the configuration stay, and what is writable
		// around them is planned with them.
		if l.Retained = mountplan.Retained(o.Running.Mounts, l.Plan.Mounts); len(l.Retained) > 0 {
			in.Keep = l.Retained
			if l.Plan, err = mountplan.Build(fs, in); err != nil {
				return err
			}
		}
	}
	l.Warnings = append(l.Warnings, l.Plan.Warnings...)
	return nil
}

func (l *Layout) input(command string) (mountplan.Input, error) {
	s := l.Config.Settings
	in := mountplan.Input{
		Settings: s, UID: l.User.UID, Home: l.User.Home, PasswdHome: l.User.PasswdHome, Project: l.Project,
		RuntimeDir: l.User.RuntimeDir, StateDirs: session.Homes(l.User),
		ConfigDir: l.Config.ConfigDir, ConfigFiles: l.Config.Files, Binaries: cli.Binaries(),
	}
	if l.Chaperon {
		var err error
		if in.Slurm, err = l.slurm(); err != nil {
			return in, err
		}
	}
	for _, p := range l.Config.Agents {
		a := mountplan.Agent{Name: p.Name, Instructions: p.Instructions,
			Note: func(own []byte) []byte { return agents.Note(own, l.Project, p) }}
		if p.Starts(command) || p.Carries(l.User.Home) {
			a.Make = p.Writable
		}
		in.Agents = append(in.Agents, a)
	}
	if s.Bool("FILTER_PASSWD") {
		var err error
		if in.Replace, err = l.User.FilteredPasswd(); err != nil {
			return in, fmt.Errorf("cannot filter the user database: %w", err)
		}
	}
	return in, nil
}

// Lines are the `setting` and `mount` lines of a record of this layout.
func (l *Layout) Lines() []string {
	return session.PlanLines(l.Config.Settings.LaunchSettings(), l.Plan.Mounts)
}
