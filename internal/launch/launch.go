// Package launch runs a command in a sandbox: it turns a layout into a running
// session and takes the session away again when the command has ended.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"agent-sandbox/internal/agents"
	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/config"
	"agent-sandbox/internal/environ"
	"agent-sandbox/internal/execpath"
	"agent-sandbox/internal/helper"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/keeper"
	"agent-sandbox/internal/landlock"
	"agent-sandbox/internal/layout"
	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/seccomp"
	"agent-sandbox/internal/session"
	"agent-sandbox/internal/sys"
)

// Request is a launch as the user asked for it.
type Request struct {
	Project string // folder, empty: the current one
	Backend string // --backend, empty: SANDBOX_BACKEND decides
	DryRun  bool
	Command []string

	Physical bool // refuse a Project that a link leads to

	Subcommands []string // what Command[0] may have been meant for
}

// Run launches and returns the exit status: the command's own, or 125 with a
// message where the command did not run.
func Run(ctx context.Context, req Request, stdout io.Writer, p cli.Printer) int {
	// What bwrap left is not to be seen after the launcher has ended.
	defer sys.ReapZombies()
	warned := map[string]bool{}
	for try := 1; ; try++ {
		code, err := once(ctx, req, stdout, p, warned)
		var stopped *bwrap.Interrupted
		switch {
		case err == nil:
			return code
		case errors.As(err, &stopped):
			return stopped.Status()
		case errors.Is(err, errChanged) && try < tries:
			continue // from a new look at the host
		}
		if errors.Is(err, errChanged) {
			err = cli.WithHint(err, "another program renames files there: end it, and try again")
		}
		p.Error(err)
		return cli.LaunchFailed
	}
}

// tries is how often a launch is made anew where the host's files change meanwhile.
const tries = 5

func once(ctx context.Context, req Request, stdout io.Writer, p cli.Printer, warned map[string]bool) (int, error) {
	// bwrap is most of a launch, so it starts before it is known whether it is wanted.
	waiting := awaitBwrap(req)
	defer waiting.Abandon()
	l, err := layout.Checked(ctx, layout.Options{Project: req.Project, Physical: req.Physical, Command: req.Command[0]})
	if err != nil {
		return 0, err
	}
	r := &run{Layout: l, req: req, p: p, warned: warned, waiting: waiting}
	if err := r.unavailable(); err != nil {
		return 0, err
	}
	return r.on(r.backend(), stdout)
}

// awaitBwrap starts bwrap where the launch will most likely use it.
func awaitBwrap(req Request) *bwrap.Waiting {
	if req.DryRun || req.Backend != "" && req.Backend != "auto" && req.Backend != "bwrap" {
		return nil
	}
	path, err := bwrap.Find()
	if err != nil {
		return nil // what uses it says so
	}
	return bwrap.Await(path)
}

// unavailable refuses what is asked for as a protection and not in this version.
func (r *run) unavailable() error {
	s := r.settings()
	if s.Scalar("NETWORK_MAIL_BLOCK") == "on" && s.Scalar("NETWORK_FILTER_MODE") != "isolated" {
		return cli.WithHint(errors.New("NETWORK_MAIL_BLOCK=on cannot be had in this version"), "set NETWORK_FILTER_MODE=isolated, which closes all ports, or NETWORK_MAIL_BLOCK=auto")
	}
	if modules := s.Strings("SANDBOX_MODULES"); len(modules) > 0 {
		r.warn(fmt.Sprintf("SANDBOX_MODULES %q are not loaded in this version: load them before you start agent-sandbox", modules))
	}
	return nil
}

type run struct {
	*layout.Layout
	req Request
	p   cli.Printer
	reg *session.Registry
	id  string

	others []*session.Registry // the user's other registries
	late   []mountplan.Mount   // those of the plan that mount-repair makes
	shared bool                // the host shares mounts with namespaces such as the sandbox's

	warned   map[string]bool // warnings that were printed
	waiting  *bwrap.Waiting  // nil where bwrap was not started
	guard    *keeper.Process // nil where none runs
	chaperon *helper.Process // nil where none runs
}

