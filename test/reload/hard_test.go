package reload

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
	"agent-sandbox/test/harness"
)

// holdWriting is what an agent holds of a folder: each tries to write through it.
var holders = map[string]struct{ take, write, release string }{
	"working directory":      {"cd DIR", "( : > ./w ) 2>/dev/null && echo yes", "cd /"},
	"descriptor of a folder": {"exec 8<DIR", "( : > /proc/self/fd/8/w ) 2>/dev/null && echo yes", "exec 8<&-"},
	"root of a process": {"(cd DIR; while [ ! -e /tmp/stop ]; do [ -e /tmp/go ] && { ( : > ./w ) 2>/dev/null && echo yes > /tmp/said || echo no > /tmp/said; rm /tmp/go; }; sleep 0.01; done) & true",
		"rm -f /tmp/said; : > /tmp/go; while [ -e /tmp/go ]; do sleep 0.01; done; sleep 0.05; grep yes /tmp/said", ": > /tmp/stop; wait; rm -f /tmp/stop"},
}

func TestOldWorkingDirectoriesLoseWriteAccess(t *testing.T) {
	for name, h := range holders {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "p/child")
			f.conf([]string{"p/child"})
			b := f.start()
			in := func(s string) string { return strings.ReplaceAll(s, "DIR", f.p("p/child")) }
			b.sh(in(h.take))
			if b.sh(in(h.write)) != "yes" {
				t.Fatal("cannot write before")
			}
			// Its parent comes over it.
			f.conf([]string{"p", "p/child"})
			b.want(0, "ADD "+f.p("p"))
			b.wantWritable(true, f.p("p"), f.p("p/child"))
			f.conf(nil)
			b.want(0, "REVOKE "+f.p("p/child"), "REVOKE "+f.p("p"))
			b.wantWritable(false, f.p("p"), f.p("p/child"))
			if b.sh(in(h.write)) == "yes" {
				t.Error("still writes")
			}
			b.noStray(f.top)
			b.sh(in(h.release))
		})
	}
}

// noStray checks that no mount below top can be written, covered ones included.
func (b *box) noStray(top string) {
	b.t.Helper()
	for _, m := range b.below(top) {
		if !m.ReadOnly() {
			b.t.Errorf("writable mount %d at %s", m.ID, m.Point)
		}
	}
}

func TestOpenFilesBelowAnAddedParentAreBusy(t *testing.T) {
	for name, take := range map[string]string{
		"descriptor": "exec 8>DIR/f",
		"mapping":    `python3 -c 'import mmap, time; f = open("DIR/f", "w+b"); f.write(b"x" * 4096); f.flush(); m = mmap.mmap(f.fileno(), 4096); f.close(); open("/tmp/up", "w"); time.sleep(600)' & while [ ! -e /tmp/up ]; do sleep 0.01; done`,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "p/child")
			f.conf([]string{"p/child"})
			b := f.start()
			b.sh(strings.ReplaceAll(take, "DIR", f.p("p/child")))
			f.conf([]string{"p", "p/child"})
			b.want(0, "ADD "+f.p("p"))
			f.conf(nil)
			r := b.reload()
			if _, ok := r.find("BUSY", f.p("p/child")); !ok || r.Code != 3 {
				t.Fatalf("%d\n%s", r.Code, r.Stdout)
			}
			b.sh("exec 8>&-; kill %1 2>/dev/null; wait")
			if r := b.reload(); r.Code != 0 {
				t.Fatalf("after closing: %d\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			b.wantWritable(false, f.p("p"), f.p("p/child"))
			b.noStray(f.top)
		})
	}
}

