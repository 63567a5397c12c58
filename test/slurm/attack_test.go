package slurm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

func exists(p string) bool { _, err := os.Lstat(p); return err == nil }

func link(t *testing.T, c *client, to, at string) {
	t.Helper()
	os.Remove(at)
	if err := os.Symlink(to, at); err != nil {
		t.Fatal(err)
	}
	os.Lchown(at, c.UID, c.GID)
}

func TestOutputGoesNowhereElse(t *testing.T) {
	c := newClient(t)
	c.Mkdir(c.Home + "/outside")
	c.Mkdir(c.Home + "/extra/closed/open")
	c.Mkdir(c.Project + "/sub")
	c.writable = []string{c.Home + "/extra", c.Home + "/extra/closed/open"}
	c.readonly = []string{c.Home + "/extra/closed", c.Project + "/ro"}
	c.Mkdir(c.Project + "/ro")
	link(t, c, c.Home+"/outside", c.Project+"/dirlink")
	link(t, c, c.Home+"/outside/new", c.Project+"/filelink")
	link(t, c, "sub", c.Project+"/goodlink")
	for i, p := range []string{
		"/tmp/x", c.Home + "/outside/x", "../outside/x", "../x", c.Project + "/../x", "dirlink/x", "filelink", "dirlink/%j", "%j/../../x", "sub/../../x", "", "/", "/dev/tty", "/proc/self/environ",
		"ro/x", "ro/%j", c.Home + "/extra/closed/x", "goodlink/../../x", "nothere/../../x", c.Project + "x/y", "/%j", "%x/../x",
	} {
		for _, f := range []string{"--output", "--error", "--input"} {
			if f == "--input" && (strings.HasPrefix(p, "ro/") || strings.Contains(p, "closed")) {
				continue // what is read-only may be read
			}
			var r harness.Result
			switch i % 3 { // the same check stands behind all three
			case 0:
				r = c.run("sbatch", f+"="+p, "--wrap=true")
			case 1:
				r = c.in("#!/bin/sh\n#SBATCH " + f + "='" + p + "'\ntrue\n").run("sbatch")
			case 2:
				r = c.run("srun", f+"="+p, "true")
			}
			if r.Code == 0 {
				t.Errorf("%s=%s is taken", f, p)
			}
		}
	}
	for _, p := range []string{"a", "./sub/b", "sub/../c", "goodlink/d", c.Home + "/extra/e", c.Home + "/extra/closed/open/f", "%j.%x/../../"} {
		r := c.run("sbatch", "--hold", "--output="+p, "--wrap=true")
		if (r.Code == 0) != !strings.Contains(p, "%") {
			t.Errorf("%s: %+v", p, r)
		}
	}
}

func TestALinkPlantedLaterDivertsNothing(t *testing.T) {
	c := newClient(t)
	c.Write("target", "precious")
	c.Mkdir(c.Home + "/outside")
	c.Mkdir(c.Project + "/dir")
	one := c.submit("--hold", "--output=out", "--error=err", "--wrap=echo evil; echo evil >&2")
	two := c.submit("--hold", "--output=dir/out", "--wrap=echo evil")
	three := c.at(c.Project+"/dir").submit("--hold", "--wrap=echo evil")
	link(t, c, c.Home+"/target", c.Project+"/out")
	link(t, c, c.Home+"/outside/err", c.Project+"/err")
	os.Remove(c.Project + "/dir")
	link(t, c, c.Home+"/outside", c.Project+"/dir")
	for _, id := range []string{one, two, three} {
		if r := c.run("scontrol", "release", id); r.Code != 0 {
			t.Errorf("%+v", r)
		}
		c.ended(id)
	}
	if data, _ := os.ReadFile(c.Home + "/target"); string(data) != "precious" {
		t.Errorf("the target is now %q", data)
	}
	if l, _ := os.ReadDir(c.Home + "/outside"); len(l) > 0 {
		t.Errorf("outside now has %v", l)
	}
}

func TestALinkPlantedUnderAStep(t *testing.T) {
	c := newClient(t)
	c.Write("target", "precious")
	// The name is checked, then the launcher takes a while; the link comes between.
	c.Write("proj/swap.sh", "#!/bin/sh\nwhile :; do ln -sf "+c.Home+"/target out; rm -f out; done\n")
	sw := c.Command("/bin/sh", "swap.sh")
	if err := sw.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sw.Process.Kill(); sw.Wait() }()
	for range 8 {
		c.run("srun", "--output=out", "echo", "evil")
	}
	if data, _ := os.ReadFile(c.Home + "/target"); string(data) != "precious" {
		t.Errorf("the target is now %q", data)
	}
}