// warn prints a warning once.
func (r *run) warn(text string) {
	if !r.warned[text] {
		r.warned[text] = true
		r.p.Warn(text)
	}
}

// plan makes the plan and prints what there is to warn of.
func (r *run) plan() error {
	if err := r.MakePlan(); err != nil {
		return err
	}
	r.warnings()
	return nil
}

func (r *run) warnings() {
	for _, w := range r.Warnings {
		r.warn(w)
	}
}

func (r *run) settings() *config.Settings { return r.Config.Settings }

func (r *run) bwrap(stdout io.Writer) (code int, err error) {
	path, err := bwrap.Find()
	if err != nil {
		return 0, err
	}
	if r.req.DryRun {
		spec, err := r.spec(path)
		if err == nil {
			spec.DataDir = "SESSION.d" // made by a launch, beside its record
			if r.Chaperon {
				spec.Requests = "SESSION.chaperon"
			}
			for _, m := range r.late {
				fmt.Fprintf(stdout, "# then by mount-repair: %s %s\n", m.Kind, cli.Quote(m.Path))
			}
			fmt.Fprintln(stdout, bwrap.CommandLine(spec))
		}
		return cli.OK, err
	}
	return r.registered(func(here session.Here) (int, error) {
		if err := r.startGuard(); err != nil {
			return 0, err
		}
		defer r.endChaperon()
		if err := r.startChaperon(); err != nil {
			return 0, err
		}
		spec, made, err := r.ready(path, here)
		if err != nil {
			return 0, err
		}
		return r.session(spec, here, made)
	})
}

// ready makes the plan, and all that a bwrap session needs on the host.
func (r *run) ready(path string, here session.Here) (spec bwrap.Spec, made []string, err error) {
	if spec, err = r.spec(path); err != nil {
		return spec, nil, err
	}
	if err := r.absent(); err != nil {
		return spec, nil, err
	}
	if made, err = r.claim(here, r.Plan); err != nil {
		return spec, nil, err
	}
	if r.chaperon != nil {
		spec.Requests = r.reg.ChaperonDir(r.id)
	}
	if err := r.writeData(); err != nil {
		return spec, nil, err
	}
	spec.DataDir = r.reg.DataDir(r.id)
	spec.Env = append(spec.Env, "SANDBOX_SESSION="+r.id)
	return spec, made, nil
}

// absent refuses a session in which something to be protected, that is not there and
// that no place can be held for, would show when it comes: only the guard can
// protect that.
func (r *run) absent() error {
	for _, m := range r.Plan.Mounts {
		if m.Absent && r.settings().Scalar("MOUNT_GUARD") != "repair" {
			return cli.WithHint(fmt.Errorf("cannot protect %s, which does not exist, and which you may not make (%s)", cli.Quote(m.Path), r.Plan.Causes[m.Path].Text),
				"MOUNT_GUARD=repair protects it when it comes; or take it out of the configuration")
		}
	}
	return nil
}

// registered runs f with a folder for the session in the registry, and takes the
// session away when f returns, with what was made for it on the host.
func (r *run) registered(f func(here session.Here) (int, error)) (code int, err error) {
	here, err := session.Place()
	if err != nil {
		return 0, err
	}
	live, errs := session.Sweep(r.User) // before the plan: it takes places away at which dead sessions mounted
	for _, err := range errs {
		r.warn(err.Error())
	}
	session.CloseAll(live)
	if r.reg, err = session.Primary(r.User); err != nil {
		return 0, cli.WithHint(fmt.Errorf("cannot use the registry of sessions: %w", err), "the folder has to be yours alone: chmod 700 it")
	}
	defer r.reg.Close()
	r.others, _ = session.Existing(r.User)
	r.others = slices.DeleteFunc(r.others, func(g *session.Registry) bool { return g.Path == r.reg.Path })
	bwrap.Catch() // from here on there is something to take away again
	if r.id, err = r.reg.Begin(here); err != nil {
		return 0, fmt.Errorf("cannot register the session: %w", err)
	}
	code, err = f(here)
	if r.guard != nil {
		r.guard.Kill() // which takes as long as what follows
	}
	if e := r.reg.End(r.others, r.id); e != nil && err == nil {
		r.warn(fmt.Sprintf("cannot take session %s off the registry: %v", r.id, e))
	}
	if r.guard != nil {
		r.guard.End()
	}
	return code, err
}

