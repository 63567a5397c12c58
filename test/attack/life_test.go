package attack

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/record"
	"agent-sandbox/internal/session"
	"agent-sandbox/test/harness"
)

// A live is a session that runs `cat`, so that it ends when in is closed.
type live struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	rec session.Record
	out bytes.Buffer
}

// start starts a session and waits for its record. The script runs before it
// waits for its input to end.
func start(t testing.TB, u *harness.User, script string, env ...string) *live {
	t.Helper()
	l := &live{t: t, cmd: u.Command("agent-sandbox", "bash", "-c", script+"\ncat >/dev/null")}
	return l.start(u, env...)
}

func (l *live) start(u *harness.User, env ...string) *live {
	t := l.t
	t.Helper()
	l.cmd.Env = append(l.cmd.Env, env...)
	l.in, _ = l.cmd.StdinPipe()
	l.cmd.Stdout, l.cmd.Stderr = &l.out, &l.out
	l.cmd.WaitDelay = time.Second // an orphan holds its output open
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.in.Close(); l.cmd.Process.Kill(); l.cmd.Wait() })
	harness.Eventually(t, "the record of the session", func() bool {
		for _, f := range records(u) {
			data, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			r, err := session.Parse(data)
			if err != nil {
				t.Fatalf("record: %v\n%s", err, data)
			}
			if r.Launcher.PID == l.cmd.Process.Pid {
				l.rec = r
				return true
			}
		}
		return false
	})
	return l
}

// end closes the session's input and waits for its end.
func (l *live) end() {
	l.t.Helper()
	l.in.Close()
	if err := l.cmd.Wait(); err != nil {
		l.t.Errorf("session ended with %v: %s", err, l.out.String())
	}
}

func records(u *harness.User) []string {
	var out []string
	for _, dir := range []string{u.Runtime, u.Home + "/.local/state"} {
		found, _ := filepath.Glob(dir + "/agent-sandbox/sessions/????????")
		out = append(out, found...)
	}
	return out
}

func exists(p string) bool { _, err := os.Lstat(p); return err == nil }