func TestLiveMaskReachesOldWorkingDirectories(t *testing.T) {
	f := newFixture(t, "w/d")
	f.Write(f.p("w/d/secret"), "k3y")
	f.Write(f.p("w/top-secret"), "k3y")
	f.conf([]string{"w"})
	b := f.start()
	b.sh("cd " + f.p("w/d"))
	f.conf([]string{"w"}, "BLOCKED_FILES+=("+f.p("w/d/secret")+" "+f.p("w/top-secret")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := b.sh("cat secret ../top-secret " + f.p("w/d/secret")); got != "" {
		t.Errorf("reads %q", got)
	}
	// And below a folder whose parent came over it.
	g := newFixture(t, "p/c")
	g.Write(g.p("p/c/secret"), "k3y")
	g.conf([]string{"p/c"})
	b = g.start()
	b.sh("cd " + g.p("p/c"))
	g.conf([]string{"p", "p/c"}, "BLOCKED_FILES+=("+g.p("p/c/secret")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := b.sh("cat secret " + g.p("p/c/secret")); got != "" {
		t.Errorf("reads %q", got)
	}
}

func TestOpenSecretIsReportedAsBusy(t *testing.T) {
	f := newFixture(t, "w")
	f.Write(f.p("w/secret"), "k3y")
	f.conf([]string{"w"})
	b := f.start()
	b.sh("exec 8<" + f.p("w/secret"))
	f.conf([]string{"w"}, "BLOCKED_FILES+=("+f.p("w/secret")+")")
	r := b.want(3, "BUSY "+f.p("w/secret"))
	if !strings.Contains(r.lines[0].detail, "fd 8") {
		t.Errorf("%+v", r.lines[0])
	}
	// The mask is there all the same, and stays in the record.
	if got := b.sh("cat " + f.p("w/secret")); got != "" {
		t.Errorf("reads %q", got)
	}
	if b.recorded(f.p("w/secret")) != mountplan.MaskFile {
		t.Error("the mask is not in the record")
	}
}

func TestHundredRoundsLeaveTheMountTableFlat(t *testing.T) {
	f := newFixture(t, "a", "p/c")
	f.conf([]string{"p/c"})
	b := f.start()
	on := []string{"a", "p", "p/c"}
	var n int
	for i := range 100 {
		f.conf(on)
		if r := b.reload(); r.Code != 0 || len(r.lines) == 0 {
			t.Fatalf("round %d: %d %s%s", i, r.Code, r.Stdout, r.Stderr)
		}
		if i == 0 {
			n = len(b.below(f.top))
		}
		f.conf([]string{"p/c"})
		if r := b.reload(); r.Code != 0 || len(r.lines) == 0 {
			t.Fatalf("round %d: %d %s%s", i, r.Code, r.Stdout, r.Stderr)
		}
	}
	if got := len(b.below(f.top)); got != n {
		t.Errorf("%d mounts after 100 rounds, %d after one", got, n)
	}
	b.wantWritable(false, f.p("a"), f.p("p"))
	b.wantWritable(true, f.p("p/c"))
}

// A parent is added over masks and overlays while a reader inside reads the
// masked files and a writer writes to the overlay as fast as they can.
func TestNoMomentWithoutAProtection(t *testing.T) {
	f := newFixture(t, "p/dir", "p/ro", "p/deep/er")
	f.Write(f.p("p/file"), "s3cret")
	f.Write(f.p("p/dir/file"), "s3cret")
	f.Write(f.p("p/deep/er/file"), "s3cret")
	prot := []string{"BLOCKED_FILES+=(" + f.p("p/file") + " " + f.p("p/deep/er/file") + ")", "EXTRA_BLOCKED_PATHS+=(" + f.p("p/dir") + ")", "READONLY_MOUNTS+=(" + f.p("p/ro") + ")"}
	f.conf(nil, prot...)
	b := f.start()
	b.sh(`python3 - ` + f.p("p") + ` <<'X' &
import os, sys, threading
p = sys.argv[1]; hits = []; stop = []; rounds = [0]
def spin(fn):
    while not stop:
        fn(); rounds[0] += 1
def read(name):
    try:
        if open(name).read(): hits.append("read " + name)
    except OSError: pass
def plant(name):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY)); hits.append("wrote " + name)
    except OSError: pass
def move(a, b):
    try:
        os.rename(a, b); hits.append("moved " + a)
    except OSError: pass
jobs = [lambda: read(p + "/file"), lambda: read(p + "/dir/file"), lambda: read(p + "/deep/er/file"), lambda: plant(p + "/ro/new"), lambda: move(p + "/deep", p + "/deep2"), lambda: move(p + "/deep/er", p + "/deep/er2")]
ts = [threading.Thread(target=spin, args=(j,)) for j in jobs]
[t.start() for t in ts]
open("/tmp/up", "w").close()
while not os.path.exists("/tmp/stop"): pass
stop.append(1); [t.join() for t in ts]
open("/tmp/hits", "w").write("\n".join(sorted(set(hits))) + "\nrounds %d\n" % rounds[0])
X
while [ ! -e /tmp/up ]; do sleep 0.01; done`)
	for range 5 {
		f.conf([]string{"p"}, prot...)
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
		}
		f.conf(nil, prot...)
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	got := b.sh(": > /tmp/stop; wait; cat /tmp/hits")
	if !regexp.MustCompile(`^\n?rounds [1-9]\d{2,}$`).MatchString(got) {
		t.Errorf("%q", got)
	}
}

func TestPlantedObjectsAreRefused(t *testing.T) {
	f := newFixture(t, "target", "outside")
	f.Mkdir(f.Home + "/data")
	f.conf(nil)
	b := f.start()
	// In its tmpfs home the agent puts something where the user has a folder.
	for _, plant := range []string{"mkdir ~/data", "ln -s " + f.p("target") + " ~/data", ": > ~/data"} {
		b.sh("rm -rf ~/data; " + plant)
		f.conf(nil, "EXTRA_WRITABLE_PATHS+=(~/data)")
		r := b.reload()
		if r.Code != 3 || len(r.lines) != 1 || r.lines[0].word != "RESTART" && r.lines[0].word != "REFUSED" {
			t.Errorf("%s: %d %s", plant, r.Code, r.Stdout)
		}
		b.wantWritable(false, f.p("target"))
	}
	// A link in the writable project to what it wants to be writable.
	b.sh("ln -s " + f.p("target") + " ~/proj/link; mkdir ~/proj/real; ln -s ../../.. ~/proj/real/up; ln -s " + f.top + " ~/proj/dir")
	for _, p := range []string{f.Project + "/link", f.Project + "/dir/outside"} {
		f.conf(nil, "EXTRA_WRITABLE_PATHS+=("+p+")")
		for _, args := range [][]string{{"--dry-run"}, nil} {
			r := b.reload(args...)
			// The builder leaves it out with a warning; what it lets through is refused.
			refused := len(r.lines) == 1 && r.lines[0].word == "REFUSED" && strings.Contains(r.lines[0].detail, "link")
			if _, ok := r.find("ADD", f.p("target")); ok || !refused && (len(r.lines) > 0 || !strings.Contains(r.Stderr, "link")) {
				t.Errorf("%s: %d %s%s", p, r.Code, r.Stdout, r.Stderr)
			}
		}
		b.wantWritable(false, f.p("target"), f.p("outside"))
	}
	// A link of the user's, where the agent cannot put any, is followed.
	os.Symlink(f.p("target"), f.p("mine"))
	f.conf([]string{"mine"})
	b.want(0, "ADD "+f.p("target"))
	b.wantWritable(true, f.p("target"))
}

// The agent moves folders around, and links in and out, while reloads apply.
func TestRenamesRacingWithAReload(t *testing.T) {
	f := newFixture(t, "w", "target/in")
	f.Write(f.p("target/in/file"), "x")
	f.conf([]string{"w"})
	b := f.start()
	b.sh(`python3 - ` + f.p("w") + ` ` + f.p("target") + ` <<'X' &
import os, sys, time
w, target = sys.argv[1:]
os.makedirs(w + "/a/b"); os.symlink(target, w + "/l")
def do(f, *a):
    try: f(*a)
    except OSError: pass
while not os.path.exists("/tmp/stop"):
    do(os.rename, w + "/a", w + "/c"); do(os.rename, w + "/l", w + "/a")
    do(os.rename, w + "/a", w + "/l"); do(os.rename, w + "/c", w + "/a")
    do(os.makedirs, w + "/a/b")
X
while [ ! -d ` + f.p("w/a/b") + ` ]; do sleep 0.01; done`)
	var done int
	for i := range 12 {
		f.conf([]string{"w", "w/a/in", "w/a/b"}, "READONLY_MOUNTS+=("+f.p("w/a/b/none")+")", "EXTRA_BLOCKED_PATHS+=("+f.p("w/a/b")+")")
		r := b.reload()
		if r.Code == 1 {
			t.Logf("%s", r.Stderr)
		} else {
			done++
		}
		b.wantWritable(false, f.p("target"), f.p("target/in"))
		f.conf([]string{"w", fmt.Sprint("none", i)})
		b.reload()
	}
	b.sh(": > /tmp/stop; wait")
	b.noStray(f.p("target"))
	if entries, _ := os.ReadDir(f.p("target")); len(entries) != 1 {
		t.Errorf("the host got %v", entries)
	}
	if got := b.sh("cat " + f.p("target/in/file")); got != "x" {
		t.Errorf("%q", got)
	}
}

func TestThousandPathsInOneReload(t *testing.T) {
	f := newFixture(t)
	var dirs []string
	for i := range 1000 {
		d := fmt.Sprintf("d%02d/%d", i%30, i)
		f.Mkdir(f.p(d))
		dirs = append(dirs, d)
	}
	f.conf(nil)
	b := f.start()
	f.conf(dirs)
	r := b.reload()
	if r.Code != 0 || len(r.lines) != 1000 {
		t.Fatalf("%d, %d lines %s", r.Code, len(r.lines), r.Stderr)
	}
	b.wantWritable(true, f.p(dirs[0]), f.p(dirs[999]))
	if got := b.sh("n=0; for d in " + f.top + "/d*/*; do ( : > $d/p ) 2>/dev/null && n=$((n+1)); done; echo $n"); got != "1000" {
		t.Errorf("%s of 1000 are writable", got)
	}
	b.wantPlan()
	f.conf(nil)
	if r := b.reload(); r.Code != 0 || len(r.lines) != 1000 {
		t.Fatalf("%d, %d lines %s", r.Code, len(r.lines), r.Stderr)
	}
	if got := b.sh("n=0; for d in " + f.top + "/d*/*; do ( : > $d/p ) 2>/dev/null && n=$((n+1)); done; echo $n"); got != "0" {
		t.Errorf("%s of 1000 are writable", got)
	}
	b.noStray(f.top)
}

func TestTwoReloadsAtOnce(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	// The first stands still in the configuration, which waits for a file.
	gate := f.Home + "/gate"
	f.conf([]string{"a"}, "while [[ ! -e "+gate+" ]]; do sleep 0.01; done")
	first := f.Command("agent-sandbox", "reload")
	var out bytes.Buffer
	first.Stdout, first.Stderr = &out, &out
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the marker", func() bool { _, err := os.Stat(b.file() + ".reload"); return err == nil })
	r := b.reload()
	if r.Code != 1 || !regexp.MustCompile(`process \d+`).MatchString(r.Stderr) {
		t.Errorf("second: %d %q", r.Code, r.Stderr)
	}
	holder, _ := os.ReadFile(b.file() + ".reload")
	if pid := strings.Fields(string(holder))[0]; !strings.Contains(r.Stderr, "process "+pid) {
		t.Errorf("%q does not name process %s", r.Stderr, pid)
	}
	f.Write(gate, "")
	if err := first.Wait(); err != nil || !strings.Contains(out.String(), "ADD") {
		t.Errorf("first: %v %s", err, out.String())
	}
	if _, err := os.Stat(b.file() + ".reload"); err == nil {
		t.Error("the marker is left")
	}
	// Many at once: each says what it did, and the end is right.
	f.conf(nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for range 8 {
		wg.Go(func() {
			c := harness.Finish(t, f.Command("agent-sandbox", "reload"))
			mu.Lock()
			codes[c.Code]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if codes[0]+codes[1] != 8 || codes[0] == 0 {
		t.Errorf("exit statuses %v", codes)
	}
	b.wantWritable(false, f.p("a"))
	b.want(0)
}

func TestDeadline(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	f.conf([]string{"a"}, "sleep 100")
	r := b.reload("--timeout", "1")
	if r.Code != 1 || len(r.lines) != 0 || r.Stderr == "" {
		t.Errorf("%d %q %q", r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(false, f.p("a"))
	f.conf([]string{"a"})
	b.check(b.reload("--timeout", "5"), 0, "ADD "+f.p("a"))
}

// A reloader that stands still is not waited for by anyone after its deadline.
func TestMarkerOfAReloaderThatHangsMeansNothingAfterItsDeadline(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	f.conf(nil, "while :; do sleep 0.05; done")
	c := f.Command("agent-sandbox", "reload", "--timeout", "1")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	harness.Eventually(t, "the marker", func() bool { _, err := os.Stat(b.file() + ".reload"); return err == nil })
	c.Process.Signal(syscall.SIGSTOP)
	reg, err := session.OpenRegistry(b.Runtime+"/agent-sandbox/sessions", b.UID)
	if err != nil {
		t.Fatal(err)
	}
	defer reg.Close()
	harness.Eventually(t, "the marker to mean nothing", func() bool { _, _, live := reg.Reloading(b.ID); return !live })
	c.Process.Signal(syscall.SIGCONT)
}

func TestSessionEndingMeanwhile(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	gate := f.Home + "/gate"
	f.conf([]string{"a"}, "while [[ ! -e "+gate+" ]]; do sleep 0.01; done")
	c := f.Command("agent-sandbox", "reload")
	var out, errb bytes.Buffer
	c.Stdout, c.Stderr = &out, &errb
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the marker", func() bool { _, err := os.Stat(b.file() + ".reload"); return err == nil })
	b.end()
	f.Write(gate, "")
	c.Wait()
	if c.ProcessState.ExitCode() != 1 || out.Len() != 0 || !strings.Contains(errb.String(), "ended") {
		t.Errorf("%v %q %q", c.ProcessState, out.String(), errb.String())
	}
	harness.Eventually(t, "the record to be gone", func() bool { _, err := os.Stat(b.file()); return err != nil })
	if _, err := os.Stat(b.file()); err == nil {
		t.Error("the reload brought the record back")
	}
}

func TestRecordsOfTheDeadAreIgnoredAndPruned(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	rec := b.record()
	pid := rec.Launcher.PID
	syscall.Kill(pid, syscall.SIGKILL)
	harness.Eventually(t, "the sandbox to end", func() bool { return !alive(rec.Sandbox) })
	r := b.reload()
	if r.Code != 1 || !strings.Contains(r.Stderr, "no live session") {
		t.Errorf("%d %q", r.Code, r.Stderr)
	}
	if _, err := os.Stat(b.file()); err == nil {
		t.Error("not pruned")
	}
}

// Everything in a record that is false is found out before anything is done.
func TestForgedRecords(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b, victim := f.start(), f.start()
	good := b.record()
	f.conf([]string{"a"})
	// A process of the user's that would die of SIGUSR1.
	sleeper := f.as(exec.Command("sleep", "600"))
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { sleeper.Process.Kill(); sleeper.Wait() }()
	dead := make(chan error, 1)
	go func() { dead <- sleeper.Wait() }()
	sl, err := session.ProcOf(sleeper.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	v := victim.record()
	for name, edit := range map[string]func(*session.Record){
		"sandbox: pid used again":             func(r *session.Record) { r.Sandbox.Start++ },
		"sandbox: a process of the host":      func(r *session.Record) { r.Sandbox = sl },
		"sandbox: init":                       func(r *session.Record) { r.Sandbox = session.Proc{PID: 1, Start: r.Sandbox.Start} },
		"namespace: another":                  func(r *session.Record) { r.MountNS = v.MountNS },
		"namespace: the host's":               func(r *session.Record) { r.Sandbox = sl; r.MountNS = inode(t, "/proc/self/ns/mnt") },
		"sandbox: that of another session":    func(r *session.Record) { r.Sandbox = v.Sandbox },
		"uid":                                 func(r *session.Record) { r.UID++ },
		"boot":                                func(r *session.Record) { r.Boot = "0"; r.Host = "elsewhere" },
		"pid namespace":                       func(r *session.Record) { r.PIDNS++ },
		"project":                             func(r *session.Record) { r.Project = "/etc" },
		"conf":                                func(r *session.Record) { r.Conf = "/etc/passwd" },
		"configuration folder that is root's": func(r *session.Record) { r.ConfigDir = "/etc/agent-sandbox-none"; r.Project = "/" },
		"setting that no record holds": func(r *session.Record) {
			r.Settings = append(r.Settings, session.Setting{Name: "HOME_ACCESS", Value: "write"})
		},
	} {
		forged := good
		forged.Settings = append([]session.Setting(nil), good.Settings...)
		edit(&forged)
		if err := os.WriteFile(b.file(), forged.Marshal(), 0o600); err != nil {
			t.Fatal(err)
		}
		r := b.reload(b.ID)
		if r.Code != 1 || len(r.lines) != 0 || r.Stderr == "" {
			t.Errorf("%s: %d %q %q", name, r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(false, f.p("a"))
		victim.wantWritable(false, f.p("a"))
	}
	// Text that is no record, and files that are none.
	text := good.Marshal()
	for name, put := range map[string]func(){
		"truncated":   func() { os.WriteFile(b.file(), text[:len(text)-5], 0o600) },
		"empty":       func() { os.WriteFile(b.file(), nil, 0o600) },
		"huge":        func() { os.WriteFile(b.file(), bytes.Repeat(text, 1000), 0o600) },
		"open to all": func() { os.WriteFile(b.file(), text, 0o600); os.Chmod(b.file(), 0o666) },
		"another uid": func() { os.Chmod(b.file(), 0o600); os.Chown(b.file(), 0, 0) },
		"second name": func() { os.Chown(b.file(), b.UID, b.GID); os.Link(b.file(), b.Runtime+"/link") },
		"symlink": func() {
			os.Remove(b.Runtime + "/link")
			os.Rename(b.file(), b.Runtime+"/x")
			os.Symlink(b.Runtime+"/x", b.file())
		},
		"FIFO": func() {
			os.Remove(b.file())
			exec.Command("mkfifo", b.file()).Run()
			os.Chmod(b.file(), 0o600)
			os.Chown(b.file(), b.UID, b.GID)
		},
		"unknown line": func() {
			os.Remove(b.file())
			os.WriteFile(b.file(), bytes.Replace(text, []byte("\nend\n"), []byte("\nexec sh\nend\n"), 1), 0o600)
			os.Chown(b.file(), b.UID, b.GID)
		},
	} {
		os.Remove(b.file())
		os.WriteFile(b.file(), text, 0o600)
		os.Chown(b.file(), b.UID, b.GID)
		put()
		if r := b.reload(b.ID); r.Code != 1 || len(r.lines) != 0 || !strings.Contains(r.Stderr, b.ID) {
			t.Errorf("%s: %d %q %q", name, r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(false, f.p("a"))
	}
	os.Remove(b.file())
	// A guard that is not the launcher's child is not signalled; the rest is done.
	forged := good
	forged.Guard, forged.Chaperon = sl, sl
	os.WriteFile(b.file(), forged.Marshal(), 0o600)
	os.Chown(b.file(), b.UID, b.GID)
	r := b.check(b.reload(b.ID), 0, "ADD "+f.p("a"))
	if !strings.Contains(r.Stderr, "cannot tell the session's mount guard") || !strings.Contains(r.Stderr, "chaperon") {
		t.Errorf("%q", r.Stderr)
	}
	select {
	case <-dead:
		t.Error("a process that is no helper was signalled")
	case <-time.After(100 * time.Millisecond):
	}
}

func inode(t *testing.T, path string) uint64 {
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st.Sys().(*syscall.Stat_t).Ino
}

func TestRegistryThatIsOpenToOthersIsNotUsed(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	os.Chmod(b.Runtime+"/agent-sandbox/sessions", 0o777)
	f.conf([]string{"a"})
	if r := b.reload(); r.Code != 1 || !strings.Contains(r.Stderr, "sessions") && !strings.Contains(r.Stderr, "agent-sandbox") {
		t.Errorf("%d %q", r.Code, r.Stderr)
	}
	b.wantWritable(false, f.p("a"))
	os.Chmod(b.Runtime+"/agent-sandbox/sessions", 0o700)
	b.want(0, "ADD "+f.p("a"))
}

func TestNestedNamespacesAreReached(t *testing.T) {
	f := newFixture(t, "a", "w")
	f.Write(f.p("w/secret"), "k3y")
	f.conf([]string{"a", "w"}, "NESTED_SANDBOX=true")
	b := f.start("NESTED_SANDBOX=true")
	b.sh(`unshare -Urm sh -c 'cd ` + f.p("a") + `; : > ~/proj/up; while :; do [ -e ~/proj/go ] && { ( : > ` + f.p("a") + `/n ) 2>/dev/null && echo abs; ( : > ./n ) 2>/dev/null && echo rel; cat ` + f.p("w/secret") + `; echo end; } > ~/proj/said.new; [ -e ~/proj/go ] && mv ~/proj/said.new ~/proj/said && rm ~/proj/go; sleep 0.01; done' & while [ ! -e ~/proj/up ]; do sleep 0.01; done`)
	ask := func() string {
		return b.sh("rm -f ~/proj/said; : > ~/proj/go; while [ -e ~/proj/go ]; do sleep 0.01; done; cat ~/proj/said")
	}
	if got := ask(); got != "abs\nrel\nk3yend" {
		t.Fatalf("before: %q", got)
	}
	f.conf([]string{"w"}, "NESTED_SANDBOX=true", "BLOCKED_FILES+=("+f.p("w/secret")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := ask(); got != "end" {
		t.Errorf("after: %q", got)
	}
	b.wantWritable(false, f.p("a"))
}

func TestHostMountsBelow(t *testing.T) {
	f := newFixture(t, "p/mnt", "p/ro", "p/plain")
	for _, m := range []string{"p/mnt", "p/ro"} {
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=0777", "asb", f.p(m)).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() { exec.Command("umount", "-l", f.p(m)).Run() })
	}
	f.conf(nil)
	b := f.start()
	b.wantWritable(false, f.p("p/mnt"), f.p("p/ro"))
	// What is mounted below becomes writable as at a launch, what is protected
	// does not.
	f.conf([]string{"p"}, "READONLY_MOUNTS+=("+f.p("p/ro")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(true, f.p("p"), f.p("p/mnt"))
	b.wantWritable(false, f.p("p/ro"))
	// And stays so when the parent goes and comes back, in place.
	for range 2 {
		f.conf(nil, "READONLY_MOUNTS+=("+f.p("p/ro")+")")
		b.want(0, "REVOKE "+f.p("p"))
		b.wantWritable(false, f.p("p"), f.p("p/mnt"), f.p("p/ro"))
		b.noStray(f.top)
		f.conf([]string{"p"}, "READONLY_MOUNTS+=("+f.p("p/ro")+")")
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(true, f.p("p"), f.p("p/mnt"))
		b.wantWritable(false, f.p("p/ro"))
	}
	// A writable line of its own below a revoked parent stays writable.
	f.conf([]string{"p", "p/mnt"}, "READONLY_MOUNTS+=("+f.p("p/ro")+")")
	b.want(0, "ADD "+f.p("p/mnt"))
	f.conf([]string{"p/mnt"}, "READONLY_MOUNTS+=("+f.p("p/ro")+")")
	b.want(0, "REVOKE "+f.p("p"))
	b.wantWritable(false, f.p("p"), f.p("p/plain"), f.p("p/ro"))
	b.wantWritable(true, f.p("p/mnt"))
}

func TestSpecialFileSystemsAreRefused(t *testing.T) {
	f := newFixture(t)
	f.conf(nil, "READONLY_MOUNTS+=(/sys)")
	b := f.start()
	out, _ := exec.Command("findmnt", "-rnt", "cgroup,cgroup2", "-o", "TARGET").Output()
	for _, p := range append(strings.Fields(string(out)), "/sys/kernel") {
		f.conf(nil, "READONLY_MOUNTS+=(/sys)", "EXTRA_WRITABLE_PATHS+=("+p+")")
		r := b.want(3, "REFUSED "+p)
		if !strings.Contains(r.lines[0].detail, "file system") {
			t.Errorf("%+v", r.lines[0])
		}
	}
}

// What mount-repair says is not believed: the session's table is read back.
func TestReportsAreReadBackFromTheKernel(t *testing.T) {
	f := newFixture(t, "a", "b")
	bin := f.suite("")
	real := bin + "/mount-repair"
	// A launch needs the true one; this one says ok and does nothing.
	f.conf([]string{"b"})
	b := f.startCommand(f.in(bin, "agent-sandbox", "bash", "--norc", "--noprofile"))
	os.Rename(real, bin+"/mount-repair.real")
	os.WriteFile(real, []byte("#!/bin/sh\nwhile read -r l; do echo ok; done\n"), 0o755)
	f.conf([]string{"a"})
	r := parse(t, harness.Finish(t, f.in(bin, "agent-sandbox", "reload")))
	b.check(r, 3, "REFUSED "+f.p("a"), "REFUSED "+f.p("b"))
	for _, l := range r.lines {
		if !strings.Contains(l.detail, "the kernel") {
			t.Errorf("%+v", l)
		}
	}
	if b.recorded(f.p("a")) != "" || b.recorded(f.p("b")) != mountplan.RW {
		t.Error("the record says what is not so")
	}
	// One that ends with status 3 has tried nothing; one that dies may have.
	os.WriteFile(real, []byte("#!/bin/sh\necho 'mount-repair: cannot enter' >&2\nexit 3\n"), 0o755)
	before := b.record().Marshal()
	r = parse(t, harness.Finish(t, f.in(bin, "agent-sandbox", "reload")))
	if r.Code != 1 || len(r.lines) != 0 || !bytes.Equal(before, b.record().Marshal()) {
		t.Errorf("%d %s %s", r.Code, r.Stdout, r.Stderr)
	}
	os.WriteFile(real, []byte("#!/bin/sh\n"+bin+"/mount-repair.real \"$@\" >/dev/null\nkill -9 $$\n"), 0o755)
	r = parse(t, harness.Finish(t, f.in(bin, "agent-sandbox", "reload")))
	if r.Code != 3 {
		t.Errorf("%d %s %s", r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(false, f.p("b"))
	if b.recorded(f.p("b")) == mountplan.RW {
		t.Error("the record is wider than the session")
	}
	os.Rename(bin+"/mount-repair.real", real)
	r = parse(t, harness.Finish(t, f.in(bin, "agent-sandbox", "reload")))
	if r.Code != 0 {
		t.Errorf("%d %s %s", r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(true, f.p("a"))
	b.wantWritable(false, f.p("b"))
}