// claim makes what the session needs on the host: folders that the user asked for,
// and the places at which something is mounted.
func (r *run) claim(here session.Here, plan *mountplan.Plan) (made []string, err error) {
	if err := r.prepare(); err != nil {
		return nil, err
	}
	return r.reg.Claim(r.others, r.id, here, plan)
}

// startGuard starts the guard, which gets ready while the plan is made.
func (r *run) startGuard() error {
	path, err := cli.Helper("mount-guard")
	if err == nil {
		r.guard, err = keeper.Start(path, r.reg.File(r.id))
	}
	return err
}

// session starts everything, writes the record, lets the command run and waits.
func (r *run) session(spec bwrap.Spec, here session.Here, made []string) (int, error) {
	spec.Before = r.guard.Expect
	var rec session.Record
	var publish func() error
	spec.Meanwhile = func(s *bwrap.Session) (err error) {
		if r.shared, err = anyShared(); err != nil {
			return err
		}
		if rec, err = r.record(s, here, made); err != nil {
			return err
		}
		if publish, err = r.reg.Stage(rec); err != nil {
			return fmt.Errorf("cannot write the session record: %w", err)
		}
		return r.guard.Prepare()
	}
	s, err := bwrap.Start(spec, r.waiting)
	if err != nil {
		return 0, err
	}
	if err := r.complete(s, rec, publish, spec.Env); err != nil {
		s.Kill()
		stopped := bwrap.Interruption() // which may be why
		s.Wait()
		if stopped != nil {
			err = stopped
		}
		return 0, err
	}
	return s.Wait(), nil
}

// record describes the session.
func (r *run) record(s *bwrap.Session, here session.Here, made []string) (session.Record, error) {
	rec := session.Record{
		ID: r.id, Version: cli.Version, Host: here.Host, Boot: here.Boot, PIDNS: here.PIDNS, UID: r.User.UID,
		Backend: "bwrap", Project: r.Project, Command: display(r.req.Command), Started: time.Now(), MountNS: s.MountNS,
		ConfigDir: r.Config.ConfigDir, Conf: r.Config.ConfFile, HomeAccess: r.Config.HomeAccess,
		Settings: r.settings().LaunchSettings(), Mounts: r.Plan.Mounts, Made: made,
	}
	var err error
	if rec.Launcher, err = session.Self(); err != nil {
		return rec, err
	}
	if rec.Sandbox, err = session.ProcOf(s.InitPID); err != nil {
		return rec, err
	}
	if r.settings().Scalar("MOUNT_GUARD") != "off" {
		if rec.Guard, err = session.ProcOf(r.guard.PID); err != nil {
			return rec, err
		}
	}
	if r.chaperon != nil {
		rec.Chaperon, err = session.ProcOf(r.chaperon.PID)
	}
	return rec, err
}

// complete does what remains when bwrap's mounts are in place, and lets the command
// run. publish puts the record where it counts.
func (r *run) complete(s *bwrap.Session, rec session.Record, publish func() error, environ []string) error {
	if err := r.private(rec); err != nil {
		return err
	}
	if err := r.mountLate(rec); err != nil {
		return err
	}
	if err := publish(); err != nil {
		return fmt.Errorf("cannot write the session record: %w", err)
	}
	if err := r.guard.Watch(s.InitPidfd); err != nil {
		return err
	}
	if err := verify(s.InitPID, r.Plan.Mounts); err != nil { // while the guard takes its look
		return err
	}
	if err := r.guard.Watching(); err != nil {
		return err
	}
	if err := r.serveSlurm(s.InitPID, environ); err != nil {
		return err
	}
	bwrap.Ignore()
	r.banner()
	return s.Go()
}

