package slurm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/config"
	"agent-sandbox/internal/environ"
)

// A call is one request being answered.
type call struct {
	ctx    context.Context
	s      *Session
	r      *Request
	stdout io.Writer
	stderr io.Writer
	log    Log
}

// fail writes what is wrong as the command would, and a hint how to mend it.
func (c *call) fail(err error, exit int) int {
	fmt.Fprintf(c.stderr, "%s: error: %v\n", c.r.Command, err)
	var r *refusal
	if errors.As(err, &r) && r.hint != "" {
		fmt.Fprintf(c.stderr, "%s: hint: %s\n", c.r.Command, r.hint)
	}
	c.log("warn", "%s refused: %s", c.r.Command, c.reason(err))
	return exit
}

// options are the variables that set options of Slurm's commands, or tell them
// of a job, by the beginning of their names.
var options = []string{
	"SLURM", "_SLURM", "SPANK_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SCANCEL_", "SCONTROL_", "SACCT_", "SINFO_", "SSTAT_", "SPRIO_", "SSHARE_", "SDIAG_",
	"PMI_", "PMIX_",
}

// plainEnv is the environment of what runs outside. It is a fixed list: a variable
// such as LD_LIBRARY_PATH, with a folder of the project in it or an empty entry, which
// is the working directory, would have the real commands and the job's shell on the
// node load what the agent has put there. SLURM_CONF leads to another Slurm than the
// default (see Session.trusted).
func (c *call) plainEnv() []string {
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8", "USER=" + c.s.User, "LOGNAME=" + c.s.User}
	for _, n := range []string{"SLURM_CONF", "TZ", "HOME"} {
		if v, ok := os.LookupEnv(n); ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// jobEnv is the environment of sbatch and srun, which Slurm gives to what it starts on
// the node. inJob keeps the variables of the job that the session itself runs in.
func (c *call) jobEnv(cwd string, inJob bool) []string {
	env := append(c.plainEnv(), "PWD="+cwd)
	for _, e := range os.Environ() {
		if inJob && ofJob(e) && !strings.HasPrefix(e, "SLURM_CONF=") {
			env = append(env, e)
		}
	}
	return env
}

func ofJob(e string) bool {
	return slices.ContainsFunc(options, func(p string) bool { return strings.HasPrefix(e, p) })
}

// carried are the variables that the launcher on the node has beside those of Slurm.
// They are set by the script that starts it, right before: the launcher is static, and
// nothing else runs outside. They are what the session's own launcher had, less what
// the sandbox's scrubbing took; what configures the launcher is kept in any case, or
// the job would run with another configuration. The session's values are not used:
// SANDBOX_ENV sets them for what runs inside, and the launcher on the node does it again.
func (c *call) carried() []string {
	settings := map[string]bool{"SANDBOX_CONF": true, "XDG_CONFIG_HOME": true}
	for _, v := range config.Vars {
		if v.Env {
			settings[v.Name] = true
		}
	}
	kept := map[string]bool{}
	for _, e := range c.s.Env {
		n, _, _ := strings.Cut(e, "=")
		kept[n] = !ofJob(e)
	}
	var env []string
	for _, e := range os.Environ() {
		n, _, _ := strings.Cut(e, "=")
		if (kept[n] || settings[n]) && variable.MatchString(n) && n != newline && n != "PWD" && !slices.Contains(environ.Own, n) {
			env = append(env, e)
		}
	}
	return env
}

// A command is a real one, run outside.
type command struct {
	name   string
	args   []string
	env    []string
	dir    *os.File // nil: the root folder
	stdin  []byte
	stdout io.Writer
	stderr io.Writer
}

// run runs a real command and returns its exit status as a shell has it. It ends
// with the request, softly first: srun ends its job.
func (c *call) run(x command) int {
	path, err := c.s.Bin(x.name)
	if err != nil {
		return c.fail(fmt.Errorf("cannot find the real command: %w", err), 1)
	}
	cmd := exec.CommandContext(c.ctx, path, x.args...)
	cmd.Args[0] = x.name
	cmd.Env = x.env
	if cmd.Env == nil {
		cmd.Env = c.plainEnv()
	}
	cmd.Dir = "/"
	if x.dir != nil {
		cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", x.dir.Fd())
	}
	if x.stdin != nil {
		cmd.Stdin = bytes.NewReader(x.stdin)
	}
	cmd.Stdout, cmd.Stderr = x.stdout, x.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	c.log("debug", "running %q", append([]string{x.name}, shown(x.args)...))
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		if ws, ok := exit.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			return 128 + int(ws.Signal())
		}
		return exit.ExitCode()
	default:
		return c.fail(fmt.Errorf("cannot run the real command: %w", err), 1)
	}
}

// shown is args for the log: words that may hold a script's text are cut.
func shown(args []string) []string {
	out := slices.Clone(args)
	for i, a := range out {
		if strings.ContainsRune(a, '\n') || len(a) > 256 {
			out[i] = "…"
		}
	}
	return out
}

// maxOutput is the most that is read of a real command whose output is looked
// through before the client sees it.
const maxOutput = 64 << 20

// limited is a buffer that takes no more than maxOutput.
type limited struct {
	bytes.Buffer
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxOutput {
		l.over = true
		return 0, errors.New("too much output")
	}
	return l.Buffer.Write(p)
}

// output runs a real command and returns what it wrote. It is false where it
// wrote too much.
func (c *call) output(name string, args ...string) (stdout, stderr string, exit int) {
	var out, errs limited
	exit = c.run(command{name: name, args: args, stdout: &out, stderr: &errs})
	if out.over || errs.over {
		return "", name + ": error: too much output for the sandbox: ask for less\n", 1
	}
	return out.String(), errs.String(), exit
}
