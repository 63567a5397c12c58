package reload

import (
	"os"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

func TestSessionsListsLiveSessions(t *testing.T) {
	f := newFixture(t)
	if r := f.Run("agent-sandbox", "sessions"); r.Code != 0 || r.Stdout != "" {
		t.Fatalf("without a session: %d %q", r.Code, r.Stdout)
	}
	one := f.start()
	two := f.start()
	r := f.Run("agent-sandbox", "sessions")
	lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], one.ID+"\t") || !strings.HasPrefix(lines[1], two.ID+"\t") {
		t.Fatalf("%q, want %s and %s, oldest first", r.Stdout, one.ID, two.ID)
	}
	other := newFixture(t)
	if r := other.Run("agent-sandbox", "sessions"); r.Stdout != "" {
		t.Errorf("another user is shown %q", r.Stdout)
	}
	one.end()
	if r := f.Run("agent-sandbox", "sessions"); !strings.HasPrefix(r.Stdout, two.ID+"\t") {
		t.Errorf("after one has ended: %q", r.Stdout)
	}
}

func TestWhichSession(t *testing.T) {
	f := newFixture(t, "a")
	sub := f.Project + "/sub/deep"
	f.Mkdir(sub)
	f.conf(nil)
	b := f.start()
	from := func(dir string, args ...string) harness.Result {
		c := f.Command("agent-sandbox", append([]string{"reload"}, args...)...)
		c.Dir = dir
		return harness.Finish(t, c)
	}
	for name, r := range map[string]harness.Result{
		"the current folder's project": from(f.Project),
		"a folder inside it":           from(sub),
		"id":                           from("/", b.ID),
		"unique prefix":                from("/", b.ID[:1]),
		"--project":                    from("/", "--project", f.Project),
		"--project=":                   from("/", "--project="+f.Project),
		"--project relative":           from(f.Home, "--project", "proj"),
	} {
		if r.Code != 0 {
			t.Errorf("%s: exit %d: %s", name, r.Code, r.Stderr)
		}
	}
	os.Symlink(f.Project, f.Home+"/link")
	if r := from("/", "--project", f.Home+"/link"); r.Code != 0 {
		t.Errorf("--project through a link: %d %s", r.Code, r.Stderr)
	}
	no := "f"
	if strings.HasPrefix(b.ID, "f") {
		no = "0"
	}
	for name, r := range map[string]harness.Result{
		"from a folder of no project":     from("/usr"),
		"another prefix":                  from(f.Project, no),
		"--project inside the project":    from("/", "--project", sub),
		"--project that does not exist":   from("/", "--project", f.Home+"/none"),
		"--project above the project":     from("/", "--project", f.Home),
		"a project folder beside, no one": from(f.Home),
	} {
		if r.Code != 1 || r.Stdout != "" || r.Stderr == "" {
			t.Errorf("%s: exit %d: %q %q", name, r.Code, r.Stdout, r.Stderr)
		}
	}
	for _, args := range [][]string{{"--bogus"}, {"xyz"}, {b.ID, b.ID}, {b.ID, "--project", "/"}, {"--project"}, {"--timeout", "0"}, {"--timeout", "x"}, {""}, {"--project="}, {"123456789"}} {
		if r := from(f.Project, args...); r.Code != 2 || r.Stdout != "" || !strings.Contains(r.Stderr, "hint") {
			t.Errorf("%q: exit %d: %q %q", args, r.Code, r.Stdout, r.Stderr)
		}
	}
}

func TestSeveralSessionsHaveToBeNamed(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	one, two := f.start(), f.start()
	f.conf([]string{"a"})
	r := one.reload()
	if r.Code != 1 || !strings.Contains(r.Stderr, one.ID) || !strings.Contains(r.Stderr, two.ID) {
		t.Fatalf("exit %d, stderr %q", r.Code, r.Stderr)
	}
	one.wantWritable(false, f.p("a"))
	one.check(one.reload(two.ID), 0, "ADD "+f.p("a"))
	one.wantWritable(false, f.p("a"))
	two.wantWritable(true, f.p("a"))
}

func TestSubcommandRunsTheProgram(t *testing.T) {
	f := newFixture(t)
	for _, args := range [][]string{{"--help"}, {"--version"}, {"--bogus"}} {
		a := f.Run("agent-sandbox", append([]string{"reload"}, args...)...)
		b := f.Run("agent-sandbox-reload", args...)
		if a != b {
			t.Errorf("%v: %+v and %+v", args, a, b)
		}
	}
}

func TestNoSessionOfAnotherUser(t *testing.T) {
	f, other := newFixture(t, "a"), newFixture(t)
	b := f.start()
	r := other.Run("agent-sandbox", "reload", b.ID)
	if r.Code != 1 || !strings.Contains(r.Stderr, "no live session") {
		t.Errorf("exit %d: %q", r.Code, r.Stderr)
	}
	// Not even with the record of the other in its own registry.
	data := b.record().Marshal()
	other.Run("agent-sandbox", "true")
	reg := other.Runtime + "/agent-sandbox/sessions/"
	os.WriteFile(reg+b.ID, data, 0o600)
	os.Chown(reg+b.ID, other.UID, other.GID)
	if r := other.Run("agent-sandbox", "reload", b.ID); r.Code != 1 {
		t.Errorf("with a copied record: exit %d: %q", r.Code, r.Stderr)
	}
}

func TestSmallListAsRoot(t *testing.T) {
	home, err := os.MkdirTemp("/srv", "asb-root.")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(home)
	for _, d := range []string{"proj", "run", "data/a", "data/b", ".ssh", ".config/agent-sandbox"} {
		if err := os.MkdirAll(home+"/"+d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	u := &harness.User{T: t, Name: "root", Home: home, Project: home + "/proj", Runtime: home + "/run"}
	f := &fixture{User: u, t: t, top: home + "/data"}
	f.conf(nil, "HOME_ACCESS=read")
	b := f.start()
	f.conf([]string{"a"}, "HOME_ACCESS=read", "EXTRA_BLOCKED_PATHS+=("+f.p("b")+")")
	b.want(0, "ADD "+f.p("b"), "ADD "+f.p("a"))
	b.wantWritable(true, f.p("a"))
	b.wantPlan()
	b.sh("exec 8>" + f.p("a") + "/f")
	f.conf(nil, "HOME_ACCESS=read", "EXTRA_BLOCKED_PATHS+=("+f.p("b")+")")
	b.want(3, "BUSY "+f.p("a"))
	b.sh("exec 8>&-")
	b.want(0, "REVOKE "+f.p("a"))
	b.wantWritable(false, f.p("a"))
	b.want(0)
}
