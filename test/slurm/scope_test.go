package slurm

import (
	"regexp"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// ids are the job numbers that a squeue shows.
func (c *client) ids(args ...string) string {
	c.T.Helper()
	r := c.run("squeue", append([]string{"--noheader", "--states=all", "--format=%A"}, args...)...)
	if r.Code != 0 {
		c.T.Errorf("squeue: %+v", r)
	}
	// Numbers of users are used again: what was before this test is another's.
	var out []string
	for _, j := range strings.Fields(r.Stdout) {
		if c.first == "" || !less(j, c.first) {
			out = append(out, j)
		}
	}
	return strings.Join(out, " ")
}

// state is a job's, as root sees it.
func (c *client) state(job string) string {
	return strings.TrimSpace(c.n.Root("squeue", "--noheader", "--states=all", "--format=%T", "--jobs="+job+","+job))
}

// held are jobs that wait: of this session, of another session in the same
// project, of another project, of the user outside a sandbox, of another user.
type held struct{ own, session, project, plain, other string }

func (c *client) hold() (h held) {
	c.T.Helper()
	h.own = c.submit("-H", "--wrap=true", "--comment=mine")
	c.first = h.own
	d := *c
	d.id = "99999999"
	h.session = d.submit("-H", "--wrap=true")
	d = *c
	d.project = c.Home + "/proj2"
	d.cwd = d.project
	c.Mkdir(d.project)
	h.project = d.submit("-H", "--wrap=true")
	h.plain = c.submitPlain("-H", "--wrap=true", "--comment=agent-sandbox/1 s=0123abcd")
	o := newClient(c.T.(*testing.T))
	h.other = o.submitPlain("-H", "--wrap=true")
	return h
}

func TestOnlyJobsInScopeAreSeen(t *testing.T) {
	c := newClient(t)
	h := c.hold()
	for scope, in := range map[string][]string{
		"session": {h.own}, "project": {h.own, h.session}, "user": {h.own, h.session, h.project, h.plain}, "none": nil,
	} {
		s := *c
		s.scope = scope
		all := []string{h.own, h.session, h.project, h.plain, h.other}
		want(t, scope+": squeue", sorted(s.ids()), strings.Join(in, " "))
		want(t, scope+": squeue --me", sorted(s.ids("--me")), strings.Join(in, " "))
		want(t, scope+": squeue -u", sorted(s.ids("-u", c.Name)), strings.Join(in, " "))
		want(t, scope+": squeue -u root", s.ids("-u", "root"), "")
		want(t, scope+": squeue -j", sorted(s.ids("--jobs="+strings.Join(all, ","))), strings.Join(in, " "))
		show := s.run("scontrol", "show", "jobs").Stdout
		sprio := s.run("sprio").Stdout
		for _, j := range all {
			mine := contain(in, j)
			if strings.Contains(show, "JobId="+j+" ") != mine {
				t.Errorf("%s: scontrol show jobs: job %s: %s", scope, j, show)
			}
			if r := s.run("squeue", "-h", "-j", j); (r.Code == 0) != mine || (r.Stdout != "") != mine {
				t.Errorf("%s: squeue -j %s: %+v", scope, j, r)
			}
			if r := s.run("scontrol", "show", "job", j); (r.Code == 0) != mine || (r.Stdout != "") != mine {
				t.Errorf("%s: scontrol show job %s: %+v", scope, j, r)
			}
			if !mine && regexp.MustCompile(`\b`+j+`\b`).MatchString(sprio) {
				t.Errorf("%s: sprio shows %s: %s", scope, j, sprio)
			}
		}
	}
}

func TestOnlyJobsInScopeAreActedOn(t *testing.T) {
	c := newClient(t)
	h := c.hold()
	out := []string{h.project, h.plain, h.other}
	c.scope = "project"
	for _, j := range out {
		c.run("scancel", j)
		c.run("scancel", "0"+j)
		c.run("scancel", j+"_1")
		c.run("scancel", j+"."+"0")
		c.run("scancel", "--state=PENDING", j)
		for _, args := range [][]string{
			{"release", j}, {"release", h.own + "," + j}, {"requeue", j}, {"hold", j}, {"uhold", j}, {"update", "jobid=" + j, "name=changed"},
			{"update", "job", "jobid=" + j, "comment=x"}, {"update", "jobid=" + h.own, "jobid=" + j, "name=changed"}, {"update", "jobid=" + h.own + "," + j, "name=changed"},
			{"update", "name=wrap", "timelimit=1"}, {"update", "jobname=wrap", "nice=7"},
		} {
			if r := c.run("scontrol", args...); r.Code == 0 {
				t.Errorf("scontrol %q: %+v", args, r)
			}
		}
		if r := c.run("srun", "--jobid="+j, "true"); r.Code == 0 {
			t.Errorf("srun --jobid: %+v", r)
		}
		if r := c.run("sbatch", "--dependency=after:"+j, "--wrap=true"); r.Code == 0 {
			t.Errorf("sbatch --dependency: %+v", r)
		}
	}
	c.run("scancel", "--user=root")
	c.run("scancel", "--partition=main", "--name=nothere")
	if s := c.state(h.own); s != "PENDING" {
		t.Fatalf("the own job is %s", s)
	}
	// Everything that a session can reach, at once.
	if r := c.run("scancel", "--user="+c.Name); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	for _, j := range out {
		job := c.n.Root("scontrol", "show", "job", j)
		contains(t, "a job out of scope", job, "JobState=PENDING", "JobName=wrap", "Reason=JobHeldUser", "TimeLimit=UNLIMITED")
	}
	want(t, "the own job", c.state(h.own), "CANCELLED")
	want(t, "the project's job", c.state(h.session), "CANCELLED")
}

func TestASessionsScopeEndsAtItsJobs(t *testing.T) {
	c := newClient(t)
	h := c.hold()
	c.scope = "session"
	c.run("scancel", h.session)
	c.run("scancel", "--me")
	want(t, "the other session's job", c.state(h.session), "PENDING")
	want(t, "the own job", c.state(h.own), "CANCELLED")
	c.scope = "none"
	c.run("scancel", h.session, h.plain)
	c.run("scancel", "--me")
	want(t, "without a scope", c.state(h.session)+c.state(h.plain), "PENDINGPENDING")
}

func TestRunningJobsAndArraysAreCancelled(t *testing.T) {
	c := newClient(t)
	plain := c.submitPlain("--wrap=sleep 600")
	job := c.submit("--wrap=sleep 600")
	arr := c.submit("--array=1-3", "--wrap=sleep 600")
	harness.Eventually(t, "running jobs", func() bool { return strings.Count(c.state(job)+c.state(arr)+c.state(plain), "RUNNING") == 5 })
	want(t, "steps", c.run("squeue", "-s", "-h", "-j", job, "-o", "%i %j %u|").Stdout, job+".batch batch "+c.Name+"|\n")
	if all := c.run("squeue", "-s").Stdout; strings.Contains(all, " "+plain+".batch") || !strings.Contains(all, " "+job+".batch") {
		t.Errorf("squeue -s: %s", all)
	}
	if r := c.run("sstat", "-n", "-j", plain); strings.Contains(r.Stdout, plain) || r.Code != 0 {
		t.Errorf("sstat: %+v", r)
	}
	none := *c
	none.scope = "none"
	want(t, "steps of nobody", strings.Join(strings.Fields(none.run("squeue", "-s").Stdout), " "), "STEPID NAME PARTITION USER TIME NODELIST")
	c.run("scancel", arr+"_2")
	c.run("scancel", job)
	c.ended(job)
	harness.Eventually(t, "one element less", func() bool { return strings.Count(c.state(arr), "RUNNING") == 2 })
	c.run("scancel", arr+"_[1,3]")
	c.ended(arr)
	want(t, "the job outside", c.state(plain), "RUNNING")
}

func TestTagsAreNotForged(t *testing.T) {
	c := newClient(t)
	h := c.hold()
	victim := strings.TrimSpace(regexp.MustCompile(`Comment=(.*)`).FindStringSubmatch(c.n.Root("scontrol", "show", "job", h.project))[1])
	forged := c.submit("-H", "--wrap=true", "--comment="+victim)
	for _, comment := range []string{
		"x c=y " + victim, "%61gent", victim + " ", "a\tb",
	} {
		c.run("scontrol", "update", "jobid="+forged, "comment="+comment)
		if r := c.run("sbatch", "-H", "--wrap=true", "--comment="+comment); r.Code == 0 && strings.Contains(comment, "\t") {
			t.Errorf("a tab in a comment is taken: %+v", r)
		}
	}
	d := *c
	d.project = c.Home + "/proj2"
	want(t, "the other project's jobs", d.ids(), h.project)
	if strings.Contains(c.ids(), h.project) {
		t.Error("the other project's job is seen")
	}
	// In the scope of the user a job from outside gets no tag, in no way.
	u := *c
	u.scope = "user"
	if r := u.run("scontrol", "update", "jobid="+h.plain, "comment=x"); r.Code == 0 {
		t.Errorf("%+v", r)
	}
	if strings.Contains(c.ids(), h.plain) {
		t.Error("a job from outside came into the project's scope")
	}
	// A comment written over keeps the session that submitted.
	u.scope = "project"
	u.id = "99999999"
	u.run("scontrol", "update", "jobid="+h.own, "comment=new one")
	contains(t, "the job", c.n.Root("scontrol", "show", "job", h.own), "s=0123abcd", "c=new%20one")
	// And the project, where the scope is wider than that.
	u.scope = "user"
	if r := u.run("scontrol", "update", "jobid="+h.project, "comment=other"); r.Code != 0 {
		t.Errorf("%+v", r)
	}
	contains(t, "the job of another project", c.n.Root("scontrol", "show", "job", h.project), "c=other")
	want(t, "the other project's jobs", d.ids(), h.project)
	if strings.Contains(c.ids(), h.project) {
		t.Error("the other project's job came into this one's scope")
	}
}

// Beside plain Slurm, on the same jobs in each.
func TestScancelWithAFilterLeavesEndedJobsAlone(t *testing.T) {
	c, p := newClient(t), newClient(t)
	done, array, running := c.submit("--wrap=true"), c.submit("--array=1-2", "--wrap=test $SLURM_ARRAY_TASK_ID = 1 || sleep 600"), c.submit("-J", "nm", "--wrap=sleep 600")
	pdone, parray, prunning := p.submitPlain("--wrap=true"), p.submitPlain("--array=1-2", "--wrap=test $SLURM_ARRAY_TASK_ID = 1 || sleep 600"), p.submitPlain("-J", "nm", "--wrap=sleep 600")
	c.ended(done)
	c.ended(array + "_1")
	c.ended(pdone)
	c.ended(parray + "_1")
	harness.Eventually(t, "running jobs", func() bool {
		return strings.Count(c.state(running)+c.state(prunning)+c.state(array)+c.state(parray), "RUNNING") == 4
	})
	same := func(args []string, plain ...string) {
		t.Helper()
		if plain == nil {
			plain = args
		}
		r, s := c.run("scancel", args...), p.plain("scancel", plain...)
		if strings.ReplaceAll(r.Stderr, done, "N") != strings.ReplaceAll(s.Stderr, pdone, "N") || r.Code != s.Code || r.Stdout != s.Stdout {
			t.Errorf("scancel %q: %+v, plain: %+v", args, r, s)
		}
	}
	for _, filter := range [][]string{{"-n", "nosuch"}, {"-t", "PENDING"}, {"-p", "nosuch"}, {"-w", c.n.Name, "-t", "PENDING"}, {"-q", "nosuch"}, {"--me", "-n", "nosuch"}} {
		same(filter)
	}
	want(t, "jobs that no filter met", c.state(running)+c.state(array+"_2"), "RUNNINGRUNNING")
	same([]string{done}, pdone)
	same([]string{"-n", "wrap", done}, "-n", "wrap", pdone)
	same([]string{"-n", "nm"})
	c.ended(running)
	want(t, "the array", c.state(array+"_2"), "RUNNING")
	same([]string{"-p", "main"})
	c.ended(array)
	same([]string{"-p", "main"})
	same([]string{"-w", c.n.Name})
	same([]string{"-u", c.Name}, "-u", p.Name)
	same([]string{"--me"})
}

func TestClientsSeeTheirOwnComments(t *testing.T) {
	c := newClient(t)
	id := c.submit("-H", "--wrap=true", "--comment=a b=c %41 é agent-sandbox/1 s=")
	none := c.submit("-H", "--wrap=true")
	plain := c.submitPlain("-H", "--wrap=true", "--comment=a b=c %41 é agent-sandbox/1 s=")
	const format = "%k|%.5k|%5k|%.40k|%40k|%11k|%j"
	want(t, "squeue", c.run("squeue", "-h", "-j", id, "-o", format).Stdout, c.plain("squeue", "-h", "-j", plain, "-o", format).Stdout)
	want(t, "without", c.run("squeue", "-h", "-j", none, "-o", "%k|%.8k").Stdout, "(null)|  (null)\n")
	want(t, "header", c.run("squeue", "-j", none+","+none, "-o", "%.8k|%k").Stdout, " COMMENT|COMMENT\n  (null)|(null)\n")
	show := c.run("scontrol", "show", "job", id).Stdout
	contains(t, "scontrol", show, "Comment=a b=c %41 é agent-sandbox/1 s= \n", "StdOut=(opened in the sandbox)")
	for _, r := range []harness.Result{c.run("squeue", "-O", "comment:200"), c.run("squeue", "-o", "%all"), c.run("squeue", "--json"), c.run("squeue", "-O", "ALL")} {
		if r.Code == 0 {
			t.Errorf("%+v", r)
		}
	}
	want(t, "Format", c.run("squeue", "-h", "-j", id, "-O", "JobID:.12,Name").Stdout, strings.Repeat(" ", 12-len(id))+id+"wrap                \n")
}

func TestStatisticsNameNobody(t *testing.T) {
	c := newClient(t)
	o := newClient(t)
	o.plain("squeue")
	r := c.run("sdiag")
	if strings.Contains(r.Stdout, o.Name) || strings.Contains(r.Stdout, "root") || !strings.Contains(r.Stdout, "by message type") {
		t.Errorf("sdiag: %+v", r)
	}
	if !strings.Contains(c.plain("sdiag").Stdout, o.Name) {
		t.Error("plain sdiag does not name the other user")
	}
	c.n.Root("scontrol", "update", "node="+c.n.Name, "state=drain", "reason=because")
	defer c.n.Root("scontrol", "update", "node="+c.n.Name, "state=resume")
	for _, args := range [][]string{{"sinfo", "-R"}, {"sinfo", "-R", "-h"}, {"scontrol", "show", "node"}} {
		if r := c.run(args[0], args[1:]...); strings.Contains(r.Stdout, "root") || !strings.Contains(r.Stdout, "because") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := c.run("scontrol", "show", "hostnames", "/etc/passwd"); r.Code == 0 {
		t.Errorf("%+v", r)
	}
	want(t, "hostnames", c.run("scontrol", "show", "hostnames", "a[1-2],b").Stdout, "a1\na2\nb\n")
}

func contain(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// sorted are numbers in their order.
func sorted(s string) string {
	f := strings.Fields(s)
	for i := range f {
		for j := i + 1; j < len(f); j++ {
			if less(f[j], f[i]) {
				f[i], f[j] = f[j], f[i]
			}
		}
	}
	return strings.Join(f, " ")
}

func less(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
