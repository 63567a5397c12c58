// Package slurm decides what a sandboxed client may ask of Slurm, and asks it
// outside on the client's behalf: an allow-list of flags per command, jobs that
// run in the same sandbox on their node, and only jobs that are in scope.
package slurm

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// A Request is what a client inside the sandbox sent. All of it is hostile.
type Request struct {
	Command   string   // the name it was called by: sbatch, squeue …
	Args      []string // without the name
	Cwd       string   // its working directory, as it says
	Script    []byte   // what it read from standard input or the script file
	HasScript bool     // there is a Script, be it empty
}

// A Session is what the chaperon knows of the session it serves. All of it comes
// from outside the sandbox.
type Session struct {
	ID       string   // of the session record
	Project  string   // physical
	Writable []string // folders and files that the session may write, beside the project
	Readonly []string // what lies below the project or a writable path and may not be written
	Masked   []string // what of Readonly shows the session something else than the host has there
	Scope    string   // SLURM_SCOPE
	Launcher string   // path of agent-sandbox on the host
	User     string
	UID      int
	Env      []string // the session's environment as the sandbox has it
	// Bin finds a Slurm command of the host.
	Bin func(command string) (path string, err error)
}

// A Log takes a line of the session's log. Script text never goes there.
type Log = func(level, format string, args ...any)

// Run checks a request, runs the real command outside where it may, and writes
// what the client may see. It returns the command's exit status, which is that
// of the real one; 1 for what is refused, and 255 for flags of sbatch and srun,
// as they have it.
func Run(ctx context.Context, s *Session, r *Request, stdout, stderr io.Writer, log func(level, format string, args ...any)) (exit int) {
	c := &call{ctx, s, r, stdout, stderr, log}
	for _, a := range append([]string{r.Cwd}, r.Args...) {
		if strings.IndexByte(a, 0) >= 0 {
			return c.fail(refuse("", "an argument has a NUL byte"), 1)
		}
	}
	if why, ok := never[r.Command]; ok {
		return c.fail(refuse(why[1], "%s does not work in the sandbox: %s", r.Command, why[0]), 1)
	}
	if err := s.trusted(); err != nil {
		return c.fail(err, 1)
	}
	do, ok := map[string]func(*call) int{
		"sbatch": (*call).sbatch, "srun": (*call).srun, "squeue": (*call).squeue, "scancel": (*call).scancel, "scontrol": (*call).scontrol,
		"sacct": (*call).sacct, "sstat": (*call).sstat, "sinfo": (*call).sinfo, "sprio": (*call).sprio, "sshare": (*call).sshare, "sdiag": (*call).sdiag,
	}[r.Command]
	if !ok {
		return c.fail(refuse("", "there is no command %s in the sandbox", quote(r.Command)), 127)
	}
	return do(c)
}

// parse reads the request's flags. done says that the request is answered.
func (c *call) parse(stop bool) (flags *set, rest []string, done bool, exit int) {
	flags, rest, err := tables[c.r.Command].parse(c.r.Args, stop)
	if err != nil {
		exit = 1
		if c.r.Command == "sbatch" || c.r.Command == "srun" {
			exit = 255
		}
		return nil, nil, true, c.fail(err, exit)
	}
	for _, n := range []string{"help", "usage", "version"} {
		if flags.has(n) {
			return nil, nil, true, c.run(command{name: c.r.Command, args: []string{"--" + n}, stdout: c.stdout, stderr: c.stderr})
		}
	}
	return flags, rest, false, 0
}

// flagsOnly is parse for the commands that take no other words.
func (c *call) flagsOnly() (flags *set, done bool, exit int) {
	flags, rest, done, exit := c.parse(false)
	if !done && len(rest) > 0 {
		return nil, true, c.fail(fmt.Errorf("Unrecognized option: %s", quote(rest[0])), 1)
	}
	return flags, done, exit
}
