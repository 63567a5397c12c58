// Package repair tests mount-repair on real sandboxes of ordinary users.
package repair

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A box is a running bwrap sandbox with a shell inside.
type box struct {
	*harness.Shell
	t     testing.TB
	u     *harness.User
	PID   int
	Start uint64
	NS    uint64
}

// base is what a session of the launcher has: the system read-only, the home
// read-only.
func base(u *harness.User) []string {
	return []string{"--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/run", "--tmpfs", "/tmp"}
}

// newBox starts a sandbox with base and more arguments of bwrap.
func newBox(u *harness.User, args ...string) *box {
	return startBox(u, append(base(u), args...), u.Command)
}

func startBox(u *harness.User, args []string, command func(string, ...string) *exec.Cmd) *box {
	u.T.Helper()
	info, infoW, err := os.Pipe()
	if err != nil {
		u.T.Fatal(err)
	}
	args = append([]string{"--info-fd", "3", "--unshare-all", "--die-with-parent"}, args...)
	c := command("bwrap", append(args, "bash", "--norc", "--noprofile")...)
	c.ExtraFiles = []*os.File{infoW}
	b := &box{Shell: harness.NewShell(u.T, c), t: u.T, u: u}
	infoW.Close()
	var got struct {
		PID int `json:"child-pid"`
	}
	if err := json.NewDecoder(info).Decode(&got); err != nil {
		u.T.Fatalf("bwrap told no pid: %v", err)
	}
	info.Close()
	b.PID = got.PID
	b.identify()
	return b
}

func (b *box) identify() {
	st, err := sys.ReadProcStat(b.PID)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Start = st.Start
	if b.NS, err = sys.NSInode(fmt.Sprint(b.PID), "mnt"); err != nil {
		b.t.Fatal(err)
	}
}

// repair runs mount-repair as the user and returns its result lines.
func (b *box) repair(ops ...string) []string {
	b.t.Helper()
	r := b.run(strings.Join(ops, "\n")+"\n", fmt.Sprint(b.PID), fmt.Sprint(b.Start), fmt.Sprint(b.NS))
	lines := strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\n")
	if len(lines) != len(ops) {
		b.t.Fatalf("%d results for %d operations: %q %q, exit %d", len(lines), len(ops), r.Stdout, r.Stderr, r.Code)
	}
	want := 0
	for _, l := range lines {
		if l != "ok" {
			want = 1
		}
	}
	if r.Code != want {
		b.t.Errorf("exit %d, want %d: %q %q", r.Code, want, r.Stdout, r.Stderr)
	}
	return lines
}

func (b *box) run(stdin string, args ...string) harness.Result {
	b.t.Helper()
	c := b.u.Command("mount-repair", args...)
	c.Stdin = strings.NewReader(stdin)
	return harness.Finish(b.t, c)
}

// ok runs operations that must all succeed.
func (b *box) ok(ops ...string) {
	b.t.Helper()
	for i, l := range b.repair(ops...) {
		if l != "ok" {
			b.t.Fatalf("%s: %s", ops[i], l)
		}
	}
}

// not runs one operation that must give a result beginning with want.
func (b *box) not(want string, op string) string {
	b.t.Helper()
	r := b.repair(op)[0]
	if !strings.HasPrefix(r, want) {
		b.t.Fatalf("%s: %s, want %s", op, r, want)
	}
	return r
}

// mounts is the mount table inside.
func (b *box) mounts() []mountinfo.Mount {
	b.t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", b.PID))
	if err != nil {
		b.t.Fatal(err)
	}
	ms, err := mountinfo.Parse(data)
	if err != nil {
		b.t.Fatal(err)
	}
	return ms
}

func (b *box) want(got, want string) {
	b.t.Helper()
	if got != want {
		b.t.Fatalf("got %q, want %q", got, want)
	}
}

// wants checks whether writing in a folder works inside.
func (b *box) wantWritable(dir string, yes bool) {
	b.t.Helper()
	got := b.Sh("touch " + quote(dir+"/probe") + " && rm -f " + quote(dir+"/probe") + " && echo yes")
	if (got == "yes") != yes {
		b.t.Fatalf("writing in %s: %q, want %v", dir, got, yes)
	}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func TestAddRevokeAddsWriteAccessInPlace(t *testing.T) {
	u := harness.NewUser(t)
	b := newBox(u)
	b.wantWritable(u.Project, false)
	b.ok("rw " + u.Project)
	b.wantWritable(u.Project, true)
	n := len(b.mounts())
	for range 100 {
		b.ok("remount-ro " + u.Project)
		b.ok("rw " + u.Project)
	}
	b.wantWritable(u.Project, true)
	if got := len(b.mounts()); got != n {
		t.Errorf("%d mounts after 100 rounds, %d before", got, n)
	}
	b.ok("remount-ro " + u.Project)
	b.wantWritable(u.Project, false)
	b.ok("remount-rw " + u.Project)
	b.wantWritable(u.Project, true)
}

func TestAnyBytesInAPath(t *testing.T) {
	u := harness.NewUser(t)
	b := newBox(u)
	for _, name := range []string{"a b", "tab\there", "new\nline", "colon:x", "#hash*", "back\\slash", "\xff\xfe", "é"} {
		dir := filepath.Join(u.Project, name)
		u.Mkdir(dir)
		b.ok("rw " + escape(dir))
		found := false
		for _, m := range b.mounts() {
			found = found || m.Point == dir && !m.ReadOnly()
		}
		if !found {
			t.Errorf("%q is not mounted", dir)
		}
	}
}

func escape(s string) string { return record.Escape(s) }
