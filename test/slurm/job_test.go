package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// want fails unless the text is as wanted.
func want(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %q, want %q", what, got, want)
	}
}

func contains(t *testing.T, what, got string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(got, p) {
			t.Errorf("%s lacks %q: %q", what, p, got)
		}
	}
}

func TestAJobRunsInTheSandbox(t *testing.T) {
	c := newClient(t)
	c.Write(".ssh/id_ed25519", "PRIVATE")
	c.Write("other/file", "old")
	c.Write("proj/job.sh", `#!/bin/bash
cat ~/.ssh/id_ed25519
echo new > ~/other/file
echo outside > `+c.Home+`/planted
echo "active=$SANDBOX_ACTIVE project=$SANDBOX_PROJECT_DIR"
pwd; echo "args=$*"; echo to-stderr >&2
touch made
`)
	id := c.submit("job.sh", "one", "two  words", "it's", "a\nb")
	c.ended(id)
	out := c.read("slurm-" + id + ".out")
	contains(t, "the output", out, "active=1 project="+c.Project, c.Project+"\n", "args=one two  words it's a\nb\n", "to-stderr")
	if strings.Contains(out, "PRIVATE") {
		t.Error("the job read ~/.ssh")
	}
	if data, _ := os.ReadFile(c.Home + "/other/file"); string(data) != "old" {
		t.Error("the job wrote outside")
	}
	if _, err := os.Stat(c.Home + "/planted"); err == nil {
		t.Error("the job made a file outside")
	}
	if _, err := os.Stat(c.Project + "/made"); err != nil {
		t.Error("the job did not write in the project")
	}
	want(t, "what the launcher said", c.said(id), "")
}

func TestScriptsComeInEveryWay(t *testing.T) {
	c := newClient(t)
	c.Write("proj/s.py", "#!/usr/bin/python3\nimport sys\nprint('py', sys.argv[1:], 'no newline at the end')")
	c.Write("proj/bytes.sh", "#!/bin/sh\n#>not mine\nprintf '\xff\xfe|$HOME|`x`|%s' \"it's\" # \r \n")
	if err := os.WriteFile(c.Project+"/big.sh", []byte("#!/bin/sh\nwc -c <\"$0\"\nexit\n"+strings.Repeat("0123456789abcdef 0123456789abcdef\n", 60000)), 0o644); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	ids["file"] = c.submit("s.py", "x", "$(id)")
	ids["bytes"] = c.submit("bytes.sh")
	ids["big"] = c.submit("big.sh")
	ids["stdin"] = c.in("#!/bin/sh\necho from stdin\ncat\n").submit()
	ids["wrap"] = c.submit("--wrap", "echo wrapped; echo \"$0\" | wc -l\necho second line")
	ids["array"] = c.submit("--array=1-3%2", "--wrap=echo task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT")
	for _, id := range ids {
		c.ended(id)
	}
	want(t, "file", c.read("slurm-"+ids["file"]+".out"), "py ['x', '$(id)'] no newline at the end\n")
	want(t, "bytes", c.read("slurm-"+ids["bytes"]+".out"), "\xff\xfe|$HOME|`x`|it's")
	want(t, "big", c.read("slurm-"+ids["big"]+".out"), "2040027\n")
	want(t, "stdin", c.read("slurm-"+ids["stdin"]+".out"), "from stdin\n")
	want(t, "wrap", c.read("slurm-"+ids["wrap"]+".out"), "wrapped\n1\nsecond line\n")
	for _, n := range []string{"1", "2", "3"} {
		want(t, "array", c.read("slurm-"+ids["array"]+"_"+n+".out"), "task "+n+" of 3\n")
	}
}