// inside runs a script in a session of its own and returns what it prints,
// errors as well.
func inside(t testing.TB, u *harness.User, script string, env ...string) string {
	t.Helper()
	c := u.Command("agent-sandbox", "bash", "-c", "exec 2>&1\n"+script)
	c.Env = append(c.Env, env...)
	r := harness.Finish(t, c)
	if r.Code == 125 {
		t.Fatalf("no sandbox: %s", r.Stderr)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

func want(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// compile builds the attacker where every session sees it.
func compile(t testing.TB, src string) string {
	t.Helper()
	bin := filepath.Join(filepath.Dir(harness.Bin(t, "agent-sandbox")), strings.TrimSuffix(filepath.Base(src), ".c"))
	if out, err := exec.Command("gcc", "-O1", "-static", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// immortal takes the death signal from the sandbox's first process and stops the
// supervisor, which would end the session when the launcher's socket closes.
func (l *live) immortal(u *harness.User, tool string) {
	l.t.Helper()
	pid := fmt.Sprint(l.rec.Sandbox.PID)
	if r := u.Run(tool, "immortal", pid); r.Code != 0 {
		l.t.Fatalf("cannot take the death signal: %s", r.Stderr)
	}
	if r := u.Run("pkill", "-STOP", "-P", pid); r.Code != 0 {
		l.t.Fatalf("cannot stop the supervisor: %s", r.Stderr)
	}
}

// TestDeathSignalTakenFromPid1: an agent that could trace the sandbox's first
// process would take its death signal; the keeper ends the sandbox all the same.
// The kernel here has Landlock, which forbids that trace inside, so it is done
// from outside, by the same user.
func TestDeathSignalTakenFromPid1(t *testing.T) {
	tool := compile(t, "attacks/testdata/attacker.c")
	for _, guard := range []string{"repair", "off"} {
		t.Run(guard, func(t *testing.T) {
			u := harness.NewUser(t)
			l := start(t, u, "echo up", "MOUNT_GUARD="+guard)
			l.immortal(u, tool)
			l.cmd.Process.Kill()
			l.cmd.Wait()
			harness.Eventually(t, "the end of the sandbox", func() bool { return !l.rec.Sandbox.Alive() })
			if r := u.Run("agent-sandbox", "sessions"); r.Stdout != "" {
				t.Errorf("sessions: %q", r.Stdout)
			}
			if left := records(u); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// TestOrphanIsEnded: a sandbox whose launcher and keeper are both gone is ended by
// the next launch.
func TestOrphanIsEnded(t *testing.T) {
	tool := compile(t, "attacks/testdata/attacker.c")
	u := harness.NewUser(t)
	l := start(t, u, "echo up")
	l.immortal(u, tool)
	syscall.Kill(l.rec.Guard.PID, syscall.SIGKILL)
	l.cmd.Process.Kill()
	l.cmd.Wait()
	if !l.rec.Sandbox.Alive() {
		t.Error("the sandbox ended by itself: nothing is shown")
	}
	want(t, "launch", inside(t, u, "echo hello"), "hello")
	if l.rec.Sandbox.Alive() {
		t.Error("the sandbox lives on")
	}
	if left := records(u); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestSignalToTheProcessGroup: the session shares the process group of what
// started it, since Ctrl-C has to reach both; kill(0) must not get out.
func TestSignalToTheProcessGroup(t *testing.T) {
	u := harness.NewUser(t)
	c := u.Command("bash", "-c", `agent-sandbox bash -c 'trap "" TERM HUP; kill -TERM 0; kill -HUP 0; kill -KILL 0; echo no'; echo outside $?`)
	c.SysProcAttr.Setpgid = true
	r := harness.Finish(t, c)
	want(t, "the shell outside", r.Stdout, "outside 137\n")
}

// TestPlaceholders: what a protection of something missing needs on the host is
// gone afterwards, however the session ends.
func TestPlaceholders(t *testing.T) {
	u := harness.NewUser(t)
	a, b := u.Project+"/to-come.env", u.Project+"/not/there/key"
	u.Config(fmt.Sprintf("BLOCKED_FILES+=(%s %s)\nEXTRA_BLOCKED_PATHS+=(%s)\n", a, b, u.Project+"/folder"))
	gone := func(when string) {
		t.Helper()
		for _, p := range []string{a, u.Project + "/not", u.Project + "/folder"} {
			if exists(p) {
				t.Errorf("%s: %s is still there", when, p)
			}
		}
	}
	want(t, "writing what is masked", inside(t, u, "echo x > to-come.env; echo x >folder/x; cat to-come.env not/there/key folder/x"),
		"bash: line 2: to-come.env: Read-only file system\nbash: line 2: folder/x: Read-only file system\ncat: folder/x: No such file or directory")
	gone("after the end")

	l := start(t, u, "echo up")
	if !exists(a) || !exists(b) {
		t.Error("no placeholders")
	}
	if len(l.rec.Made) == 0 {
		t.Error("no `made` line in the record")
	}
	l.cmd.Process.Kill()
	l.cmd.Wait()
	harness.Eventually(t, "the end of the sandbox", func() bool { return !l.rec.Sandbox.Alive() })
	u.Run("agent-sandbox", "sessions")
	gone("after SIGKILL and sessions")

	l = start(t, u, "echo up")
	l.cmd.Process.Kill()
	l.cmd.Wait()
	u.Run("agent-sandbox", "true")
	gone("after SIGKILL and a launch")

	// What somebody put there meanwhile is theirs.
	l = start(t, u, "echo up")
	os.Remove(a)
	u.Write(a, "mine\n")
	l.end()
	if data, err := os.ReadFile(a); err != nil || string(data) != "mine\n" {
		t.Errorf("the user's own file: %q, %v", data, err)
	}
}

// TestTwoSessionsMaskOneMissingFile: the placeholder stays for as long as one of
// them runs, whichever ends first.
func TestTwoSessionsMaskOneMissingFile(t *testing.T) {
	for _, first := range []int{0, 1} {
		u := harness.NewUser(t)
		p := u.Project + "/to-come.env"
		u.Config("BLOCKED_FILES+=(" + p + ")\n")
		ls := []*live{start(t, u, "echo up"), start(t, u, "cd; sleep 0.1; cd -; while read -r _; do echo evil >to-come.env; cat to-come.env; done")}
		ls[first].end()
		if !exists(p) {
			t.Errorf("the placeholder went with session %d, the other still needs it", first)
		}
		last := ls[1-first]
		fmt.Fprintln(last.in, "try")
		last.end()
		if exists(p) {
			t.Error("the placeholder stays after both have ended")
		}
		if strings.Contains(last.out.String(), "evil\n") {
			t.Errorf("the file could be planted: %s", last.out.String())
		}
	}
}

// TestHostMountDuringASession: what the host mounts while a session runs does not
// arrive in it, writable, below a path that is read-only there. The host's mounts
// are made shared in a mount namespace of the test's own.
func TestHostMountDuringASession(t *testing.T) {
	u := harness.NewUser(t)
	base := "/srv/" + u.Name
	t.Cleanup(func() { os.RemoveAll(base) })
	for _, d := range []string{"ro", "rw", "auto"} {
		u.Mkdir(base + "/" + d + "/mnt")
	}
	u.Config(fmt.Sprintf("READONLY_MOUNTS+=(%[1]s/ro)\nEXTRA_WRITABLE_PATHS+=(%[1]s/rw)\n", base))
	run := func(conf string) harness.Result {
		// The shell is root in the new namespace; the session is the user's.
		script := fmt.Sprintf(`set -e
mount --make-rshared /
mkfifo $B/to $B/from 2>/dev/null || true; chmod 666 $B/to $B/from
chmod 755 $B
setpriv --reuid %[1]d --regid %[2]d --clear-groups env -i %[3]s bash -c 'cd %[4]s; exec agent-sandbox bash -c "
echo up; read -r _
for d in ro rw; do echo evil >%[5]s/\$d/mnt/x && echo wrote \$d; ls %[5]s/\$d/mnt; done 2>/dev/null"' <$B/to >$B/from &
exec 5>$B/to 6<$B/from
read -r up <&6; [ "$up" = up ]
for d in ro rw; do mount -t tmpfs -o mode=777 t %[5]s/$d/mnt; done
echo go >&5; cat <&6; wait
ls %[5]s/ro/mnt %[5]s/rw/mnt`, u.UID, u.GID, shellEnv(u), u.Project, base)
		c := exec.Command("unshare", "-m", "--propagation", "private", "bash", "-c", script)
		c.Env = append(os.Environ(), "B="+t.TempDir())
		return harness.Finish(t, c)
	}
	r := run("")
	if r.Code != 0 || strings.Contains(r.Stdout, "wrote ro") || strings.Count(r.Stdout, "x\n") > 1 {
		t.Errorf("exit %d: %q %s", r.Code, r.Stdout, r.Stderr)
	}
}

func shellEnv(u *harness.User) string {
	var b strings.Builder
	for _, e := range u.Environ() {
		fmt.Fprintf(&b, " '%s'", e)
	}
	return b.String()
}

// TestPlanIsTheRecord: `plan` prints what a session of the same configuration has.
func TestPlanIsTheRecord(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(".gitconfig", "[user]\n\tname = n\n")
	for _, mode := range []string{"restricted", "tmpwrite", "read", "write"} {
		// The second session's plan must be that of the first: placeholders and
		// all that the first made are no part of it.
		l := start(t, u, "echo up", "HOME_ACCESS="+mode)
		data, _ := os.ReadFile(records(u)[0])
		var rec []string
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "setting ") || strings.HasPrefix(line, "mount ") {
				rec = append(rec, line)
			}
		}
		c := u.Command("agent-sandbox", "plan")
		c.Env = append(c.Env, "HOME_ACCESS="+mode)
		r := harness.Finish(t, c)
		want(t, mode, r.Stdout, strings.Join(rec, ""))
		l.end()
	}
}

// TestAnyBytes: every kind of path may have any bytes, and so may arguments.
func TestAnyBytes(t *testing.T) {
	u := harness.NewUser(t)
	names := []string{"a b", "q'u\"o", "new\nline", "tab\there", "co:lon", "ha#sh", "st*ar", "back\\slash", "\xff\xfe\x80", "$(id)`id`", "-dash", "é"}
	var conf strings.Builder
	conf.WriteString("BLOCKED_FILES=()\n")
	quote := func(s string) string {
		var b strings.Builder
		for _, c := range []byte(s) {
			fmt.Fprintf(&b, "\\x%02x", c)
		}
		return "$'" + b.String() + "'"
	}
	base := "/srv/" + u.Name
	t.Cleanup(func() { os.RemoveAll(base) })
	for _, n := range names {
		for _, kind := range []string{"rw", "ro", "dir"} {
			u.Mkdir(base + "/" + kind + "/" + n)
			u.Write(base+"/"+kind+"/"+n+"/f", "in "+kind)
		}
		u.Write(base+"/rw/"+n+"/masked "+n, "TOPSECRET")
		fmt.Fprintf(&conf, "EXTRA_WRITABLE_PATHS+=(%s)\nREADONLY_MOUNTS+=(%s)\nBLOCKED_FILES+=(%s)\nEXTRA_BLOCKED_PATHS+=(%s)\n",
			quote(base+"/rw/"+n), quote(base+"/ro/"+n), quote(base+"/rw/"+n+"/masked "+n), quote(base+"/rw/"+n+"/hidden "+n))
		u.Mkdir(base + "/rw/" + n + "/hidden " + n)
		u.Write(base+"/rw/"+n+"/hidden "+n+"/f", "TOPSECRET")
	}
	u.Config(conf.String())
	for _, n := range names {
		u.Project = filepath.Join(u.Home, "projects", n)
		u.Mkdir(u.Project)
		script := `cd "$1/rw/$2" && echo changed >f && cd "$1/ro/$2" && cat f && ! echo evil >f && cd "$1/rw/$2" && cat "masked $2" && ls -A "hidden $2"; pwd >/dev/null; echo "$3"; echo here >"$SANDBOX_PROJECT_DIR/made"; cat >/dev/null`
		l := &live{t: t, cmd: u.Command("agent-sandbox", "bash", "-c", script, "bash", base, n, n)}
		l.start(u)
		if l.rec.Project != u.Project {
			t.Errorf("record has project %q, want %q", l.rec.Project, u.Project)
		}
		if !strings.HasSuffix(l.rec.Command, " "+n+" "+n) {
			t.Errorf("record has command %q", l.rec.Command)
		}
		r := u.Run("agent-sandbox", "sessions")
		f := strings.Split(strings.TrimSuffix(r.Stdout, "\n"), "\t")
		if len(f) != 6 || strings.Count(r.Stdout, "\n") != 1 || f[4] != record.Escape(u.Project) || !strings.HasSuffix(f[5], record.Escape(n)) {
			t.Errorf("sessions prints %q", r.Stdout)
		}
		l.end()
		if out := l.out.String(); !strings.HasPrefix(out, "in ro") || strings.Contains(out, "TOPSECRET") || !strings.HasSuffix(out, n+"\n") {
			t.Errorf("%q: the session prints %q", n, out)
		}
		for p, w := range map[string]string{base + "/rw/" + n + "/f": "changed\n", base + "/ro/" + n + "/f": "in ro", u.Project + "/made": "here\n"} {
			if data, err := os.ReadFile(p); err != nil || string(data) != w {
				t.Errorf("%q has %q, %v, want %q", p, data, err, w)
			}
		}
	}
}
