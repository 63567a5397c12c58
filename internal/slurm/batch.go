package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"agent-sandbox/internal/host"
)

// maxScript is the largest script that Slurm takes as configured by default
// (max_script_size of slurm.conf(5)); what is made of the client's counts.
const maxScript = 4 << 20

func (c *call) sbatch() int {
	flags, rest, done, exit := c.parse(true)
	if done {
		return exit
	}
	script, args := c.r.Script, rest
	name := "sbatch" // as Slurm calls a script from standard input
	if flags.has("wrap") {
		text, _ := flags.take("wrap")
		if len(rest) > 0 {
			return c.fail(errors.New("Script arguments not permitted with --wrap option"), 1)
		}
		name = "wrap"
		script = []byte("#!/bin/sh\n# This script was created by sbatch --wrap.\n\n" + text + "\n")
	} else if len(rest) > 0 {
		name = filepath.Base(rest[0])
		args = rest[1:]
	}
	if err := checkScript(script); err != nil {
		return c.fail(err, 1)
	}
	for _, a := range rest {
		if a == ":" {
			return c.fail(refuse("submit one job after the other, with --dependency", "heterogeneous jobs cannot be submitted from the sandbox"), 255)
		}
	}
	own, pbs, err := scriptFlags(tables["sbatch"], script)
	if err != nil {
		return c.fail(err, 255)
	}
	flags.merge(own)
	if _, ok := flags.take("ignore-pbs"); !ok && len(pbs) > 0 {
		return c.fail(refuse("write it as a #SBATCH line, or give --ignore-pbs", "line %d of the script: lines of other batch systems are not read in the sandbox", pbs[0]), 1)
	}

	dir, j, err := c.job(flags, name)
	if err != nil {
		return c.fail(err, 1)
	}
	defer dir.Close()
	j.args = args
	if j.input == "" {
		j.input = "/dev/null"
	}
	if j.output == "" {
		j.output = "slurm-%j.out"
		if flags.has("array") {
			j.output = "slurm-%A_%a.out"
		}
		if err := c.s.checkFile("output", j.output, j.cwd); err != nil {
			return c.fail(err, 1)
		}
	}
	text := j.script(script)
	if len(text) > maxScript {
		return c.fail(refuse("keep data in a file of the project", "the script is too long: %d bytes of %d", len(text), maxScript), 1)
	}
	// Slurm opens these itself, outside the sandbox: none is a client's path.
	for _, f := range []string{"--input=/dev/null", "--output=" + c.jobLog(), "--open-mode=append", "--export=ALL", "--ignore-pbs"} {
		n, v, set := strings.Cut(f[2:], "=")
		if set {
			flags.put(n, &v)
		} else {
			flags.put(n, nil)
		}
	}
	flags.drop("error")
	c.log("info", "sbatch %q in %q", flags.args(), j.cwd)
	return c.run(command{name: "sbatch", args: flags.args(), env: c.jobEnv(j.cwd, false), dir: dir, stdin: text, stdout: c.stdout, stderr: c.stderr})
}

// checkScript says what Slurm says of a script, before more is done with it.
func checkScript(script []byte) error {
	switch {
	case len(script) == 0:
		return errors.New("Batch script is empty!")
	case len(script) > maxScript:
		return fmt.Errorf("the script is too long: %d bytes of %d", len(script), maxScript)
	case !bytes.HasPrefix(script, []byte("#!")):
		return errors.New("This does not look like a batch script.  The first line must start with #! followed by the path to an interpreter. For instance: #!/bin/sh")
	case bytes.IndexByte(script, 0) >= 0:
		return errors.New("The Slurm controller does not allow scripts that contain a NULL character '\\0'.")
	case bytes.Contains(script, []byte("\r\n")):
		return errors.New("Batch script contains DOS line breaks (\\r\\n) instead of expected UNIX line breaks (\\n).")
	}
	return nil
}

// job takes from flags what is not Slurm's to do, checks it, and puts in what
// every job has. The folder is the one to start the real command in.
func (c *call) job(flags *set, name string) (dir *os.File, j *job, err error) {
	dir, cwd, err := c.s.folder(c.r.Cwd)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			dir.Close()
		}
	}()
	j = &job{session: c.s, cwd: cwd, env: c.carried()}
	for _, f := range []struct {
		name string
		to   *string
	}{{"input", &j.input}, {"output", &j.output}, {"error", &j.error}} {
		v, given := flags.take(f.name)
		if !given {
			continue
		}
		if err := c.s.checkFile(f.name, v, cwd); err != nil {
			return dir, nil, err
		}
		*f.to = v
	}
	if v, given := flags.take("open-mode"); given {
		j.append = strings.EqualFold(v, "append")
	}
	if v, given := flags.take("export"); given {
		if j.export, err = exports(v); err != nil {
			return dir, nil, err
		}
	}
	if v, given := flags.take("mail-user"); given && v != c.s.User {
		return dir, nil, refuse("leave it out: mail goes to you", "option \"--mail-user\": mail to %s is not sent from the sandbox", quote(v))
	}
	if v := flags.get("dependency"); v != "" {
		sc, err := c.scope()
		if err != nil {
			return dir, nil, err
		}
		for _, m := range dependencyJobs.FindAllStringSubmatch(v, -1) {
			if _, out := sc.pick(m[1:2]); len(out) > 0 {
				return dir, nil, refuse("squeue --states=all lists the jobs that can be named", "option \"--dependency\": no job %s of this sandbox", m[1])
			}
		}
	}
	comment, _ := flags.take("comment")
	t, err := c.s.tag(comment)
	if err != nil {
		return dir, nil, err
	}
	flags.put("comment", &t)
	if !flags.has("job-name") {
		if err := plain(name); err != nil {
			return dir, nil, fmt.Errorf("the script's name: %v", err)
		}
		flags.put("job-name", &name)
	}
	return dir, j, nil
}

// jobLog is the pattern of the file that has what the launcher says on the node
// before the client's script runs: below the state folder, which no session
// sees. Old ones are removed on the way.
func (c *call) jobLog() string {
	u, err := host.Current()
	if err != nil {
		return "/dev/null"
	}
	dir := u.StateHome + "/agent-sandbox/log"
	// Slurm takes a backslash as the end of patterns.
	if strings.ContainsAny(dir, "\\\n") {
		return "/dev/null"
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		c.log("warn", "cannot make the folder of job logs: %v", err)
		return "/dev/null"
	}
	if old, err := filepath.Glob(globQuote.Replace(dir) + "/slurm-*.log"); err == nil {
		for _, f := range old {
			if fi, err := os.Lstat(f); err == nil && (time.Since(fi.ModTime()) > keepLogs || fi.Size() == 0 && time.Since(fi.ModTime()) > keepEmpty) {
				os.Remove(f)
			}
		}
	}
	return strings.ReplaceAll(dir, "%", "%%") + "/slurm-%j.log"
}

var globQuote = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`)

// How long logs of jobs are kept; empty ones, of jobs that may still wait or run
// and open them again, shorter.
const (
	keepLogs  = 7 * 24 * time.Hour
	keepEmpty = 24 * time.Hour
)