func TestOutputPatternsAreSlurms(t *testing.T) {
	c := newClient(t)
	for _, p := range []string{
		"A-%A-%a-%j-%J-%N-%n-%s-%t-%u-%x-%4j-%12j-%q-%-%%-%3N.o", `B\-%j-%%.o`, "C it's $(id) `x` %x.o", "D%%j%",
	} {
		args := []string{"--job-name=a b", "--wrap=true", "--output=plain/" + p}
		c.Mkdir(c.Project + "/plain")
		c.Mkdir(c.Project + "/sandbox")
		p1 := c.submitPlain(args...)
		args[2] = "--output=sandbox/" + p
		p2 := c.submit(args...)
		c.ended(p1)
		c.ended(p2)
		name := func(dir, id string) string {
			l, _ := filepath.Glob(c.Project + "/" + dir + "/" + p[:1] + "*")
			if len(l) != 1 {
				return strings.Join(l, "|") + c.said(id)
			}
			// The numbers of the two jobs differ.
			return strings.ReplaceAll(strings.ReplaceAll(filepath.Base(l[0]), zeros(id), "ID"), id, "ID")
		}
		want(t, p, name("sandbox", p2), name("plain", p1))
	}
	arr := c.submit("--array=7", "--output=%A.%a.arr", "--error=%A.err", "--wrap=echo out; echo err >&2")
	c.ended(arr)
	want(t, "array output", c.read(arr+".7.arr"), "out\n")
	want(t, "array error", c.read(arr+".err"), "err\n")
}

// zeros is a number as %12j has it, which Slurm makes ten wide.
func zeros(id string) string { return strings.Repeat("0", 10-len(id)) + id }

func TestOutputModesAndInput(t *testing.T) {
	c := newClient(t)
	c.Write("proj/in", "the input\n")
	c.Write("proj/out", "before\n")
	c.ended(c.submit("-i", "in", "-o", "out", "--open-mode=append", "--wrap", "cat"))
	want(t, "appended", c.read("out"), "before\nthe input\n")
	c.ended(c.submit("-o", c.Project+"/out", "--wrap", "cat; echo now"))
	want(t, "truncated", c.read("out"), "now\n")
	c.ended(c.submit("-o", "/dev/null", "--wrap", "echo gone"))
}

func TestExitStatusesArePlainSlurms(t *testing.T) {
	c := newClient(t)
	for _, args := range [][]string{
		{"sbatch", "--wait", "--wrap=exit 0"},
		{"sbatch", "--wait", "--wrap=exit 9"},
		{"sbatch", "--parsable", "--hold", "--wrap=true"},
		{"sbatch", "--test-only", "--wrap=true"},
		{"sbatch", "--bogus"},
		{"sbatch", "--time=abc", "--wrap=true"},
		{"sbatch", "--partition=nothere", "--wrap=true"},
		{"sbatch", "nothere.sh"},
		{"sbatch", "--wrap=true", "word"},
		{"srun", "true"},
		{"srun", "sh", "-c", "exit 7"},
		{"srun", "-n2", "false"},
		{"srun", "sh", "-c", "kill -9 $$"},
		{"srun", "/nothere"},
		{"srun"},
		{"srun", "--bogus"},
		{"squeue", "--bogus"},
		{"squeue", "--jobs=999999"},
		{"squeue", "--jobs=999999,999998"},
		{"squeue", "--help"},
		{"scancel", "999999"},
		{"scancel"},
		{"scontrol", "show", "job", "999999"},
		{"scontrol", "hold", "999999"},
		{"scontrol", "update", "jobid=999999", "nice=5"},
		{"sacct"},
		{"sstat", "--jobs=999999"},
		{"sinfo"},
		{"sinfo", "--bogus"},
		{"sdiag"},
		{"sprio"},
		{"sshare"},
	} {
		p, s := c.plain(args[0], args[1:]...), c.run(args[0], args[1:]...)
		if p.Code != s.Code {
			t.Errorf("%q: exit %d, plain Slurm %d\n%s\n%s", args, s.Code, p.Code, s.Stderr, p.Stderr)
		}
	}
	for stdin, part := range map[string]string{
		"":                          "Batch script is empty!",
		"echo\n":                    "does not look like a batch script",
		"#!/bin/sh\r\necho\r\n":     "DOS line breaks",
		"#!/bin/sh\necho \x00\n":    "NULL character",
		"#!/bin/sh\n#SBATCH -t x\n": "line 2 of the script",
	} {
		p, s := c.in(stdin).plain("sbatch"), c.in(stdin).run("sbatch")
		if p.Code != s.Code {
			t.Errorf("script %q: exit %d, plain Slurm %d: %s", stdin, s.Code, p.Code, s.Stderr)
		}
		contains(t, "the message", s.Stderr, part, "sbatch: error: ")
	}
}

