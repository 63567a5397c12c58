// Command chaperon-stub is what a sandbox has in place of Slurm's commands: it hands
// its arguments to the session's chaperon and copies the answer. See chaperon-stub(8).
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/slurm"
	"agent-sandbox/internal/sys"
)

const usage = `usage: sbatch|srun|squeue|scancel|scontrol|sacct|sinfo|sstat|sprio|sshare|sdiag [ARG...]

In a sandbox, under the name of one of Slurm's commands: asks the session's
chaperon to run that command on the host, and copies what it prints. Exit status:
the command's own, or 1.

Example:
  sbatch --time=10 job.sh
`

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	name := filepath.Base(args[0])
	p := cli.Printer{Name: name, W: stderr}
	if !slices.Contains(relay.Commands, name) {
		if cli.Common(args[1:], usage, stdout) {
			return cli.OK
		}
		io.WriteString(stderr, usage)
		return cli.Usage
	}
	r := relay.Request{Command: name, Args: args[1:]}
	r.Cwd, _ = syscall.Getwd()
	var err error
	switch name {
	case "sbatch":
		err = addScript(&r, stdin)
	case "srun":
		err = addInput(&r, stdin)
	}
	if err != nil {
		p.Error(fmt.Errorf("error: %w", err)) // as the command has it
		return cli.Failed
	}
	exit, err := relay.Do(r, stdout, stderr)
	if err != nil {
		p.Error(fmt.Errorf("cannot reach Slurm: %w", err))
		if errors.Is(err, os.ErrNotExist) {
			p.Hint("the session has no chaperon: CHAPERON, in agent-sandbox.conf(5)")
		}
		return cli.Failed
	}
	return exit
}

// addScript reads the script that sbatch would: the file that the first argument that
// is no option names, as it is seen from here, or standard input.
func addScript(r *relay.Request, stdin io.Reader) error {
	path, ok := slurm.ScriptArg(r.Args)
	if !ok {
		return nil
	}
	from, what := stdin, "standard input"
	if path != "" {
		f, err := os.Open(path)
		if err != nil {
			return fmt.Errorf("cannot open the batch script: %w", err)
		}
		defer f.Close()
		from, what = f, cli.Quote(path)
	}
	script, err := sys.ReadLimited(from, relay.MaxScript)
	if err != nil {
		return fmt.Errorf("cannot read the batch script from %s: %w", what, err)
	}
	r.Script, r.HasScript = script, true
	return nil
}

// addInput reads what a file on standard input has for srun. A pipe may have no end
// that comes before the command's.
func addInput(r *relay.Request, stdin io.Reader) error {
	f, ok := stdin.(*os.File)
	if !ok {
		return nil
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil
	}
	input, err := sys.ReadLimited(f, relay.MaxScript)
	if err != nil {
		return fmt.Errorf("cannot read standard input: %w", err)
	}
	r.Script, r.HasScript = input, true
	return nil
}
