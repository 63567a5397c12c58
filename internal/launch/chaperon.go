package launch

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/config"
	"agent-sandbox/internal/helper"
	"agent-sandbox/internal/quickstart"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/sys"
)

// startChaperon makes the folder with the request FIFO and starts the Slurm proxy,
// where one is to run. It serves once serveSlurm has told it of the sandbox.
func (r *run) startChaperon() error {
	if !r.Chaperon {
		return nil
	}
	dir, err := r.reg.OpenChaperonDir(r.id, true)
	if err == nil {
		err = sys.MkfifoAt(dir, relay.Name, 0o600)
		dir.Close()
	}
	if err != nil {
		return fmt.Errorf("cannot make the FIFO of the Slurm proxy: %w", err)
	}
	path, err := cli.Helper("chaperon")
	if err != nil {
		return cli.WithHint(fmt.Errorf("cannot have the Slurm proxy: %w", err), "CHAPERON=off goes without; Slurm is then out of reach of the sandbox")
	}
	self, err := cli.Self()
	if err != nil {
		return err
	}
	quickstart.Changed().Without(func() {
		r.chaperon, err = helper.Start(os.Environ(), path, r.reg.File(r.id), self)
	})
	return err
}

// serveSlurm lets the proxy serve: it gets the session's environment, and the folder
// of the sandbox in which clients make their FIFOs, by a descriptor that was opened
// before the command runs.
func (r *run) serveSlurm(init int, environ []string) error {
	if r.chaperon == nil {
		return nil
	}
	root, err := sys.OpenLink(fmt.Sprintf("/proc/%d/root", init))
	if err != nil {
		return fmt.Errorf("cannot look into the sandbox: %w", err)
	}
	defer syscall.Close(root)
	answers, err := sys.OpenInRoot(root, relay.Answers)
	if err != nil {
		return fmt.Errorf("cannot look into the sandbox: %w", &os.PathError{Op: "open", Path: relay.Answers, Err: err})
	}
	defer syscall.Close(answers)
	env, err := sys.Memfd("environment", []byte(strings.Join(environ, "\x00")))
	if err != nil {
		return err
	}
	defer env.Close()
	if err := r.chaperon.Ask(helper.Ready, []byte{helper.Serve}, answers, int(env.Fd())); err != nil {
		return cli.WithHint(fmt.Errorf("the Slurm proxy does not serve: %w", err), "CHAPERON=off goes without; Slurm is then out of reach of the sandbox")
	}
	return nil
}

func (r *run) endChaperon() {
	if r.chaperon != nil {
		r.chaperon.End()
	}
}

// slurmPath puts the folder with the proxy's client first in PATH.
func slurmPath(env []string) []string {
	for i, e := range env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			env = slices.Clone(env)
			env[i] = "PATH=" + relay.Bin + ":" + p
			return env
		}
	}
	return append(env, "PATH="+relay.Bin+":/usr/local/bin:/usr/bin:/bin")
}

// withoutChaperon is for a backend that has no place for the Slurm proxy: it refuses
// where that was asked for, and warns where it would have run.
func (r *run) withoutChaperon(backend string) error {
	if r.settings().Scalar("CHAPERON") == "on" {
		return cli.WithHint(fmt.Errorf("CHAPERON=on cannot be had with %s: the Slurm proxy needs bwrap", backend), "agent-sandbox check says why bwrap does not work here")
	}
	if !r.Chaperon {
		return nil
	}
	switch backend {
	case "landlock":
		r.warn("landlock: no Slurm proxy, and nothing keeps the sandbox from Slurm: landlock does not close munge's socket, so it can submit jobs that run outside of any sandbox")
	default:
		r.warn(backend + ": no Slurm proxy: Slurm is out of reach of the sandbox")
	}
	r.settings().Set("CHAPERON", []config.Entry{{Text: "off"}}) // for the plan, which comes after this
	return nil
}
