// Package guard tests mount-guard on real sessions of ordinary users.
package guard

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A guarded session with a shell inside.
type guarded struct {
	*harness.Shell
	t   testing.TB
	u   *harness.User
	reg *session.Registry
	rec session.Record
}

func start(u *harness.User, env ...string) *guarded {
	u.T.Helper()
	c := u.Command("agent-sandbox", "--", "bash", "--norc", "--noprofile")
	c.Env = append(c.Env, env...)
	g := &guarded{Shell: harness.NewShell(u.T, c), t: u.T, u: u}
	var err error
	if g.reg, err = session.OpenRegistry(u.Runtime+"/agent-sandbox/sessions", u.UID); err != nil {
		u.T.Fatal(err)
	}
	u.T.Cleanup(g.reg.Close)
	g.read()
	return g
}

func (g *guarded) read() {
	g.t.Helper()
	var err error
	if g.rec, err = g.reg.Read(g.Sh("echo $SANDBOX_SESSION")); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) log() string {
	data, _ := os.ReadFile(g.u.Home + "/.local/state/agent-sandbox/log/" + g.rec.ID + ".log")
	return string(data)
}

// broken says what of the plan does not hold, by looking from the host.
func (g *guarded) broken() string {
	root := fmt.Sprintf("/proc/%d/root", g.rec.Sandbox.PID)
	last := map[string]mountplan.Mount{}
	for _, m := range g.rec.Mounts {
		last[m.Path] = m
	}
	for _, m := range g.rec.Mounts {
		if last[m.Path].Marshal() != m.Marshal() {
			continue
		}
		host, err := os.Lstat(m.From())
		if err != nil {
			continue
		}
		inside, err := os.Lstat(root + m.Path)
		shown := err == nil
		same := shown && os.SameFile(host, inside)
		var fs syscall.Statfs_t
		syscall.Statfs(root+m.Path, &fs)
		readOnly := fs.Flags&1 != 0
		switch m.Kind {
		case mountplan.RO, mountplan.RW:
			if !same {
				return string(m.Kind) + " " + m.Path + " shows another object"
			}
			if readOnly != (m.Kind == mountplan.RO) {
				return fmt.Sprintf("%s %s: read-only is %v", m.Kind, m.Path, readOnly)
			}
		case mountplan.MaskFile, mountplan.MaskDir, mountplan.Data:
			if m.Mode != mountplan.DataCopy && same {
				return string(m.Kind) + " " + m.Path + " shows the host's object"
			}
		}
	}
	return ""
}

func (g *guarded) mended(what string) {
	g.t.Helper()
	var why string
	for range 2000 {
		if why = g.broken(); why == "" {
			return
		}
		syscall.Select(0, nil, nil, nil, &syscall.Timeval{Usec: 5000})
	}
	g.t.Fatalf("%s: %s; log:\n%s", what, why, g.log())
}

func (g *guarded) mounts() []mountinfo.Mount {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", g.rec.Sandbox.PID))
	if err != nil {
		g.t.Fatal(err)
	}
	ms, err := mountinfo.Parse(data)
	if err != nil {
		g.t.Fatal(err)
	}
	return ms
}

// user makes a user with a home that has something of each kind.
func user(t *testing.T) *harness.User {
	u := harness.NewUser(t)
	u.Write("proj/.git/hooks/pre-commit", "hook")
	u.Write("proj/.git/config", "config")
	u.Write("proj/secret", "SECRET")
	u.Write("proj/keys/id", "SECRET")
	u.Write("proj/deep/er/secret", "SECRET")
	u.Write("extra/f", "f")
	u.Write("rofile", "old")
	u.Write(".vimrc", "old")
	u.Write(".cache/x", "x")
	u.Write("wfile", "old")
	u.Config(`READONLY_MOUNTS+=("$HOME/rofile")
EXTRA_WRITABLE_PATHS=("$HOME/extra" "$HOME/wfile")
BLOCKED_FILES=("$HOME/proj/secret" "$HOME/proj/deep/er/secret")
EXTRA_BLOCKED_PATHS=("$HOME/proj/keys")
`)
	return u
}

