package slurm

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// session is a bash in a real session of the client's, with a chaperon.
func (c *client) session() *harness.Shell {
	c.T.Helper()
	return harness.NewShell(c.T, c.Command("agent-sandbox", "--", "bash", "--norc", "-s"))
}

// sbatch submits from inside a session and returns the job's number.
func sbatch(t *testing.T, sh *harness.Shell, command string) string {
	t.Helper()
	m := regexp.MustCompile(`\ASubmitted batch job ([0-9]+)\z`).FindStringSubmatch(sh.Sh(command))
	if m == nil {
		t.Fatalf("%s: %s", command, sh.Sh(command))
	}
	return m[1]
}

func TestASessionUsesSlurmAsPlainly(t *testing.T) {
	c := newClient(t)
	c.Write(".ssh/id_ed25519", "PRIVATE")
	c.Write("other/file", "old")
	c.Write("proj/job.sh", "#!/bin/bash\n#SBATCH -J inside -o job.out\ncat ~/.ssh/id_ed25519\necho new >~/other/file\necho \"args=$* active=$SANDBOX_ACTIVE $KEPT\"\n")
	c.Env = append(c.Env, "KEPT=kept")
	plain := c.submitPlain("-H", "--wrap=true")
	o := newClient(t)
	other := o.submitPlain("-H", "--wrap=true")
	sh := c.session()

	// Scripts in every way.
	file := sbatch(t, sh, "sbatch job.sh a 'b  c'")
	wrap := sbatch(t, sh, "sbatch --wrap 'echo wrapped'")
	stdin := sbatch(t, sh, "printf '#!/bin/sh\\necho stdin\\n' | sbatch")
	array := sbatch(t, sh, "sbatch --array=1-2 --wrap 'echo task $SLURM_ARRAY_TASK_ID'")
	for _, j := range []string{file, wrap, stdin, array} {
		c.ended(j)
	}
	out := c.read("job.out")
	contains(t, "the job's output", out, "args=a b  c active=1 kept\n")
	if strings.Contains(out, "PRIVATE") || c.readHome("other/file") != "old" {
		t.Errorf("the job was not in the sandbox: %q", out)
	}
	want(t, "wrap", c.read("slurm-"+wrap+".out"), "wrapped\n")
	want(t, "stdin", c.read("slurm-"+stdin+".out"), "stdin\n")
	want(t, "array", c.read("slurm-"+array+"_2.out"), "task 2\n")

	// Who is seen, and cancelled.
	run := sbatch(t, sh, "sbatch --wrap 'sleep 600'")
	harness.Eventually(t, "a running job", func() bool { return c.state(run) == "RUNNING" })
	want(t, "squeue", sh.Sh("squeue -h -o '%A %T %u'"), run+" RUNNING "+c.Name)
	for _, j := range []string{plain, other} {
		want(t, "squeue of a job out of scope", sh.Sh("squeue -h -j "+j+"; echo $?"), "slurm_load_jobs error: Invalid job id specified\n1")
		sh.Sh("scancel " + j)
	}
	want(t, "scancel", sh.Sh("scancel "+run+"; scancel -u $USER; echo $?"), "0")
	c.ended(run)
	want(t, "the jobs out of scope", c.state(plain)+c.state(other), "PENDINGPENDING")

	// Exit statuses.
	for command, code := range map[string]string{
		"sbatch --wait --quiet --wrap 'exit 9'": "9", "srun --quiet sh -c 'exit 7'": "7", "sbatch --bogus": "255", "sbatch nothere": "1", "squeue --bogus": "1",
		"sinfo": "0", "sacct": "0", "salloc": "1", "scontrol show job 999999": "1", "sbatch --uid=0 --wrap true": "255", "sbatch -D / --wrap true": "255",
	} {
		want(t, command, sh.Sh(command+" >/dev/null 2>&1; echo $?"), code)
	}
	want(t, "srun", sh.Sh("srun --quiet sh -c 'echo $SANDBOX_ACTIVE; cat ~/.ssh/id_ed25519 2>/dev/null; true'"), "1")
}

func (c *client) readHome(name string) string { return c.read("../" + name) }

func TestASessionSeesNothingOfSlurmsOwn(t *testing.T) {
	c := newClient(t)
	sh := c.session()
	want(t, "the folder of the configuration and munge's socket", sh.Sh("ls "+c.n.Dir+" "+c.n.Dir+"/munge/socket /run/munge 2>&1 | grep -v 'No such'"), "")
	out := sh.Sh("type -a sbatch; find /usr/bin /usr/sbin -name 'munge' -o -name 'slurmctld' | xargs -r ls -l; SLURM_CONF=" + c.n.Conf + " /usr/bin/sbatch --wrap 'touch " + c.Home + "/escaped'; cat /etc/slurm/slurm.conf")
	if exists(c.Home + "/escaped") {
		t.Errorf("the real sbatch works: %s", out)
	}
}

