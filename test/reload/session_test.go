// Package reload tests agent-sandbox-reload on real sessions. docs/reload-coverage.md
// maps the sentences of the user's document to the tests.
package reload

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A fixture is a user with folders outside the home that a session can be given.
type fixture struct {
	*harness.User
	t   testing.TB
	top string // the user's own folder below /srv, shown read-only by conf
}

func newFixture(t testing.TB, dirs ...string) *fixture {
	t.Helper()
	u := harness.NewUser(t)
	f := &fixture{User: u, t: t, top: "/srv/" + u.Name}
	if err := os.Mkdir(f.top, 0o755); err != nil {
		t.Fatal(err)
	}
	os.Chown(f.top, u.UID, u.GID)
	t.Cleanup(func() { os.RemoveAll(f.top) })
	for _, d := range dirs {
		f.Mkdir(f.p(d))
	}
	return f
}

// p is a path below the folder.
func (f *fixture) p(rel string) string { return filepath.Join(f.top, rel) }

// conf writes a configuration that shows the folder read-only, with the named
// folders in it writable, and more lines.
func (f *fixture) conf(writable []string, more ...string) {
	f.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "READONLY_MOUNTS+=(%s)\n", quote(f.top))
	for _, w := range writable {
		fmt.Fprintf(&b, "EXTRA_WRITABLE_PATHS+=(%s)\n", quote(f.p(w)))
	}
	for _, m := range more {
		b.WriteString(m + "\n")
	}
	f.Config(b.String())
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// A box is a running session: a shell inside that takes commands.
type box struct {
	*fixture
	mu  sync.Mutex
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	ID  string
}

func (f *fixture) start(env ...string) *box {
	f.t.Helper()
	c := f.Command("agent-sandbox", "bash", "--norc", "--noprofile")
	c.Env = append(c.Env, env...)
	return f.startCommand(c)
}

func (f *fixture) startCommand(c *exec.Cmd) *box {
	f.t.Helper()
	b := &box{fixture: f, cmd: c}
	var errb strings.Builder
	c.Stderr = &errb
	b.in, _ = c.StdinPipe()
	out, _ := c.StdoutPipe()
	b.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(b.end)
	fmt.Fprintln(b.in, "echo $SANDBOX_SESSION")
	line, err := b.out.ReadString('\n')
	if err != nil {
		f.t.Fatalf("the session did not start: %v: %s", err, errb.String())
	}
	b.ID = strings.TrimSpace(line)
	return b
}

// end ends the session as its user would.
func (b *box) end() {
	b.in.Close()
	b.cmd.Wait()
}

// sh runs a command in the shell inside: output and errors without the last newline.
func (b *box) sh(command string) string {
	b.t.Helper()
	s, err := b.try(command)
	if err != nil {
		b.t.Fatalf("%q: the session ended: %v; %s", command, err, s)
	}
	return s
}

func (b *box) try(command string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := fmt.Fprintf(b.in, "{ %s\n} 2>&1; printf '\\n\\001\\n'\n", command); err != nil {
		return "", err
	}
	var out strings.Builder
	for {
		line, err := b.out.ReadString('\n')
		if err != nil {
			return out.String(), err
		}
		if line == "\x01\n" {
			return strings.TrimSuffix(strings.TrimSuffix(out.String(), "\n"), "\n"), nil
		}
		out.WriteString(line)
	}
}

// A lineOf is one line of a reload's output.
type lineOf struct{ word, kind, subject, detail string }

type reloaded struct {
	harness.Result
	lines []lineOf
}

func (b *box) reload(args ...string) reloaded {
	b.t.Helper()
	return parse(b.t, b.Run("agent-sandbox", append([]string{"reload"}, args...)...))
}

func parse(t testing.TB, r harness.Result) reloaded {
	t.Helper()
	out := reloaded{Result: r}
	for l := range strings.Lines(r.Stdout) {
		f := strings.SplitN(strings.TrimSuffix(l, "\n"), "\t", 4)
		if len(f) < 3 {
			t.Fatalf("output line %q", l)
		}
		f = append(f, "")
		out.lines = append(out.lines, lineOf{f[0], f[1], f[2], f[3]})
	}
	return out
}

// find gives the line of a word and subject.
func (r reloaded) find(word, subject string) (lineOf, bool) {
	i := slices.IndexFunc(r.lines, func(l lineOf) bool { return l.word == word && l.subject == subject })
	if i < 0 {
		return lineOf{}, false
	}
	return r.lines[i], true
}

// want reloads and checks the exit status and, in order, the words and subjects.
func (b *box) want(code int, lines ...string) reloaded {
	b.t.Helper()
	return b.check(b.reload(), code, lines...)
}