func TestDirectivesAreObeyed(t *testing.T) {
	c := newClient(t)
	id := c.in("#!/bin/sh\n#SBATCH --job-name=\"from script\" -o o1\n# a comment\n\n#SBATCH\t-H\t--time 7 # and why\n #SBATCH --time=9\ntrue\n#SBATCH --time=8\n").submit("--output=o2", "--comment", "mine")
	job := c.n.Root("scontrol", "show", "job", id)
	contains(t, "the job", job, "JobName=from script", "TimeLimit=00:07:00", "JobState=PENDING", "StdIn=/dev/null", "s=0123abcd", "c=mine")
	c.run("scontrol", "release", id)
	c.ended(id)
	if _, err := os.Stat(c.Project + "/o2"); err != nil {
		t.Error(err, c.said(id))
	}
	r := c.in("#!/bin/sh\n#SBATCH -n1\n#PBS -l walltime=1\ntrue\n").run("sbatch")
	contains(t, "the refusal", r.Stderr, "line 3", "--ignore-pbs")
	c.in("#!/bin/sh\n#PBS -l walltime=1\ntrue\n").submit("--ignore-pbs", "-H")
}

func TestAStepRunsInTheSandbox(t *testing.T) {
	c := newClient(t)
	c.Write(".ssh/id_ed25519", "PRIVATE")
	r := c.run("srun", "-n2", "-l", "sh", "-c", `echo "$SANDBOX_ACTIVE $SLURM_PROCID $(pwd)"; cat ~/.ssh/id_ed25519`)
	contains(t, "the output", r.Stdout, "0: 1 0 "+c.Project, "1: 1 1 "+c.Project)
	if strings.Contains(r.Stdout, "PRIVATE") {
		t.Error("the step read ~/.ssh")
	}
	r = c.run("srun", "-n2", "-o", "s-%t-%J", "sh", "-c", "echo $SLURM_PROCID")
	l, _ := filepath.Glob(c.Project + "/s-[01]-*.0")
	if len(l) != 2 {
		t.Errorf("%q %+v", l, r)
	}
}

func TestALauncherThatFailsIsSeen(t *testing.T) {
	c := newClient(t)
	c.Config("if true\n")
	r := c.run("sbatch", "--wait", "--parsable", "--wrap", "echo ran > ran")
	if r.Code != 125 {
		t.Errorf("%+v", r)
	}
	contains(t, "the job's log", c.said(strings.TrimSpace(r.Stdout)), "agent-sandbox: ", "sandbox.conf")
	if _, err := os.Stat(c.Project + "/ran"); err == nil {
		t.Error("the job ran without its sandbox")
	}
}

func TestTheEnvironmentIsTheSessions(t *testing.T) {
	c := newClient(t)
	c.env = []string{"KEPT=yes", "SBATCH_JOB_NAME=evil", "SBATCH_TIMELIMIT=3", "SLURM_TASK_PROLOG=/bin/true", "SBATCH_COMMENT=x", "SBATCH_EXPORT=NONE"}
	id := c.submit("-o", "o", "--export=ALL,MINE=a=b,LD_PRELOAD=/nothere.so", "--wrap", `echo "$KEPT,$MINE,$SANDBOX_QUIET,$LD_PRELOAD,$SLURM_TASK_PROLOG"`)
	job := c.n.Root("scontrol", "show", "job", id)
	c.ended(id)
	contains(t, "the output", c.read("o"), "yes,a=b,true,/nothere.so,\n")
	contains(t, "the job", job, "JobName=wrap", "TimeLimit=UNLIMITED")
	want(t, "what the launcher said", c.said(id), "")
}

func TestAJobRunsInBwrapAsTheSessionDoes(t *testing.T) {
	c := newClient(t)
	c.Config("SANDBOX_BACKEND=landlock\n") // what the node would choose
	c.env = []string{"SANDBOX_BACKEND=landlock"}
	id := c.submit("-o", "o", "--wrap", "echo $SANDBOX_BACKEND")
	c.ended(id)
	contains(t, "the output", c.read("o"), "bwrap\n")
	contains(t, "a step", c.run("srun", "sh", "-c", "echo $SANDBOX_BACKEND").Stdout, "bwrap\n")
}