// over writes a new file over an old one as editors and git do.
func (g *guarded) over(path, content string) {
	g.t.Helper()
	g.u.Write(path+".new", content)
	if err := os.Rename(path+".new", path); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) move(from, to string) {
	g.t.Helper()
	if err := os.Rename(from, to); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) eventually(what, command, want string) {
	g.t.Helper()
	var got string
	defer func() {
		if g.t.Failed() {
			g.t.Logf("%s: last %q; log:\n%s", what, got, g.log())
		}
	}()
	harness.Eventually(g.t, what, func() bool { got = g.Sh(command); return got == want })
}

func modes(t *testing.T, f func(t *testing.T, mode string)) {
	for _, mode := range []string{"tmpwrite", "write"} {
		t.Run(mode, func(t *testing.T) { f(t, mode) })
	}
}

func TestRenamesOverFiles(t *testing.T) {
	modes(t, func(t *testing.T, mode string) {
		u := user(t)
		g := start(u, "HOME_ACCESS="+mode)
		g.mended("at the start")
		for i := range 3 {
			g.over(u.Project+"/secret", "SECRET")
			g.mended("masked file")
			g.eventually("mask", "cat ~/proj/secret", "")
			g.over(u.Home+"/rofile", fmt.Sprint("new", i))
			g.mended("read-only file")
			g.eventually("content", "cat ~/rofile", fmt.Sprint("new", i))
			g.eventually("read-only", "(echo x >~/rofile) 2>/dev/null || echo no", "no")
			g.over(u.Home+"/wfile", fmt.Sprint("new", i))
			g.mended("writable file")
			g.eventually("content", "cat ~/wfile", fmt.Sprint("new", i))
			g.over(u.Home+"/.vimrc", fmt.Sprint("new", i))
			g.mended("read-only entry of the home")
			g.over(u.Project+"/.git/config", fmt.Sprint("new", i))
			g.mended("git config")
			g.eventually("read-only", "(echo x >~/proj/.git/config) 2>/dev/null || echo no", "no")
			g.over(u.Project+"/deep/er/secret", "SECRET")
			g.mended("deep masked file")
		}
		g.Sh("echo mine >~/wfile")
		if data, _ := os.ReadFile(u.Home + "/wfile"); string(data) != "mine\n" {
			t.Errorf("writing went elsewhere: %q", data)
		}
	})
}

func TestFoldersMovedAway(t *testing.T) {
	modes(t, func(t *testing.T, mode string) {
		u := user(t)
		g := start(u, "HOME_ACCESS="+mode)
		// The masked folder, with a new one in its place.
		g.move(u.Project+"/keys", u.Project+"/keys.old")
		u.Write("proj/keys/id", "SECRET")
		g.mended("masked folder")
		g.eventually("mask", "ls -A ~/proj/keys", "")
		// A folder above a masked file.
		g.move(u.Project+"/deep", u.Project+"/deep.old")
		u.Write("proj/deep/er/secret", "SECRET")
		g.mended("folder above a mask")
		g.eventually("mask", "cat ~/proj/deep/er/secret", "")
		// The masked file itself, and later a new one.
		g.move(u.Project+"/secret", u.Project+"/secret.old")
		u.Write("proj/secret", "SECRET")
		g.mended("masked file")
		g.eventually("mask", "cat ~/proj/secret", "")
		// A writable folder.
		g.move(u.Home+"/extra", u.Home+"/extra.old")
		u.Write("extra/g", "g")
		g.mended("writable folder")
		g.eventually("new folder", "ls ~/extra && touch ~/extra/x && echo yes", "g\nyes")
	})
}

// What was writable under the plan's name is not under another, and is again
// when the host moves it back.
func TestWritableFolderMovedAwayAndBack(t *testing.T) {
	u := user(t)
	g := start(u, "HOME_ACCESS=read")
	g.move(u.Home+"/extra", u.Home+"/extra.old")
	g.eventually("read-only", "touch ~/extra.old/x 2>/dev/null || echo no", "no")
	g.move(u.Home+"/extra.old", u.Home+"/extra")
	g.mended("moved back")
	g.eventually("writable", "touch ~/extra/x && echo yes", "yes")
	if g.Sh("echo $SANDBOX_SESSION"); strings.Contains(g.log(), " error ") {
		t.Error(g.log())
	}
}

