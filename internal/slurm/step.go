package slurm

import (
	"errors"
	"path/filepath"
	"strings"
)

// maxWord is the longest word of a command line that Linux takes (MAX_ARG_STRLEN,
// less what the shell's text around the client's words needs).
const maxWord = 120 << 10

func (c *call) srun() int {
	flags, rest, done, exit := c.parse(true)
	if done {
		return exit
	}
	if len(rest) == 0 {
		return c.fail(errors.New("No command given to execute."), 1)
	}
	// Inside a job a step is that job's, as the launcher's own environment says.
	var in string
	for _, e := range c.s.Env {
		if v, ok := strings.CutPrefix(e, "SLURM_JOB_ID="); ok {
			in = v
		}
	}
	if id := flags.get("jobid"); id != "" && id != in {
		sc, err := c.scope()
		if err != nil {
			return c.fail(err, 1)
		}
		if _, out := sc.pick([]string{id}); len(out) > 0 {
			return c.fail(refuse(foreign, "Unable to confirm allocation for job %s: Invalid job id specified", id), 1)
		}
		in = ""
	} else if id == "" && in != "" {
		if !jobNumber.MatchString(in) {
			return c.fail(errors.New("the session's SLURM_JOB_ID is no number"), 1)
		}
		flags.put("jobid", &in)
	}
	switch flags.get("output") {
	case "none":
		null := "/dev/null"
		flags.put("output", &null)
	case "all":
		flags.drop("output")
	}
	if flags.get("input") == "none" {
		null := "/dev/null"
		flags.put("input", &null)
	}
	dir, j, err := c.job(flags, filepath.Base(rest[0]))
	if err != nil {
		return c.fail(err, 1)
	}
	defer dir.Close()
	j.step, j.args = true, rest
	words := j.command()
	for _, w := range words {
		if len(w) > maxWord {
			return c.fail(refuse("keep data in a file of the project", "the command line is too long"), 1)
		}
	}
	stdin := c.r.Script
	if !c.r.HasScript || j.input != "" {
		stdin = nil
		null := "none"
		flags.put("input", &null)
	}
	mpi, all := "none", "ALL"
	flags.put("mpi", &mpi)
	flags.put("export", &all)
	c.log("info", "srun %q in %q", flags.args(), j.cwd)
	return c.run(command{name: "srun", args: append(append(flags.args(), "--"), words...), env: c.jobEnv(j.cwd, in != ""), dir: dir,
		stdin: stdin, stdout: c.stdout, stderr: c.stderr})
}
