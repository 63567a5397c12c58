package reload

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/test/harness"
)

// A killScene has a change of every kind; states are what each path may be.
type killScene struct {
	*fixture
	secret, gone, come string
}

func newKillScene(t *testing.T) *killScene {
	f := newFixture(t, "gone", "come/ro", "come/dir", "both/child")
	f.Write(f.p("secret"), "k3y")
	f.Write(f.p("come/dir/file"), "k3y")
	k := &killScene{f, f.p("secret"), f.p("gone"), f.p("come")}
	k.before()
	return k
}

func (k *killScene) before() { k.conf([]string{"gone", "both/child"}) }

func (k *killScene) after() {
	k.conf([]string{"come", "both"}, "BLOCKED_FILES+=("+k.secret+")", "EXTRA_BLOCKED_PATHS+=("+k.p("come/dir")+")", "READONLY_MOUNTS+=("+k.p("come/ro")+")")
}

// check compares the session with what it may be after a reload that was killed:
// every path old or new, and never wider than both; the record true or stricter.
func (k *killScene) check(b *box, where string) {
	t := b.t
	t.Helper()
	read := func(p string) string { return b.sh("cat " + p + " 2>/dev/null") }
	come, gone := b.writable(k.come), b.writable(k.gone)
	if come {
		// What was added brings its protections.
		if read(k.p("come/dir/file")) != "" || b.writable(k.p("come/ro")) || b.writable(k.p("come/dir")) {
			t.Errorf("%s: the addition is there without its protections", where)
		}
	}
	if !b.writable(k.p("both/child")) {
		t.Errorf("%s: what is writable before and after is not", where)
	}
	rec := b.record()
	told := map[string]mountplan.Kind{}
	for _, m := range rec.Mounts {
		told[m.Path] = m.Kind
	}
	if told[k.gone] == mountplan.RW && !gone || told[k.come] == mountplan.RW && !come {
		t.Errorf("%s: the record is wider than the session", where)
	}
	if told[k.secret] == "" && read(k.secret) == "" {
		t.Errorf("%s: a mask is not in the record", where)
	}
	for _, d := range []string{k.top, k.p("come/ro")} {
		if b.writable(d) {
			t.Errorf("%s: %s is writable", where, d)
		}
	}
	// The next reload finishes, also one that goes back.
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%s: the next reload: %d %s%s", where, r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(true, k.come, k.p("both"), k.p("both/child"))
	b.wantWritable(false, k.gone, k.p("come/ro"), k.p("come/dir"))
	if got := read(k.secret) + read(k.p("come/dir/file")); got != "" {
		t.Errorf("%s: reads %q", where, got)
	}
	// both/child lay in it before and is kept.
	b.check(b.reload(), 0, "KEEP "+k.p("both/child"))
}

// The reloader is killed with its mount-repair after each operation.
func TestKilledAfterEachOperation(t *testing.T) {
	k := newKillScene(t)
	bin := k.suite("")
	real := bin + "/mount-repair.real"
	os.Rename(bin+"/mount-repair", real)
	wrapper := func(n int) {
		// Its parent is the reloader. Operations after the n-th never happen.
		text := fmt.Sprintf("#!/bin/sh\nhead -n %d > /tmp/ops.$$\n%s \"$@\" < /tmp/ops.$$ >/dev/null\nrm /tmp/ops.$$\nkill -9 $PPID\n", n, real)
		if n < 0 {
			text = "#!/bin/sh\nexec " + real + " \"$@\"\n"
		}
		os.Remove(bin + "/mount-repair")
		if err := os.WriteFile(bin+"/mount-repair", []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; ; n++ {
		k.before()
		wrapper(-1)
		b := k.startCommand(k.in(bin, "agent-sandbox", "bash", "--norc", "--noprofile"))
		k.after()
		dry := parse(t, harness.Finish(t, k.in(bin, "agent-sandbox", "reload", "--dry-run")))
		wrapper(n)
		r := harness.Finish(t, k.in(bin, "agent-sandbox", "reload"))
		if r.Code != 128+9 || r.Stdout != "" {
			t.Fatalf("after %d operations: exit %d %q %q", n, r.Code, r.Stdout, r.Stderr)
		}
		wrapper(-1)
		k.check(b, fmt.Sprintf("killed after %d operations", n))
		b.end()
		if n > len(dry.lines)+3 {
			break
		}
	}
}

// Either of them is killed at each system call that changes something.
func TestKilledAtEachSystemCall(t *testing.T) {
	strace, err := exec.LookPath("strace")
	harness.Need(t, err == nil, "strace is needed")
	for _, call := range []string{"renameat,renameat2,unlinkat,mkdirat", "flock", "move_mount", "mount_setattr", "open_tree", "execve,clone,clone3", "pidfd_send_signal"} {
		t.Run(call, func(t *testing.T) {
			killed := 0
			k := newKillScene(t)
			for n := 1; n < 40; n += 1 + n/4 {
				k.before()
				b := k.start()
				k.after()
				c := k.Command(strace, "-f", "-qq", "-o", "/dev/null", "-e", "trace="+call, "-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", call, n), k.Command("agent-sandbox-reload").Path)
				r := harness.Finish(t, c)
				if r.Code == 0 && !strings.Contains(r.Stderr, "mount-repair") {
					if n == 1 {
						t.Fatalf("the call %s is never made", call)
					}
					b.end()
					break
				}
				killed++
				k.check(b, fmt.Sprintf("killed at call %d of %s (exit %d)", n, call, r.Code))
				b.end()
			}
			t.Logf("killed %d times", killed)
		})
	}
}

// A placeholder of a reload that was killed before it recorded it is removed all
// the same.
func TestPlaceholdersOfAKilledReloadAreRemoved(t *testing.T) {
	f := newFixture(t, "w")
	f.conf([]string{"w"})
	bin := f.suite("")
	b := f.startCommand(f.in(bin, "agent-sandbox", "bash", "--norc", "--noprofile"))
	os.Rename(bin+"/mount-repair", bin+"/mount-repair.real")
	os.WriteFile(bin+"/mount-repair", []byte("#!/bin/sh\nkill -9 $PPID\n"), 0o755)
	f.conf([]string{"w"}, "BLOCKED_FILES+=("+f.p("w/none/yet")+")")
	harness.Finish(t, f.in(bin, "agent-sandbox", "reload"))
	if _, err := os.Lstat(f.p("w/none/yet")); err != nil {
		t.Fatal("no placeholder was made")
	}
	os.Rename(bin+"/mount-repair.real", bin+"/mount-repair")
	rec := b.record()
	syscall.Kill(rec.Launcher.PID, syscall.SIGKILL)
	harness.Eventually(t, "the sandbox to end", func() bool { return !alive(rec.Sandbox) })
	f.Run("agent-sandbox", "sessions")
	if _, err := os.Lstat(f.p("w/none")); err == nil {
		t.Error("the placeholder is left")
	}
}