func TestProjectMadeAnew(t *testing.T) {
	modes(t, func(t *testing.T, mode string) {
		u := user(t)
		g := start(u, "HOME_ACCESS="+mode)
		g.Sh(`( while [ ! -e /tmp/stop ]; do cat ` + u.Project + `/secret ` + u.Project + `/keys/id ` + u.Project + `/deep/er/secret; done 2>/dev/null >/tmp/seen ) &`)
		// Built aside and renamed, so that the host never has it half made.
		for i := range 5 {
			u.Write("next/.git/config", fmt.Sprint("config", i))
			u.Write("next/.git/hooks/pre-commit", "hook")
			u.Write("next/secret", "SECRET")
			u.Write("next/keys/id", "SECRET")
			u.Write("next/deep/er/secret", "SECRET")
			u.Write("next/n", fmt.Sprint(i))
			g.move(u.Project, fmt.Sprintf("%s/old%d", u.Home, i))
			g.move(u.Home+"/next", u.Project)
			g.mended("project")
			g.eventually("project", "cat ~/proj/n; touch "+u.Project+"/w && echo yes", fmt.Sprintf("%dyes", i))
			g.eventually("masks", "cat ~/proj/secret ~/proj/deep/er/secret; ls -A ~/proj/keys", "")
			g.eventually("overlay", "(echo x >~/proj/.git/config) 2>/dev/null || echo no", "no")
		}
		g.Sh("touch /tmp/stop; wait")
		if seen := g.Sh("cat /tmp/seen"); mode == "tmpwrite" && seen != "" {
			t.Errorf("a protection was missing for a moment: %q", seen)
		}
		os.RemoveAll(u.Project)
		u.Write("next/.git/config", "config")
		u.Write("next/secret", "SECRET")
		u.Write("next/n", "again")
		g.move(u.Home+"/next", u.Project)
		g.mended("removed and made again")
		g.eventually("project", "cat ~/proj/n ~/proj/secret; touch "+u.Project+"/w && echo yes", "againyes")
	})
}

func TestUserAddedOnTheHost(t *testing.T) {
	u := user(t)
	g := start(u)
	before := g.Sh("cat /etc/passwd")
	harness.NewUser(t)
	g.mended("useradd")
	if after := g.Sh("cat /etc/passwd"); after != before {
		t.Errorf("passwd inside changed:\n%s", after)
	}
}

func TestGitAndEditorsOnTheHost(t *testing.T) {
	modes(t, func(t *testing.T, mode string) {
		u := user(t)
		os.RemoveAll(u.Project + "/.git")
		git := func(args ...string) {
			t.Helper()
			if r := u.Run("git", append([]string{"-C", u.Project, "-c", "user.name=x", "-c", "user.email=x@x"}, args...)...); r.Code != 0 {
				t.Fatalf("git %v: %+v", args, r)
			}
		}
		git("init", "-q")
		git("add", "-f", ".")
		git("commit", "-qm", "one")
		git("checkout", "-qb", "other")
		u.Write("proj/secret", "SECRET2")
		u.Write("proj/deep/er/secret", "SECRET2")
		git("commit", "-qam", "two")
		g := start(u, "HOME_ACCESS="+mode)
		for range 3 {
			git("checkout", "-q", "-")
			git("config", "x.y", "z")
			g.mended("checkout")
			g.eventually("masks", "cat ~/proj/secret ~/proj/deep/er/secret", "")
		}
		// vim's way: the old file becomes the backup.
		g.move(u.Home+"/wfile", u.Home+"/wfile~")
		u.Write("wfile", "saved")
		g.mended("editor")
		g.eventually("content", "cat ~/wfile", "saved")
		// sed -i
		u.Run("sed", "-i", "s/saved/again/", u.Home+"/wfile")
		g.mended("sed")
		g.eventually("content", "cat ~/wfile", "again")
	})
}