// spec makes the plan; it is what bwrap is to be started from.
func (r *run) spec(path string) (bwrap.Spec, error) {
	s := r.settings()
	if err := r.plan(); err != nil {
		return bwrap.Spec{}, err
	}
	first, late := mountplan.Split(r.Plan.Mounts)
	r.late = late
	spec := bwrap.Spec{Bwrap: path, Mounts: first, Command: r.req.Command, Chdir: r.workdir(),
		PrivateIPC: s.Bool("PRIVATE_IPC"), Hint: r.hint(), NProc: s.Scalar("SANDBOX_NPROC_LIMIT")}
	if r.User.UID == 0 {
		spec.ProcReadOnly = bwrap.RootProc()
	}
	var err error
	if spec.Init, err = cli.Self(); err != nil {
		return spec, err
	}
	if spec.IsolateNet, err = r.isolateNet(); err != nil {
		return spec, err
	}
	if spec.Seccomp, err = seccomp.Program(seccomp.Options{Nested: s.Bool("NESTED_SANDBOX")}); err != nil {
		return spec, err
	}
	if abi, err := landlock.ABI(); !spec.IsolateNet && (err != nil || abi < landlock.ScopesABI) {
		r.warn("abstract unix sockets (X11, D-Bus, container runtimes) and processes outside can be reached: the kernel's landlock has no scopes (Linux 6.12); NETWORK_FILTER_MODE=isolated closes the sockets")
	}
	spec.Env = r.environ("bwrap")
	return spec, nil
}

// environ is the environment of a session, scrubbed.
func (r *run) environ(backend string) []string {
	env, removed := environ.Filter(os.Environ(), r.settings())
	for _, a := range r.Config.Agents {
		if a.Starts(r.req.Command[0]) && !a.Suppressed(r.settings().Strings("SUPPRESS_AGENT_WARNINGS")) {
			if w := a.Warning(r.User.Home, removed); w != "" {
				r.warn(w)
			}
		}
	}
	env = agents.Environ(env, r.Config.Agents, r.User.Home)
	if r.Chaperon {
		env = slurmPath(env)
	}
	return append(env, "SANDBOX_ACTIVE=1", "SANDBOX_BACKEND="+backend, "SANDBOX_PROJECT_DIR="+r.Project)
}

// hint says what to do where the sandbox has no such command; empty for the general
// hint.
func (r *run) hint() string {
	name := r.req.Command[0]
	path, err := execpath.Look(name, os.Getenv("PATH"))
	near := cli.Nearest(name, r.req.Subcommands)
	switch {
	case err == nil:
		return fmt.Sprintf("it is outside, at %s, which the sandbox does not show: READONLY_MOUNTS+=(%s) in the configuration shows it", cli.Quote(path), cli.Quote(filepath.Dir(path)))
	case near != "":
		return fmt.Sprintf("did you mean agent-sandbox %s?", near)
	case !strings.Contains(name, "/"):
		return "it is not in PATH outside either: install it, or give its path"
	}
	return ""
}

// workdir is the caller's folder where it lies in the project, else the project.
func (r *run) workdir() string {
	if wd, err := layout.Physical(""); err == nil && mountplan.Under(wd, r.Project) {
		return wd
	}
	return r.Project
}

// isolateNet resolves the network mode. The modes filtered and proxied cannot be
// had: NETWORK_FILTER_FALLBACK says what happens then.
func (r *run) isolateNet() (bool, error) {
	mode := r.settings().Scalar("NETWORK_FILTER_MODE")
	switch mode {
	case "open":
		return false, nil
	case "isolated":
		return true, nil
	}
	switch r.settings().Scalar("NETWORK_FILTER_FALLBACK") {
	case "open":
		r.warn(fmt.Sprintf("NETWORK_FILTER_MODE=%s cannot be had: the network is open (NETWORK_FILTER_FALLBACK=open)", mode))
		return false, nil
	case "stricter":
		r.warn(fmt.Sprintf("NETWORK_FILTER_MODE=%s cannot be had: the network is isolated (NETWORK_FILTER_FALLBACK=stricter)", mode))
		return true, nil
	}
	return false, cli.WithHint(fmt.Errorf("NETWORK_FILTER_MODE=%s cannot be had in this version", mode),
		"set NETWORK_FILTER_MODE to open or isolated, or NETWORK_FILTER_FALLBACK to stricter or open")
}