func TestOnlyFromFoldersOfTheSession(t *testing.T) {
	c := newClient(t)
	c.Mkdir(c.Home + "/outside")
	c.Mkdir(c.Home + "/extra/sub")
	c.writable = []string{c.Home + "/extra"}
	link(t, c, c.Home+"/outside", c.Project+"/dirlink")
	for _, d := range []string{"/", "/tmp", c.Home, c.Home + "/outside", c.Project + "/dirlink", c.Project + "/..", c.Project + "/nothere", "proj", "", c.Project + "x"} {
		if r := c.at(d).run("sbatch", "--hold", "--wrap=true"); r.Code == 0 {
			t.Errorf("sbatch in %s is taken", d)
		}
		if r := c.at(d).run("srun", "true"); r.Code == 0 {
			t.Errorf("srun in %s is taken", d)
		}
	}
	id := c.at(c.Home+"/extra/sub").submit("--hold", "--wrap=true")
	contains(t, "the job", c.n.Root("scontrol", "show", "job", id), "WorkDir="+c.Home+"/extra/sub\n")
}

// evil is a program in the project that leaves a mark outside.
func evil(c *client) (program, mark string) {
	c.Write("proj/evil.sh", "#!/bin/sh\ntouch "+c.Home+"/escaped\n")
	os.Chmod(c.Project+"/evil.sh", 0o755)
	return c.Project + "/evil.sh", c.Home + "/escaped"
}

func TestNothingOfTheClientsRunsOutside(t *testing.T) {
	c := newClient(t)
	prog, mark := evil(c)
	n := "\n"
	for _, args := range [][]string{
		{"srun", "true", ":", "--task-prolog=" + prog, "true"},
		{"srun", "-n1", "true", ":", "-n1", "--prolog=" + prog, "true"},
		{"srun", "sh", "-c", "true", ":", "--epilog=" + prog, prog},
		{"srun", "--task-prolog=" + prog, "true"},
		{"srun", "--task-epilog", prog, "true"},
		{"srun", "--multi-prog", prog},
		{"srun", "--jobid=1", prog},
		{"srun", "--", prog},
		{"srun", "-J", "x$(" + prog + ")", "true"},
		{"srun", prog + "; " + prog, "'\"$(" + prog + ")\"'"},
		{"sbatch", "--wait", "--wrap=true", ":", "--wrap=" + prog},
		{"sbatch", "--wait", "--wrap", prog},
		{"sbatch", "--wait", "evil.sh"},
		{"sbatch", "--wait", "evil.sh", "x" + n + prog + n, "'" + n + prog + n + "'", "#>" + n + "#SBATCH --chdir=/"},
		{"sbatch", "--wait", "-o", "$(" + prog + ")'`" + prog + "`%x", "-J", "$(" + prog + ")`" + prog + "`\"'", "--wrap", prog},
		{"sbatch", "--wait", "evil.sh", "'$(" + prog + ")'", "'; " + prog + "; '"},
		{"sbatch", "--wait", "-o", "'$(" + prog + ")'", "--export=ALL,A='$(" + prog + ")'", "-J", "'$(" + prog + ")'", "--wrap", "'$(" + prog + ")'"},
		{"sbatch", "--wait", "--export=ALL,BASH_ENV=" + prog + ",ENV=" + prog + ",PATH=" + c.Project, "--wrap", prog},
		{"sbatch", "--wait", "--comment", "$(" + prog + ")", "--wrap", "x" + n + "EOF" + n + "exit 125" + n + prog},
	} {
		c.run(args[0], args[1:]...)
		if exists(mark) {
			t.Errorf("%q left the sandbox", args)
			os.Remove(mark)
		}
	}
	c.in("#!/bin/sh\n#SBATCH --wait\n#>" + prog + "\nexec " + prog + "\n").run("sbatch")
	c.in("#!"+prog+"\n#SBATCH --wait\n").run("sbatch", "--wait")
	if exists(mark) {
		t.Error("a script left the sandbox")
	}
}