func TestStormOfRenames(t *testing.T) {
	u := user(t)
	g := start(u)
	for i := range 1000 {
		g.over(u.Project+"/secret", fmt.Sprint(i))
	}
	g.mended("storm")
	g.eventually("mask", "cat ~/proj/secret", "")
	if n := len(g.mounts()); n > 100 {
		t.Errorf("%d mounts", n)
	}
}

func TestManySessions(t *testing.T) {
	u := user(t)
	var all []*guarded
	for range 20 {
		all = append(all, start(u))
	}
	all[0].over(u.Project+"/secret", "SECRET")
	all[0].over(u.Home+"/rofile", "new")
	for _, g := range all {
		g.mended("one of many")
		g.eventually("content", "cat ~/rofile ~/proj/secret", "new")
	}
}

// signal tells the guard to read the record again.
func (g *guarded) signal() {
	g.t.Helper()
	if err := g.rec.Guard.Signal(g.rec.Launcher, syscall.SIGUSR1); err != nil {
		g.t.Fatal(err)
	}
}

func (g *guarded) repair(op string) {
	g.t.Helper()
	c := g.u.Command("mount-repair", fmt.Sprint(g.rec.Sandbox.PID), fmt.Sprint(g.rec.Sandbox.Start), fmt.Sprint(g.rec.MountNS))
	c.Stdin = strings.NewReader(op + "\n")
	if r := harness.Finish(g.t, c); r.Code != 0 {
		g.t.Fatalf("%s: %+v", op, r)
	}
}

func TestRevocationIsNeverRepaired(t *testing.T) {
	u := user(t)
	u.Mkdir(u.Home + "/dir")
	g := start(u, "HOME_ACCESS=read")
	// Revoked, but the reloader was killed before it wrote the record.
	g.repair("remount-ro " + u.Home + "/extra")
	g.signal()
	read := func(n int) {
		harness.Eventually(t, "the record to be read", func() bool { return strings.Count(g.log(), "read the session record again") >= n })
	}
	read(1)
	g.over(u.Home+"/rofile", "new") // something to repair, so that it has looked
	g.eventually("looked", "cat ~/rofile", "new")
	if r := g.Sh("touch ~/extra/x 2>/dev/null || echo no"); r != "no" {
		t.Errorf("the guard made it writable: %s", g.log())
	}
	// Out of the record: a new folder in its place stays read-only too.
	rec := g.rec
	rec.Mounts = nil
	for _, m := range g.rec.Mounts {
		if m.Path != u.Home+"/extra" {
			rec.Mounts = append(rec.Mounts, m)
		}
	}
	g.write(rec)
	g.signal()
	read(2)
	g.move(u.Home+"/extra", u.Home+"/extra.old")
	u.Write("extra/g", "g")
	g.over(u.Home+"/rofile", "newer")
	g.eventually("looked", "cat ~/rofile", "newer")
	if r := g.Sh("touch ~/extra/x 2>/dev/null || echo no"); r != "no" {
		t.Errorf("the guard made it writable: %s", g.log())
	}
}

// write puts a record in place as its user.
func (g *guarded) write(rec session.Record) {
	g.t.Helper()
	if err := g.reg.Write(rec); err != nil {
		g.t.Fatal(err)
	}
	os.Chown(g.reg.File(rec.ID), g.u.UID, g.u.GID)
}