// library makes one in the project that leaves a mark in the home where it is loaded.
func (c *client) library() (lib, mark string) {
	c.T.Helper()
	lib, mark = c.Project+"/evil.so", c.Home+"/escaped"
	c.Write("proj/evil.c", `#include <fcntl.h>
__attribute__((constructor)) static void f(void) { creat("`+mark+`", 0600); }
`)
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", lib, c.Project+"/evil.c").CombinedOutput(); err != nil {
		c.T.Fatalf("%v: %s", err, out)
	}
	return lib, mark
}

func TestTheSandboxsEnvironmentIsNotOutsides(t *testing.T) {
	// What SANDBOX_ENV sets is for what runs inside: a library that the agent wrote
	// would otherwise be loaded by sbatch, by the script's shell and by the launcher.
	c := newClient(t)
	lib, mark := c.library()
	c.Config("SANDBOX_ENV+=(LD_PRELOAD=" + lib + " MARK=inside)\n")
	sh := c.session()
	want(t, "the library inside", sh.Sh("echo $MARK; ls ~/escaped"), "inside\n"+mark)
	c.ended(sbatch(t, sh, "sbatch -o o --wrap 'echo $MARK'"))
	sh.Sh("srun true; squeue; scontrol show jobs; scancel -u $USER")
	want(t, "the job's output", c.read("o"), "inside\n")
	if exists(mark) {
		t.Error("the library was loaded outside")
	}
}

// The launcher's own environment may name a library of the project, or a search path
// with an empty entry, which is the working directory: it reaches the launcher on the
// node, which is static, and what runs inside, and nothing else.
func TestNoLibraryOfTheProjectIsLoadedOutside(t *testing.T) {
	c := newClient(t)
	lib, mark := c.library()
	c.Env = append(c.Env, "LD_PRELOAD="+lib, "LD_LIBRARY_PATH=/nowhere:")
	c.Config("READONLY_MOUNTS+=(/srv)\n")
	sh := c.session()
	os.Remove(mark) // of what started the launcher
	c.ended(sbatch(t, sh, "sbatch -o o --wrap 'echo $LD_LIBRARY_PATH'"))
	sh.Sh("srun true; squeue; scontrol show jobs; scancel -u $USER")
	want(t, "the job's output", c.read("o"), "/nowhere:\n")
	if exists(mark) {
		t.Error("the library was loaded outside")
	}
}

// What configures the launcher reaches the one on the node, whatever the scrubbing
// takes from the session.
func TestAJobHasTheSessionsConfiguration(t *testing.T) {
	c := newClient(t)
	c.Write("proj/.env", "SECRET")
	c.Write("strict.conf", "BLOCKED_FILES+=("+c.Project+"/.env)\nBLOCKED_ENV_PATTERNS+=('SANDBOX_*' 'HOME_ACCESS')\n")
	c.Env = append(c.Env, "SANDBOX_CONF="+c.Home+"/strict.conf", "HOME_ACCESS=restricted", "SLURM_SCOPE=none")
	c.submit("--wrap=sleep 600") // of the same project
	sh := c.session()
	c.ended(sbatch(t, sh, "sbatch -o o --wrap 'cat .env; echo; ls -d ~/.cache || echo restricted; squeue -h'"))
	if got := c.read("o"); strings.Contains(got, "SECRET") {
		t.Errorf("the job has another configuration: %q", got)
	} else if !strings.HasSuffix(got, "restricted\n") {
		t.Errorf("the job sees jobs that are not in the session's scope: %q", got)
	}
	if r := sh.Sh("srun cat .env"); strings.Contains(r, "SECRET") {
		t.Errorf("the step has another configuration: %q", r)
	}
}