// writeData makes the files that are shown inside.
func (r *run) writeData() error {
	if err := r.reg.WriteData(r.id, "empty", nil, 0o444); err != nil {
		return err
	}
	for _, m := range r.Plan.Mounts {
		if m.Kind == mountplan.Data && m.Mode != mountplan.DataCopy {
			perm := uint32(0o444)
			if m.Mode == mountplan.DataRW {
				perm = 0o600
			}
			if err := r.reg.WriteData(r.id, fmt.Sprint(m.N), m.Content, perm); err != nil {
				return err
			}
		}
	}
	return nil
}

// prepare makes what the plan needs on the host: the folders that the user asked
// for, an agent's state where its profile says so.
func (r *run) prepare() error {
	for _, dir := range r.Plan.Create {
		if err := host.MakeFolder(dir); err != nil {
			return fmt.Errorf("cannot make a folder of HOME_WRITABLE: %w", err)
		}
	}
	for _, a := range r.Config.Agents {
		// Whatever the command is: the agent may be started by it, and once it has a
		// state of its own nothing is carried any more.
		if _, err := a.CarryOver(r.User.Home); err != nil {
			r.warn(fmt.Sprintf("%s starts without its state of outside: %v", a.Name, err))
		}
	}
	return nil
}

// private takes the session's mounts out of the host's propagation, so that what
// the host mounts later does not arrive inside, writable, below a path that the
// plan shows read-only. Where the host shares none of its mounts nothing arrives.
func (r *run) private(rec session.Record) error {
	if !r.shared {
		return nil
	}
	op := mountop.Op{Do: mountop.Private, Path: "/", Skip: r.settings().Strings("AUTOMOUNT_ROOTS")}
	return mountop.All(rec.Target(), []mountop.Op{op}, privateTimeout)
}

// anyShared says whether the host shares one of its mounts.
func anyShared() (bool, error) {
	fs, err := host.NewFS()
	if err != nil {
		return false, err
	}
	mounts, _ := fs.Mounts()
	return slices.ContainsFunc(mounts, func(m mountinfo.Mount) bool { return m.Shared }), nil
}

// mountLate makes the mounts of a long plan that bwrap was not given.
func (r *run) mountLate(rec session.Record) error {
	if len(r.late) == 0 {
		return nil
	}
	var ops []mountop.Op
	for _, m := range r.late {
		ops = append(ops, mountop.Op{Do: string(m.Kind), Path: m.Path})
	}
	return mountop.All(rec.Target(), ops, lateTimeout)
}

// lateTimeout bounds that: 10,000 mounts take seconds.
const lateTimeout = 2 * time.Minute

// privateTimeout bounds the step between start and command; it takes milliseconds.
const privateTimeout = 30 * time.Second

// banner tells a person at a terminal what the session may do.
func (r *run) banner() {
	if r.settings().Bool("SANDBOX_QUIET") {
		return
	}
	s := r.settings()
	fmt.Fprintf(r.p.W, "%s: session %s: writable %s, home %s, network %s\n", r.p.Name, r.id, cli.Quote(r.Project), s.Scalar("HOME_ACCESS"), s.Scalar("NETWORK_FILTER_MODE"))
	if len(r.Config.Files) == 0 {
		r.p.Hint("built-in defaults are in use; put your own settings in " + cli.Quote(filepath.Join(r.Config.ConfigDir, "sandbox.conf")))
	}
}

// maxDisplay is the length in bytes to which a command is cut in a record.
const maxDisplay = 1000

func display(command []string) string {
	s := strings.Join(command, " ")
	if len(s) <= maxDisplay {
		return s
	}
	cut := maxDisplay
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