func TestNoLineOfTheClientsIsADirective(t *testing.T) {
	c := newClient(t)
	// Of the words that are in the submitted script, after newlines.
	c.project = c.Project + "/a\n#SBATCH --time=1\n#PBS -l walltime=1"
	c.cwd = c.project
	c.Mkdir(c.project)
	c.Write(c.project+"/job.sh", "#!/bin/sh\necho \"$1\" >ran\n#SBATCH --time=2\n#PBS -l walltime=2:00\n#BSUB -W 3\n")
	id := c.submit("--hold", "--ignore-pbs", "job.sh", "x\n#SBATCH --time=4\n#PBS -l walltime=5:00\n")
	contains(t, "the job", c.n.Root("scontrol", "show", "job", id), "TimeLimit=UNLIMITED")
	c.run("scontrol", "release", id)
	c.ended(id)
	if data, err := os.ReadFile(c.project + "/ran"); string(data) != "x\n#SBATCH --time=4\n#PBS -l walltime=5:00\n\n" {
		t.Errorf("%q %v %s", data, err, c.said(id))
	}
}

func TestFilesOfOutsideAreNotRead(t *testing.T) {
	c := newClient(t)
	c.Write("nodes", c.n.Name+"\n")
	for _, f := range []string{"--nodelist=" + c.Home + "/nodes", "--exclude=" + c.Home + "/nodes", "--nodefile=" + c.Home + "/nodes", "-w", "--export-file=" + c.Home + "/nodes", "--bbf=" + c.Home + "/nodes", "--container=" + c.Home} {
		args := []string{"--hold", f, "--wrap=true"}
		if f == "-w" {
			args = []string{"--hold", "-w", "../nodes", "--wrap=true"}
		}
		if r := c.run("sbatch", args...); r.Code == 0 {
			t.Errorf("%q is taken", args)
		}
	}
	if l, _ := filepath.Glob(c.Project + "/*"); len(l) > 0 {
		t.Errorf("%v", l)
	}
}

func TestMailGoesToTheUserOnly(t *testing.T) {
	c := newClient(t)
	if r := c.run("sbatch", "--hold", "--mail-type=ALL", "--mail-user=spy@example.org", "--wrap=true"); r.Code == 0 {
		t.Errorf("%+v", r)
	}
	c.submit("--hold", "--mail-type=END", "--mail-user="+c.Name, "--wrap=true")
}

func TestCommandsWithoutAPlaceSayWhy(t *testing.T) {
	c := newClient(t)
	for _, n := range []string{"salloc", "sattach", "sbcast", "scrontab", "scrun", "strigger", "sreport", "sacctmgr"} {
		r := c.run(n, "--help")
		if r.Code == 0 {
			t.Errorf("%s: %+v", n, r)
		}
		contains(t, n, r.Stderr, n+": error: ", n+": hint: ")
	}
	for _, args := range [][]string{
		{"scontrol", "shutdown"}, {"scontrol", "reconfigure"}, {"scontrol", "write", "batch_script", "1"}, {"scontrol", "token"}, {"scontrol", "show", "config"}, {"scontrol", "show", "assoc_mgr"},
		{"scontrol", "sh", "jobs"}, {"scontrol", "upd", "jobid=1", "nice=1"}, {"scontrol"}, {"scontrol", "--uid=0", "show", "jobs"}, {"scontrol", "update", "node=" + c.n.Name, "state=down"},
		{"scontrol", "update", "partition=main", "state=down"}, {"scontrol", "!!"}, {"scontrol", "top", "1"}, {"scontrol", "listpids"}, {"rm", "-rf"}, {"", ""}, {"../sbatch", "x"},
	} {
		if r := c.run(args[0], args[1:]...); r.Code == 0 || r.Stdout != "" {
			t.Errorf("%q: %+v", args, r)
		} else if args[0] == "scontrol" && !strings.Contains(r.Stderr, "scontrol: hint: ") {
			t.Errorf("%q was asked of Slurm: %+v", args, r)
		}
	}
	h := c.submit("--hold", "--wrap=true")
	for _, f := range []string{"workdir=/", "stdout=/tmp/x", "stderr=/tmp/x", "stdin=/etc/passwd", "userid=0", "admincomment=x", "burstbuffer=x", "priority=9", "command=/x", "Comment=a\tb", "std=x"} {
		if r := c.run("scontrol", "update", "jobid="+h, f); r.Code == 0 {
			t.Errorf("%s is taken", f)
		}
	}
}

func TestScriptsStayOutOfTheLog(t *testing.T) {
	c := newClient(t)
	c.in("#!/bin/sh\n# s3cret-a\n").submit("--hold")
	c.submit("--hold", "--wrap=echo s3cret-b")
	c.run("srun", "sh", "-c", "echo s3cret-c\n")
	data, err := os.ReadFile(c.Home + "/policy.log")
	if err != nil || strings.Contains(string(data), "s3cret") || !strings.Contains(string(data), "sbatch") {
		t.Errorf("%v %s", err, data)
	}
}