// An agent that may write above the project puts a link to another folder in its
// place, before a job is submitted or while it waits.
func TestTheProjectOfAJobIsTheSessions(t *testing.T) {
	c := newClient(t)
	c.Mkdir(c.Home + "/work/a/proj")
	c.Mkdir(c.Home + "/secret")
	c.Write("secret/note", "SECRET")
	c.Config("EXTRA_WRITABLE_PATHS+=(~/work)\n")
	c.Project = c.Home + "/work/a/proj"
	sh := c.session()
	sh.Sh("cd ~/work/a/proj")
	id := sbatch(t, sh, "sbatch --hold -o ../../out --wrap 'cat ~/work/a/proj/note; touch ~/work/a/proj/evil'")
	sh.Sh("mv ~/work/a ~/work/b && mkdir ~/work/a && ln -s ~/secret ~/work/a/proj && cd ~/work/b/proj")
	if got := sh.Sh("sbatch -o ../out2 --wrap true 2>&1"); !strings.Contains(got, "moved away") {
		t.Errorf("a job of a project that is another folder by now: %q", got)
	}
	c.n.Root("scontrol", "release", id)
	c.ended(id)
	if out, _ := os.ReadFile(c.Home + "/work/out"); exists(c.Home+"/secret/evil") || strings.Contains(string(out), "SECRET") {
		t.Error("the job ran in the folder that the link leads to")
	}
}

// A client of Slurm that the agent brings with it reaches slurmctld by TCP where the
// network is shared, and has no munge there to say who it is.
func TestNoJobWithoutMunge(t *testing.T) {
	c := newClient(t)
	conf, err := os.ReadFile(c.n.Conf)
	if err != nil {
		t.Fatal(err)
	}
	c.Write("proj/slurm.conf", string(conf))
	real, err := os.ReadFile("/usr/bin/sbatch")
	if err != nil {
		t.Fatal(err)
	}
	c.Write("proj/sbatch", string(real))
	os.Chmod(c.Project+"/sbatch", 0o755)
	submit := "SLURM_CONF=" + c.Project + "/slurm.conf ./sbatch -o /dev/null --wrap 'touch " + c.Home + "/escaped' 2>&1"
	if out, err := c.Command("sh", "-c", "cd "+c.Project+" && "+submit).CombinedOutput(); err != nil || !strings.Contains(string(out), "Submitted") {
		t.Fatalf("it does not work outside either: %v %s", err, out)
	}
	harness.Eventually(t, "the job outside", func() bool { return exists(c.Home + "/escaped") })
	os.Remove(c.Home + "/escaped")
	sh := c.session()
	if got := sh.Sh(submit); strings.Contains(got, "Submitted") || !strings.Contains(got, "auth") && !strings.Contains(got, "munge") {
		t.Errorf("%q", got)
	}
	if exists(c.Home + "/escaped") {
		t.Error("a job ran outside")
	}
}

// Flags that Slurm takes from the home, a prolog that runs outside among them.
func TestSlurmsDefaultsAreNotTheSessions(t *testing.T) {
	c := newClient(t)
	c.Env = append(c.Env, "HOME_ACCESS=write")
	sh := c.session()
	if got := sh.Sh("{ mkdir -p ~/.slurm && echo x >~/.slurm/defaults || mv ~/.slurm ~/x || ln -s proj ~/.slurm; } 2>/dev/null; ls -A ~/.slurm"); got != "" {
		t.Errorf("%q", got)
	}
}

// Slurm loads programs that its configuration names.
func TestSlurmsConfigurationIsNotTheSessions(t *testing.T) {
	c := newClient(t)
	c.Mkdir(c.Project + "/sl")
	conf, err := os.ReadFile(c.n.Conf)
	if err != nil {
		t.Fatal(err)
	}
	c.Write(c.Project+"/sl/slurm.conf", string(conf))
	c.Env = append(c.Env, "SLURM_CONF="+c.Project+"/sl/slurm.conf")
	sh := c.session()
	for _, command := range []string{"sbatch --wrap true", "srun true", "squeue", "sinfo"} {
		if got := sh.Sh(command + " 2>&1; echo $?"); !strings.Contains(got, "SLURM_CONF") || strings.HasSuffix(got, "\n0") {
			t.Errorf("%s: %q", command, got)
		}
	}
}