func TestRestsWhileAReloadApplies(t *testing.T) {
	u := user(t)
	g := start(u)
	// A reloader that lives until its input ends, and holds the marker.
	c := u.Command("bash", "-c", "read -r line")
	in, _ := c.StdinPipe()
	c.Start()
	defer c.Wait()
	p, err := session.ProcOf(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	marker := g.reg.File(g.rec.ID) + ".reload"
	if err := os.WriteFile(marker, []byte(p.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Chown(marker, u.UID, u.GID)
	later := syscall.NsecToTimespec(1 << 62)
	syscall.UtimesNano(marker, []syscall.Timespec{later, later})
	g.over(u.Project+"/secret", "SECRET")
	syscall.Select(0, nil, nil, nil, &syscall.Timeval{Usec: 300000})
	if g.broken() == "" {
		t.Error("the guard did not rest")
	}
	in.Close() // killed, and the marker stays
	g.mended("after the reload")
}

func TestMissingMaskAppears(t *testing.T) {
	u := user(t)
	os.Remove(u.Project + "/deep/er/secret")
	os.Remove(u.Project + "/deep/er")
	os.Remove(u.Project + "/deep")
	g := start(u)
	os.RemoveAll(u.Project + "/deep")
	u.Write("proj/deep/er/secret", "SECRET")
	g.mended("late file")
	g.eventually("mask", "cat ~/proj/deep/er/secret", "")
}

func TestWarnOnlyReports(t *testing.T) {
	u := user(t)
	g := start(u, "MOUNT_GUARD=warn")
	g.over(u.Project+"/secret", "SECRET")
	harness.Eventually(t, "report", func() bool { return strings.Contains(g.log(), "not as planned") })
	if g.broken() == "" {
		t.Error("it was repaired")
	}
}

func TestOffStillKeeps(t *testing.T) {
	u := user(t)
	g := start(u, "MOUNT_GUARD=off")
	if g.rec.Guard.PID != 0 || g.log() != "" {
		t.Errorf("%v %q", g.rec.Guard, g.log())
	}
	pid := g.rec.Sandbox
	syscall.Kill(g.rec.Launcher.PID, syscall.SIGKILL)
	harness.Eventually(t, "end", func() bool { return !pid.Alive() })
}

func TestRebindOff(t *testing.T) {
	u := user(t)
	g := start(u, "MOUNT_GUARD_REBIND=false")
	g.over(u.Home+"/wfile", "new")
	g.over(u.Project+"/secret", "SECRET")
	g.eventually("protection", "cat ~/proj/secret", "")
	if r := g.Sh("cat ~/wfile"); r != "old" {
		t.Errorf("%q", r)
	}
}

func TestOutOfWatches(t *testing.T) {
	u := user(t)
	// Instances are counted by user: all of this one's are taken.
	var taken bytes.Buffer
	c := u.Command("perl", "-e", `1 while syscall(253) >= 0; $| = 1; print "full\n"; <STDIN>`) // inotify_init
	in, _ := c.StdinPipe()
	c.Stdout = &taken
	c.Start()
	defer func() { in.Close(); c.Wait() }()
	harness.Eventually(t, "no inotify left", func() bool { return strings.Contains(taken.String(), "full") })
	g := start(u)
	g.over(u.Project+"/keys/../secret", "SECRET")
	g.mended("without inotify")
	g.move(u.Project+"/keys", u.Project+"/keys.old")
	u.Write("proj/keys/id", "SECRET")
	g.mended("without inotify")
	if !strings.Contains(g.log(), "looking once a second") {
		t.Errorf("log: %s", g.log())
	}
}

func TestLogIsPrivateAndOldOnesGo(t *testing.T) {
	u := user(t)
	dir := u.Home + "/.local/state/agent-sandbox/log"
	u.Mkdir(dir)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		os.Chmod(d, 0o700)
	}
	u.Write(dir+"/00000000.log", "old\n")
	u.Write(dir+"/00000001.log", "young\n")
	exec.Command("touch", "-d", "8 days ago", dir+"/00000000.log").Run()
	g := start(u)
	g.over(u.Project+"/secret", "SECRET") // the log begins with the first repair
	harness.Eventually(t, "log", func() bool { return g.log() != "" })
	if _, err := os.Stat(dir + "/00000000.log"); err == nil {
		t.Error("an old log stays")
	}
	if _, err := os.Stat(dir + "/00000001.log"); err != nil {
		t.Error("a young log is gone")
	}
	st, err := os.Stat(dir + "/" + g.rec.ID + ".log")
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", st, err)
	}
	if r := g.Sh("ls ~/.local/state/agent-sandbox 2>/dev/null"); r != "" {
		t.Errorf("the agent sees %q", r)
	}
}