// What is outside of a session, and what it has masked, is answered alike whether it
// is there or not.
func TestASessionDoesNotLearnWhatIsOutside(t *testing.T) {
	c := newClient(t)
	c.Write(".ssh/id_ed25519", "PRIVATE")
	c.Mkdir(c.Home + "/other/dir")
	for _, config := range []string{"", "HOME_ACCESS=write\n"} {
		c.Config(config)
		sh := c.session()
		sh.Sh("ln -sfn ~/.ssh link")
		for _, place := range []string{"~/.ssh/", "/proc/1/", "link/", "../.ssh/"} {
			ask := func(name string) string {
				return sh.Sh("sbatch -o " + place + name + " --wrap true 2>&1; sbatch -i " + place + name + " --wrap true 2>&1; echo $?")
			}
			want := strings.ReplaceAll(ask("missing"), "missing", "N")
			contains(t, place, want, "not where this session may write", "neither in the project nor in a writable path")
			for _, name := range []string{"id_ed25519", "id_ed25519/x", "missing/x", ".", "root", "cwd/x"} {
				if got := strings.ReplaceAll(ask(name), place+name, place+"N"); strings.ReplaceAll(got, strings.Replace(place, "~", c.Home, 1)+name, strings.Replace(place, "~", c.Home, 1)+"N") != want {
					t.Errorf("%q: %s%s: %s\nanother: %s", config, place, name, got, want)
				}
			}
		}
		sh.Exit()
	}
	want(t, "jobs", c.ids(), "")
}

// At any level: of a script the log has the size.
func TestTheSessionsLogHasNoScript(t *testing.T) {
	c := newClient(t)
	c.Config("CHAPERON_LOG_LEVEL=debug\n")
	c.Write("proj/job.sh", "#!/bin/sh\n# s3cret\n")
	sh := c.session()
	for _, command := range []string{"sbatch -H --wrap 's3cret one'", "sbatch -H --wrap='s3cret'", "sbatch -H job.sh", "sbatch -H <job.sh"} {
		sbatch(t, sh, command)
	}
	sh.Sh("sbatch --wrap 's3cret' --uid=0; sbatch --wrap '#SBATCH --s3cret=0'")
	sh.Exit()
	logs, _ := filepath.Glob(c.Home + "/.local/state/agent-sandbox/log/chaperon/*.log")
	if len(logs) != 1 {
		t.Fatalf("%q", logs)
	}
	log, _ := os.ReadFile(logs[0])
	if strings.Contains(string(log), "s3cret") || strings.Count(string(log), `running ["sbatch"`) != 4 || !strings.Contains(string(log), `"--wrap" (script of 10 bytes)`) {
		t.Errorf("%s", log)
	}
}

func TestAReloadChangesWhatSbatchMayWrite(t *testing.T) {
	c := newClient(t)
	c.Mkdir(c.Home + "/results")
	c.Config("HOME_ACCESS=read\n") // so that the folder is visible, as a reload needs it
	sh := c.session()
	submit := "sbatch --output=" + c.Home + "/results/out --wrap 'echo result' 2>&1"
	contains(t, "before", sh.Sh(submit), "not where this session may write")
	reload := func() {
		t.Helper()
		if r := c.Run("agent-sandbox", "reload", "--project", c.Project); r.Code != 0 {
			t.Fatalf("%+v", r)
		}
	}
	c.Config("HOME_ACCESS=read\nEXTRA_WRITABLE_PATHS+=(" + c.Home + "/results)\n")
	reload()
	c.ended(sbatch(t, sh, submit))
	want(t, "the output", c.readHome("results/out"), "result\n")
	c.Config("HOME_ACCESS=read\n")
	reload()
	contains(t, "after", sh.Sh(submit), "not where this session may write")
}

func TestAJobUsesSlurmItself(t *testing.T) {
	c := newClient(t)
	sh := c.session()
	c.Write("proj/job.sh", "#!/bin/sh\n#SBATCH -n2 -o out\nsrun --quiet sh -c 'echo step $SLURM_JOB_ID $SLURM_PROCID $SANDBOX_ACTIVE' | sort\nsbatch --parsable -o nested --wrap 'echo $SANDBOX_ACTIVE'\n")
	id := sbatch(t, sh, "sbatch job.sh")
	c.ended(id)
	out := strings.Split(strings.TrimSpace(c.read("out")), "\n")
	if len(out) != 3 || out[0] != "step "+id+" 0 1" || out[1] != "step "+id+" 1 1" {
		t.Fatalf("%q %s", out, c.said(id))
	}
	c.ended(out[2])
	want(t, "the nested job", c.read("nested"), "1\n")
}

