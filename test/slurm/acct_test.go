package slurm

import (
	"slices"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// accounted are the numbers of the allocations that a sacct shows.
func accounted(t *testing.T, r harness.Result) []string {
	t.Helper()
	if r.Code != 0 {
		t.Errorf("sacct: %+v", r)
	}
	return strings.Fields(r.Stdout)
}

func TestOnlyJobsInScopeAreAccountedFor(t *testing.T) {
	c := newClient(t)
	d := *c
	d.id = "99999999"
	e := *c
	e.project = c.Home + "/proj2"
	e.cwd = e.project
	c.Mkdir(e.project)
	o := newClient(t)
	own, session, project := c.submit("--comment=a = b", "--wrap=true"), d.submit("--wrap=true"), e.submit("--wrap=true")
	plain, other := c.submitPlain("--wrap=true"), o.submitPlain("--wrap=true")
	all := []string{own, session, project, plain, other}
	for _, j := range all {
		c.ended(j)
	}
	list := []string{"-n", "-X", "-P", "--format=jobid"}
	// Slurm writes a job's end, its user and its comment one after the other.
	harness.Eventually(t, "the accounting of all", func() bool {
		out := c.n.Root("sacct", "-a", "-n", "-X", "-P", "--format=jobid,state,user,comment", "--jobs="+strings.Join(all, ","))
		return strings.Count(out, "COMPLETED") == len(all) && strings.Count(out, "|"+c.Name+"|agent-sandbox/1 ") == 3
	})
	for scope, in := range map[string][]string{"session": {own}, "project": {own, session}, "user": {own, session, project, plain}, "none": nil} {
		s := *c
		s.scope = scope
		for _, args := range [][]string{nil, {"-u", c.Name}, {"--jobs=" + strings.Join(all, ",")}, {"-S", "2000-01-01"}, {"--user=root," + c.Name}} {
			got := accounted(t, s.run("sacct", append(slices.Clone(list), args...)...))
			for _, j := range all {
				if slices.Contains(got, j) != slices.Contains(in, j) {
					t.Errorf("%s: sacct %q shows %v, want %v of %v", scope, args, got, in, all)
				}
			}
		}
		want(t, scope+": of root", strings.Join(accounted(t, s.run("sacct", append(slices.Clone(list), "-u", "root")...)), " "), "")
		want(t, scope+": of root", strings.Join(accounted(t, s.run("sacct", append(slices.Clone(list), "--uid=0")...)), " "), "")
	}
	r := c.run("sacct", "-n", "-X", "-P", "--format=comment,jobname", "-j", own)
	want(t, "the comment", r.Stdout, "a = b|wrap\n")
	for _, args := range [][]string{{"-a"}, {"--allusers"}, {"-A", "x"}, {"--json"}, {"--format=submitline"}, {"-g", "0"}, {"-B", "-j", own}, {"--env-vars", "-j", own}, {"-f", "/etc/passwd"}, {"-c"}} {
		if r := c.run("sacct", args...); r.Code == 0 {
			t.Errorf("sacct %q: %+v", args, r)
		}
	}
	want(t, "as plain Slurm", c.run("sacct", "-j", own, "--format=jobid,state,exitcode").Stdout, c.plain("sacct", "-j", own, "--format=jobid,state,exitcode").Stdout)
	contains(t, "sshare", c.run("sshare").Stdout, "FairShare")
}