func (b *box) check(r reloaded, code int, lines ...string) reloaded {
	b.t.Helper()
	var got []string
	for _, l := range r.lines {
		got = append(got, l.word+" "+l.subject)
	}
	if r.Code != code || !slices.Equal(got, lines) {
		b.t.Fatalf("exit %d, want %d\ngot  %q\nwant %q\n%s%s", r.Code, code, got, lines, r.Stdout, r.Stderr)
	}
	return r
}

// writable says whether a file can be made in a folder inside.
func (b *box) writable(dir string) bool {
	b.t.Helper()
	return b.sh("( : > "+quote(dir+"/probe")+" ) 2>/dev/null && rm -f "+quote(dir+"/probe")+" && echo yes") == "yes"
}

func (b *box) wantWritable(yes bool, dirs ...string) {
	b.t.Helper()
	for _, d := range dirs {
		if b.writable(d) != yes {
			b.t.Fatalf("writing in %s: want %v", d, yes)
		}
	}
}

// record is the session's record as it lies on the disk.
func (b *box) record() session.Record {
	b.t.Helper()
	data, err := os.ReadFile(b.file())
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := session.Parse(data)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *box) file() string { return b.Runtime + "/agent-sandbox/sessions/" + b.ID }

// recorded is the kind of the record's mount at path, "" for none.
func (b *box) recorded(path string) mountplan.Kind {
	b.t.Helper()
	for _, m := range b.record().Mounts {
		if m.Path == path {
			return m.Kind
		}
	}
	return ""
}

// wantPlan compares the record's mount lines with those of `agent-sandbox plan`.
func (b *box) wantPlan() {
	b.t.Helper()
	r := b.Run("agent-sandbox", "plan")
	var plan []string
	for l := range strings.Lines(r.Stdout) {
		if l = strings.TrimSuffix(l, "\n"); strings.HasPrefix(l, "mount ") {
			plan = append(plan, l)
		}
	}
	var rec []string
	for _, m := range b.record().Mounts {
		rec = append(rec, "mount "+m.Marshal())
	}
	if !slices.Equal(plan, rec) {
		b.t.Fatalf("record and plan differ\nrecord %s\nplan %s", strings.Join(rec, "\n"), strings.Join(plan, "\n"))
	}
}

// mounts is the session's mount table.
func (b *box) mounts() []mountinfo.Mount {
	b.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", b.record().Sandbox.PID))
	if err != nil {
		b.t.Fatal(err)
	}
	ms, err := mountinfo.Parse(data)
	if err != nil {
		b.t.Fatal(err)
	}
	return ms
}

// below is the session's mounts at and below a path. Not all of them: useradd of
// another test makes the guard mount /etc/passwd anew.
func (b *box) below(p string) []mountinfo.Mount {
	b.t.Helper()
	return slices.DeleteFunc(b.mounts(), func(m mountinfo.Mount) bool { return !mountplan.Under(m.Point, p) })
}

// alive says whether a process of the record runs.
func alive(p session.Proc) bool { return p.Alive() }

// outer is the host's pid of a process inside, by the name of its program.
func (b *box) outer(comm string) int {
	b.t.Helper()
	pid := 0
	harness.Eventually(b.t, comm+" runs inside", func() bool {
		out, _ := exec.Command("pgrep", "-u", strconv.Itoa(b.UID), "-x", comm).Output()
		pid, _ = strconv.Atoi(strings.Fields(string(out) + " 0")[0])
		return pid != 0
	})
	return pid
}

// suite is a folder with the built programs, some built anew with other values
// set at build time (-X), where the user can run them.
func (f *fixture) suite(set string, names ...string) string {
	f.t.Helper()
	dir := filepath.Dir(harness.Bin(f.t, "agent-sandbox"))
	mine, err := os.MkdirTemp("/opt", "asb-suite.")
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { os.RemoveAll(mine) })
	os.Chmod(mine, 0o755)
	if out, err := exec.Command("cp", "-a", dir+"/.", mine).CombinedOutput(); err != nil {
		f.t.Fatalf("%v: %s", err, out)
	}
	version, _ := os.ReadFile(harness.Root() + "/VERSION")
	flags := "-X agent-sandbox/internal/cli.Version=" + strings.TrimSpace(string(version)) + " " + set
	for _, n := range names {
		c := exec.Command("go", "build", "-buildvcs=false", "-ldflags", flags, "-o", mine+"/"+n, "./cmd/"+n)
		c.Dir, c.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			f.t.Fatalf("%v: %s", err, out)
		}
	}
	return mine
}

// in is a command of a suite's folder.
func (f *fixture) in(dir, name string, args ...string) *exec.Cmd {
	c := f.Command(dir+"/"+name, args...)
	for i, e := range c.Env {
		if p, ok := strings.CutPrefix(e, "PATH="); ok {
			c.Env[i] = "PATH=" + dir + ":" + p
		}
	}
	return c
}

// as gives a command the user's identity, with the limits of a login.
func (f *fixture) as(c *exec.Cmd) *exec.Cmd {
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(f.UID), Gid: uint32(f.GID)}}
	return c
}