// TestFlagsFromInside tries, in a session, every flag that Slurm's own help names
// and the manual of the chaperon does not, in each spelling.
func TestFlagsFromInside(t *testing.T) {
	c := newClient(t)
	sh := c.session()
	page, err := os.ReadFile(harness.Root() + "/man/chaperon.8")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"sbatch", "srun", "squeue", "scancel", "sinfo", "sacct", "sstat", "sprio", "sshare", "sdiag"} {
		_, allowed, ok := strings.Cut(string(page), ".It Ic "+command+"\n")
		if !ok {
			t.Fatalf("the manual has nothing of %s", command)
		}
		allowed, _, _ = strings.Cut(allowed, ".\n")
		known := map[string]bool{}
		for _, l := range strings.Split(strings.ReplaceAll(allowed, `\-`, "-"), ",\n") {
			n, _, _ := strings.Cut(l, " ")
			known["--"+n] = true
		}
		tried := 0
		for _, m := range regexp.MustCompile(`(?m)^\s*(?:-([A-Za-z]),?(?: or)? +)?(--[A-Za-z][A-Za-z0-9-]*)`).FindAllStringSubmatch(c.plain(command, "--help").Stdout, -1) {
			if known[m[2]] || m[2] == "--job" || m[2] == "--step" || m[2] == "--cluster" || command+m[2] == "sacct--uid" {
				continue
			}
			tried++
			spellings := []string{m[2], m[2] + "=0", m[2] + " 0", m[2][:len(m[2])-1] + "=0"}
			if m[1] != "" {
				spellings = append(spellings, "-"+m[1], "-"+m[1]+"0", "-V"+m[1]+" 0")
			}
			for _, s := range spellings {
				tail := ""
				if command == "sbatch" {
					tail = " --hold --wrap true"
				}
				if out := sh.Sh(command + " " + s + tail + " </dev/null; echo \"exit $?\""); strings.HasSuffix(out, "exit 0") || !strings.Contains(out, command+": error: ") || !strings.Contains(out, "in the sandbox") {
					t.Errorf("%s %s: %s", command, s, out)
				}
			}
			if command == "sbatch" {
				if out := sh.Sh("printf '#!/bin/sh\\n#SBATCH -H\\t" + m[2] + "=0 # x\\ntrue\\n' | sbatch; echo \"exit $?\""); !strings.Contains(out, "line 2 of the script") || !strings.HasSuffix(out, "exit 255") {
					t.Errorf("%s: %s", m[2], out)
				}
			}
		}
		if tried == 0 {
			t.Errorf("%s: no flag was tried", command)
		}
		t.Logf("%s: %d flags refused", command, tried)
	}
	want(t, "jobs", c.ids(), "")
}

// TestAJobDoesNotWriteItsLaunchersLog: the file of what the launcher says lies
// outside of what a session may write, and is open in the job's first processes.
func TestAJobDoesNotWriteItsLaunchersLog(t *testing.T) {
	c := newClient(t)
	for _, tool := range []string{"sed", "mktemp", "chmod"} {
		c.Write("proj/bin/"+tool, "#!/bin/sh\necho evil >&2\necho evil >>/proc/self/fd/2\nexec /usr/bin/"+tool+" \"$@\"\n")
		os.Chmod(c.Project+"/bin/"+tool, 0o755)
	}
	c.Config("SANDBOX_ENV+=(PATH=" + c.Project + "/bin:/usr/bin:/bin)\n")
	sh := c.session()
	id := sbatch(t, sh, "sbatch -o o --wrap 'for p in /proc/[0-9]*/fd/*; do echo evil >>$p; done; echo done'")
	c.ended(id)
	contains(t, "the output", c.read("o"), "evil", "done\n")
	want(t, "the launcher's log", c.said(id), "")
}

// Ctrl-C ends the step, and so does the end of the session.
func TestAnInterruptedStepEnds(t *testing.T) {
	c := newClient(t)
	running := func() string {
		return strings.TrimSpace(c.n.Root("squeue", "--noheader", "--user="+c.Name, "--states=RUNNING,COMPLETING", "--format=%A"))
	}
	sh := c.session()
	for _, end := range []struct {
		name string
		do   func()
	}{
		{"an interrupt", func() { sh.Sh("kill -INT $(cat pid)") }},
		{"the end of the session", func() { sh.Exit() }},
	} {
		// A job in the background of a shell ignores an interrupt.
		sh.Sh(`python3 -c 'import os, signal
if os.fork() == 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL); os.setsid()
    open("pid", "w").write(str(os.getpid()))
    os.execvp("srun", ["srun", "--quiet", "sleep", "600"])' >/dev/null 2>&1`)
		harness.Eventually(t, "a running step", func() bool { return running() != "" })
		end.do()
		harness.Eventually(t, end.name+" ends it", func() bool { return running() == "" })
	}
}