func TestAStepInAJobIsTheJobs(t *testing.T) {
	c := newClient(t)
	job := c.submit("-n2", "--wrap=sleep 600")
	other := c.submitPlain("--wrap=sleep 600")
	harness.Eventually(t, "running jobs", func() bool { return c.state(job)+c.state(other) == "RUNNINGRUNNING" })
	c.env = []string{"SLURM_JOB_ID=" + job, "SLURM_NTASKS=2"}
	r := c.run("srun", "sh", "-c", "echo $SLURM_JOB_ID.$SLURM_STEP_ID.$SLURM_PROCID.$SANDBOX_ACTIVE")
	contains(t, "the output", r.Stdout, job+".0.0.1\n", job+".0.1.1\n")
	if r := c.run("srun", "--jobid="+other, "true"); r.Code == 0 {
		t.Errorf("a step in a job outside: %+v", r)
	}
	c.env = nil
	contains(t, "a step by number", c.run("srun", "--jobid="+job, "-n1", "sh", "-c", "echo $SLURM_JOB_ID").Stdout, job+"\n")
	c.submit("--dependency=afterany:"+job, "--wrap=true")
}

func TestASignalReachesTheScript(t *testing.T) {
	c := newClient(t)
	job := c.in("#!/bin/bash\ntrap 'echo got >>sig; exit 0' USR1\ntouch ready\nwhile :; do sleep 0.1; done\n").submit()
	harness.Eventually(t, "a ready job", func() bool { return exists(c.Project + "/ready") })
	if r := c.run("scancel", "--batch", "--signal=USR1", job); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	c.ended(job)
	want(t, "what the script did", c.read("sig"), "got\n")
}

// TestDirectivesAreReadAsSlurmReadsThem submits scripts both ways and compares
// what became of the lines.
func TestDirectivesAreReadAsSlurmReadsThem(t *testing.T) {
	c := newClient(t)
	field := regexp.MustCompile(`(?m)(JobName=.*$|TimeLimit=\S+|NumCPUs=\S+|Requeue=\S+|JobState=\S+)`)
	for _, lines := range []string{
		"#SBATCH -J a -t 5",
		"#SBATCH\t-J\ta\t-t\t5\t",
		"#SBATCH-Ja -t5",
		`#SBATCH -J "a b" --time=5`,
		`#SBATCH -J 'a "b" c' --time=5`,
		`#SBATCH -J a\ b --time=5`,
		`#SBATCH -J "a # b" --time=5`,
		`#SBATCH -J a#b --time=5`,
		`#SBATCH -J a # --time=5`,
		`#SBATCH -J "a'b"'"c"'`,
		`#SBATCH --job-name="a \"b\""`,
		"#SBATCH -Ja\n#\n\n   \n\t# x\n#SBATCH -t 6\nls\n#SBATCH -t 7",
		"#SBATCH -Ja\n #SBATCH -Jb\n##SBATCH -Jc",
		"#SBATCH -Ja\n#SBATCH -Jb",
		"#SBATCH --requeue\n#SBATCH --no-requeue -n3",
		"#SBATCH",
		"#SBATCH  ",
		"# SBATCH -Ja",
		"#sbatch -Ja",
		"true;#SBATCH -Ja",
		"#SBATCH -Ja --bogus",
		"#SBATCH --uid",
		`#SBATCH -J "a`,
		"#SBATCH -J",
	} {
		script := "#!/bin/sh\n#SBATCH -H\n" + lines + "\n"
		p, s := c.in(script).plain("sbatch"), c.in(script).run("sbatch")
		if (p.Code == 0) != (s.Code == 0) {
			t.Errorf("%q: plain %+v, here %+v", lines, p, s)
		}
		if p.Code != 0 || s.Code != 0 {
			continue
		}
		want(t, lines, strings.Join(field.FindAllString(c.n.Root("scontrol", "show", "job", c.number(s)), -1), "\n"),
			strings.Join(field.FindAllString(c.n.Root("scontrol", "show", "job", c.number(p)), -1), "\n"))
	}
}

func TestANodeWithoutARuntimeFolder(t *testing.T) {
	c := newClient(t)
	c.env = []string{"XDG_RUNTIME_DIR=/run/user/nothere"} // of the machine that the user logged in on
	id := c.submit("-o", "o", "--wrap", "echo $SANDBOX_ACTIVE")
	c.ended(id)
	want(t, "the output", c.read("o"), "1\n")
	want(t, "what the launcher said", c.said(id), "")
}
