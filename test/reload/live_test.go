package reload

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/test/harness"
)

func TestBusyNamesTheHolderAndLeavesThePathWritable(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.conf([]string{"a", "b"})
	b := f.start()
	b.sh("exec 8>" + f.p("a") + "/open")
	f.conf(nil)
	r := b.reload()
	b.check(r, 3, "REVOKE "+f.p("b"), "BUSY "+f.p("a"))
	l, _ := r.find("BUSY", f.p("a"))
	for _, want := range []string{"bash", "fd 8", f.p("a") + "/open"} {
		if !strings.Contains(l.detail, want) {
			t.Errorf("%q does not name %q", l.detail, want)
		}
	}
	b.wantWritable(true, f.p("a"))
	b.wantWritable(false, f.p("b"))
	if b.recorded(f.p("a")) != mountplan.RW {
		t.Error("the record does not say that it is writable still")
	}
	b.want(3, "BUSY "+f.p("a"))
	b.sh("exec 8>&-")
	b.want(0, "REVOKE "+f.p("a"))
	b.wantWritable(false, f.p("a"))
	b.wantPlan()
}

func TestBusyNamesASharedMapping(t *testing.T) {
	f := newFixture(t, "a")
	f.Write(f.p("a/map"), strings.Repeat("x", 4096))
	f.conf([]string{"a"})
	b := f.start()
	b.sh(`python3 -c '
import mmap, sys, time
f = open("` + f.p("a/map") + `", "r+b"); m = mmap.mmap(f.fileno(), 4096); f.close()
print("mapped", flush=True); time.sleep(600)' > /tmp/up & while ! grep -q mapped /tmp/up; do :; done`)
	f.conf(nil)
	r := b.want(3, "BUSY "+f.p("a"))
	if d := r.lines[0].detail; !strings.Contains(d, "python3") || !strings.Contains(d, "mapping") || !strings.Contains(d, f.p("a/map")) {
		t.Errorf("%q", d)
	}
	b.sh("kill %1; wait")
	b.want(0, "REVOKE "+f.p("a"))
}

func TestForceDetach(t *testing.T) {
	f := newFixture(t, "idle", "held", "inner/secret", "kept/child", "cwd")
	f.conf([]string{"idle", "held", "inner", "kept", "kept/child", "cwd"}, "EXTRA_BLOCKED_PATHS+=("+f.p("inner/secret")+")")
	b := f.start()
	b.sh("exec 7>" + f.p("held") + "/f 8>" + f.p("inner") + "/f 9>" + f.p("kept") + "/f; cd " + f.p("cwd"))
	f.conf([]string{"kept/child"}, "EXTRA_BLOCKED_PATHS+=("+f.p("inner/secret")+")")
	r := b.reload("--force-detach")
	if r.Code != 3 {
		t.Fatalf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, want := range []string{"REVOKE " + f.p("idle"), "REVOKE " + f.p("cwd"), "DETACH " + f.p("held"), "REFUSED " + f.p("inner"), "REFUSED " + f.p("kept")} {
		word, path, _ := strings.Cut(want, " ")
		if _, ok := r.find(word, path); !ok {
			t.Errorf("no %s\n%s", want, r.Stdout)
		}
	}
	if l, _ := r.find("REFUSED", f.p("inner")); !strings.Contains(l.detail, f.p("inner/secret")) {
		t.Errorf("does not name the protection: %q", l.detail)
	}
	// What shows at a detached path is read-only; the open descriptor keeps its
	// access, as the user's document says.
	b.wantWritable(false, f.p("held"), f.p("idle"), f.p("cwd"))
	if got := b.sh("echo kept >&7 && echo wrote"); got != "wrote" {
		t.Errorf("%q", got)
	}
	if got := b.sh("ls " + f.p("held")); got != "f" {
		t.Errorf("under the detached mount shows %q", got)
	}
	b.wantWritable(true, f.p("kept/child"), f.p("inner"))
	if got := b.sh("ls -A " + f.p("inner/secret")); got != "" {
		t.Error("a mask went with a detach")
	}
	b.sh("exec 7>&- 8>&- 9>&-")
	b.sh("cd /")
	b.want(0, "REVOKE "+f.p("kept"), "REVOKE "+f.p("inner"))
	b.wantWritable(false, f.p("kept"), f.p("inner"))
	b.wantPlan()
}

// After a detach the record says what the session has: the path read-only where the
// sandbox still shows the host's folder, else nothing, and a restart is asked for
// until there is one. The guard says nothing of it, whatever else it puts back.
func TestAfterADetach(t *testing.T) {
	f := newFixture(t)
	sub := f.Project + "/sub"
	f.Mkdir(sub)
	f.Mkdir(f.Home + "/lib")
	lib := "'" + f.Home + "/lib'"
	f.conf(nil, "EXTRA_WRITABLE_PATHS+=("+lib+" "+quote(sub)+")")
	b := f.start()
	b.sh("exec 7>" + sub + "/f 8>" + f.Home + "/lib/f")
	f.conf(nil, "READONLY_MOUNTS+=("+lib+")", "PROJECT_READONLY+=(sub)")
	b.check(b.reload("--force-detach"), 0, "DETACH "+sub, "DETACH "+f.Home+"/lib")
	if b.recorded(sub) != mountplan.RO {
		t.Errorf("the record says %q", b.recorded(sub))
	}
	if got := b.recorded(f.Home + "/lib"); got != "" {
		t.Errorf("the record says %q of a path that is empty inside", got)
	}
	b.wantWritable(false, sub, f.Home+"/lib")
	for range 2 {
		b.want(3, "RESTART "+f.Home+"/lib")
	}
	data, err := os.ReadFile("/etc/group")
	if err != nil {
		t.Fatal(err)
	}
	next := fmt.Sprintf("/etc/group.%d", os.Getpid())
	if err := os.WriteFile(next, data, 0o644); err != nil {
		t.Fatal(err)
	}
	os.Rename(next, "/etc/group")
	harness.Eventually(t, "guard", func() bool { return strings.Contains(b.log(), "/etc/group") })
	if log := b.log(); strings.Contains(log, "still in use") || strings.Contains(log, "lib") {
		t.Error(log)
	}
}

func TestKeptUnderAWritableParent(t *testing.T) {
	f := newFixture(t, "p/sub")
	f.conf([]string{"p", "p/sub"})
	b := f.start()
	f.conf([]string{"p"})
	r := b.want(0, "KEEP "+f.p("p/sub"))
	if !strings.Contains(r.lines[0].detail, f.p("p")) {
		t.Errorf("%+v", r.lines[0])
	}
	b.wantWritable(true, f.p("p/sub"))
	if b.recorded(f.p("p/sub")) != mountplan.RW {
		t.Error("its own bind is not in the record any more")
	}
	// With its parent it is revoked.
	f.conf(nil)
	b.want(0, "REVOKE "+f.p("p/sub"), "REVOKE "+f.p("p"))
	b.wantWritable(false, f.p("p"), f.p("p/sub"))
}

func TestInvisiblePathNeedsRestart(t *testing.T) {
	f := newFixture(t, "a")
	f.Mkdir(f.Home + "/data")
	f.Config("EXTRA_WRITABLE_PATHS+=()\n")
	b := f.start()
	f.Config("EXTRA_WRITABLE_PATHS+=(" + f.p("a") + " ~/data)\nREADONLY_MOUNTS+=(" + f.top + ")\n")
	r := b.want(3, "RESTART "+f.top, "RESTART "+f.Home+"/data", "RESTART "+f.p("a"))
	for _, l := range r.lines {
		if !strings.HasPrefix(l.detail, "needs restart") {
			t.Errorf("%+v", l)
		}
	}
	if got := b.sh("ls -d " + f.p("a") + " ~/data 2>/dev/null"); got != "" {
		t.Errorf("shows %q", got)
	}
	f.Config("")
	b.want(0)
}

func TestAnywhereUnderAReadOrWriteHome(t *testing.T) {
	for _, mode := range []string{"read", "write"} {
		f := newFixture(t)
		f.Mkdir(f.Home + "/some/where")
		f.conf(nil, "HOME_ACCESS="+mode)
		b := f.start()
		f.conf(nil, "HOME_ACCESS="+mode, "EXTRA_WRITABLE_PATHS+=(~/some/where)")
		b.want(0, "ADD "+f.Home+"/some/where")
		b.wantWritable(true, f.Home+"/some/where")
		b.wantWritable(mode == "write", f.Home+"/some")
		b.wantPlan()
	}
}

func TestProtectionsAreAddedLive(t *testing.T) {
	f := newFixture(t, "w/sub/dir", "w/ro", "r/masked")
	f.Write(f.p("w/sub/file"), "secret")
	f.Write(f.p("w/sub/dir/file"), "secret")
	f.Write(f.p("r/masked/file"), "secret")
	f.conf([]string{"w"})
	b := f.start()
	more := []string{
		"BLOCKED_FILES+=(" + f.p("w/sub/file") + " " + f.p("w/none/yet") + ")",
		"EXTRA_BLOCKED_PATHS+=(" + f.p("w/sub/dir") + " " + f.p("r/masked") + " " + f.p("w/nodir") + ")",
		"READONLY_MOUNTS+=(" + f.p("w/ro") + ")",
	}
	f.conf([]string{"w"}, more...)
	r := b.reload()
	if r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := b.sh("cat " + f.p("w/sub/file") + "; ls -A " + f.p("w/sub/dir") + " " + f.p("r/masked") + "; cat " + f.p("w/none/yet")); strings.Contains(got, "secret") || strings.Contains(got, "file\n") || strings.Contains(got, "No such") {
		t.Errorf("%q", got)
	}
	b.wantWritable(false, f.p("w/ro"), f.p("w/sub/dir"), f.p("w/nodir"))
	b.wantWritable(true, f.p("w"), f.p("w/sub"))
	// The folder above a protection cannot be renamed away.
	if got := b.sh("mv " + f.p("w/sub") + " " + f.p("w/sub2") + " 2>&1"); !strings.Contains(got, "busy") {
		t.Errorf("mv: %q", got)
	}
	b.wantPlan()
	// Placeholders are recorded, and gone after the session.
	made := b.record().Made
	for _, p := range []string{f.p("w/none"), f.p("w/none/yet"), f.p("w/nodir")} {
		if !slices.Contains(made, p) {
			t.Errorf("%s is not among the record's placeholders %q", p, made)
		}
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}
	// Taken out of the configuration they stay until the session ends.
	f.conf([]string{"w"})
	r = b.reload()
	if r.Code != 3 {
		t.Errorf("exit %d", r.Code)
	}
	for _, p := range []string{f.p("w/sub/file"), f.p("w/sub/dir"), f.p("w/ro"), f.p("w/none/yet")} {
		if l, ok := r.find("RESTART", p); !ok || !strings.HasPrefix(l.detail, "needs restart") {
			t.Errorf("no RESTART of %s in\n%s", p, r.Stdout)
		}
	}
	if got := b.sh("cat " + f.p("w/sub/file")); got != "" {
		t.Errorf("the mask went: %q", got)
	}
	b.wantWritable(false, f.p("w/ro"))
	// Also where the configuration now asks for the opposite.
	f.conf([]string{"w", "w/ro", "w/sub/dir"})
	if r := b.reload(); r.Code != 3 {
		t.Errorf("exit %d\n%s", r.Code, r.Stdout)
	}
	b.wantWritable(false, f.p("w/ro"), f.p("w/sub/dir"))
	b.end()
	for _, p := range []string{f.p("w/none"), f.p("w/nodir")} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s is left on the host", p)
		}
	}
	if _, err := os.Lstat(f.p("w/sub/file")); err != nil {
		t.Error(err)
	}
}

func TestProtectionStaysWhenItsWritableParentIsRevokedAndAdded(t *testing.T) {
	f := newFixture(t, "w/ro", "w/masked")
	f.Write(f.p("w/masked/file"), "secret")
	prot := []string{"EXTRA_BLOCKED_PATHS+=(" + f.p("w/masked") + ")", "READONLY_MOUNTS+=(" + f.p("w/ro") + ")"}
	f.conf([]string{"w"}, prot...)
	b := f.start()
	for range 3 {
		f.conf(nil, prot...)
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(false, f.p("w"), f.p("w/ro"))
		f.conf([]string{"w"}, prot...)
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(true, f.p("w"))
		b.wantWritable(false, f.p("w/ro"), f.p("w/masked"))
		if got := b.sh("ls -A " + f.p("w/masked")); got != "" {
			t.Fatalf("mask gone: %q", got)
		}
		b.wantPlan()
	}
}

func TestHomeAccessReadToWriteAndBack(t *testing.T) {
	f := newFixture(t)
	f.Write(".ssh/id_rsa", "k3y")
	f.Write(".bashrc", "# rc")
	f.Mkdir(f.Home + "/work")
	f.conf(nil, "HOME_ACCESS=read")
	b := f.start()
	b.wantWritable(false, f.Home)
	guarded := func() {
		t.Helper()
		if got := b.sh("ls -A ~/.ssh; cat ~/.ssh/id_rsa 2>/dev/null; ls -A " + f.Runtime); got != "" {
			t.Errorf("shows %q", got)
		}
		b.wantWritable(false, f.Home+"/.config/agent-sandbox", f.Home+"/.config/agent-sandbox-exec", f.Home+"/.ssh")
		if got := b.sh("(echo x >> ~/.bashrc) 2>&1"); !strings.Contains(got, "Read-only") {
			t.Errorf("~/.bashrc: %q", got)
		}
		if got := b.sh("mv ~/.config ~/.c2 2>&1"); got == "" {
			t.Error("the folder above the configuration can be renamed")
		}
	}
	for range 2 {
		f.conf(nil, "HOME_ACCESS=write")
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("to write: %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(true, f.Home, f.Home+"/work", f.Project)
		guarded()
		b.wantPlan()
		f.conf(nil, "HOME_ACCESS=read")
		if r := b.reload(); r.Code != 0 {
			t.Fatalf("to read: %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(false, f.Home, f.Home+"/work")
		b.wantWritable(true, f.Project)
		guarded()
		b.wantPlan()
	}
}

func TestHomeAccessThatNeedsAnotherBase(t *testing.T) {
	for _, c := range [][2]string{{"tmpwrite", "read"}, {"tmpwrite", "write"}, {"tmpwrite", "restricted"}, {"read", "tmpwrite"}, {"write", "tmpwrite"}} {
		t.Run(c[0]+" to "+c[1], func(t *testing.T) {
			f := newFixture(t)
			f.Write(".ssh/id_rsa", "k3y")
			f.Write(".bashrc", "# rc")
			f.conf(nil, "HOME_ACCESS="+c[0])
			b := f.start()
			before := b.sh("ls -A ~; ls -A ~/.ssh")
			kinds := map[string]mountplan.Kind{}
			for _, m := range b.record().Mounts {
				kinds[m.Path] = m.Kind
			}
			f.conf(nil, "HOME_ACCESS="+c[1])
			r := b.want(3, "RESTART "+f.Home)
			if !strings.HasPrefix(r.lines[0].detail, "needs restart") {
				t.Errorf("%+v", r.lines[0])
			}
			if after := b.sh("ls -A ~; ls -A ~/.ssh"); after != before {
				t.Errorf("%q became %q", before, after)
			}
			for _, m := range b.record().Mounts {
				if kinds[m.Path] != m.Kind {
					t.Errorf("the record has %s %s", m.Kind, m.Path)
				}
				delete(kinds, m.Path)
			}
			if len(kinds) > 0 {
				t.Errorf("the record lacks %v", kinds)
			}
			f.conf(nil, "HOME_ACCESS="+c[0])
			b.want(0)
		})
	}
}

func TestRevokedInATmpfsHomeAndAddedAgain(t *testing.T) {
	f := newFixture(t)
	f.Mkdir(f.Home + "/.cache")
	f.Mkdir(f.Home + "/out")
	f.conf(nil, "HOME_WRITABLE+=(out)")
	b := f.start()
	n := len(b.below(f.Home))
	for range 3 {
		f.conf(nil)
		b.want(0, "REVOKE "+f.Home+"/out")
		b.wantWritable(false, f.Home+"/out")
		b.want(0)
		f.conf(nil, "HOME_WRITABLE+=(out)")
		b.want(0, "ADD "+f.Home+"/out")
		b.wantWritable(true, f.Home+"/out")
		b.wantPlan()
	}
	if got := len(b.below(f.Home)); got != n {
		t.Errorf("%d mounts, %d before", got, n)
	}
}

func TestMovedFromWritableToReadOnlyAndMasked(t *testing.T) {
	f := newFixture(t, "a", "b/child", "c")
	f.Write(f.p("b/child/file"), "secret")
	f.conf([]string{"a", "b", "b/child", "c"})
	b := f.start()
	f.conf([]string{"c"}, "READONLY_MOUNTS+=("+f.p("a")+")", "EXTRA_BLOCKED_PATHS+=("+f.p("b")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	b.wantWritable(false, f.p("a"))
	b.wantWritable(true, f.p("c"))
	if got := b.sh("ls -A " + f.p("b")); got != "" {
		t.Errorf("shows %q", got)
	}
	b.wantPlan()
}

func TestDryRunSaysWhatIsDoneAndChangesNothing(t *testing.T) {
	f := newFixture(t, "a", "b/c", "b/m", "k/x")
	f.conf([]string{"a", "k", "k/x"})
	b := f.start()
	f.conf([]string{"b", "k", "none"}, "EXTRA_BLOCKED_PATHS+=("+f.p("b/m")+")", "READONLY_MOUNTS+=(/srv/none /media /usr/lib)", "PRIVATE_IPC=false", "BLOCKED_FILES+=("+f.p("k/nothing")+")")
	before, table := b.record().Marshal(), fmt.Sprint(b.below(f.top))
	dry := b.reload("--dry-run")
	if dry.Code != 0 || len(dry.lines) == 0 {
		t.Fatalf("%d %s%s", dry.Code, dry.Stdout, dry.Stderr)
	}
	if string(before) != string(b.record().Marshal()) || table != fmt.Sprint(b.below(f.top)) {
		t.Error("the dry run changed something")
	}
	if _, err := os.Lstat(f.p("k/nothing")); err == nil {
		t.Error("the dry run made a placeholder")
	}
	if left, _ := filepath.Glob(b.file() + ".reload"); len(left) > 0 {
		t.Error("the dry run left a marker")
	}
	real := b.reload()
	if real.Code != 3 || real.Stdout != dry.Stdout {
		t.Errorf("exit %d\ndry  %s\nreal %s", real.Code, dry.Stdout, real.Stdout)
	}
}

func TestRegistryMaskIsNotCovered(t *testing.T) {
	// Without XDG_RUNTIME_DIR the registry lies in the home.
	f := newFixture(t)
	f.Env = append(f.Env, "XDG_RUNTIME_DIR=")
	f.Write(".local/state/notes", "x")
	f.conf(nil, "HOME_ACCESS=read")
	b := f.start()
	reg := f.Home + "/.local/state/agent-sandbox"
	hidden := func() {
		t.Helper()
		if got := b.sh("ls -A " + reg); got != "" {
			t.Errorf("the registry shows %q", got)
		}
	}
	hidden()
	for _, dir := range []string{"~/.local", "~/.local/state"} {
		f.conf(nil, "HOME_ACCESS=read", "EXTRA_WRITABLE_PATHS+=("+dir+")")
		for _, args := range [][]string{{"--dry-run"}, nil} {
			r := b.reload(args...)
			l, ok := r.find("REFUSED", strings.Replace(dir, "~", f.Home, 1))
			if !ok || !strings.Contains(l.detail, "registry") || r.Code != 3-3*len(args) {
				t.Errorf("%s %v: exit %d\n%s", dir, args, r.Code, r.Stdout)
			}
		}
		hidden()
		b.wantWritable(false, f.Home+"/.local/state")
	}
	f.conf(nil, "HOME_ACCESS=write")
	if l, ok := b.reload().find("REFUSED", f.Home); !ok || !strings.Contains(l.detail, "registry") {
		t.Error("a writable home would cover the mask and is not refused")
	}
	hidden()
}

func TestPathsOfAnyBytes(t *testing.T) {
	f := newFixture(t)
	names := []string{"a b", "tab\there", "new\nline", "colon:x", "#hash*", "back\\slash", "\xff\xfe", "qu'ote\"", "é", "$HOME", "-rf", "\x1b[31m"}
	for _, n := range names {
		f.Mkdir(f.p(n))
		f.Mkdir(f.p("m/" + n))
		f.Write(f.p("m/"+n+"/file"), "secret")
	}
	f.conf(nil)
	b := f.start()
	var block string
	for _, n := range names {
		block += "EXTRA_BLOCKED_PATHS+=(" + quote(f.p("m/"+n)) + ")\n"
	}
	f.conf(names, block)
	r := b.reload()
	if r.Code != 0 || len(r.lines) != 2*len(names) {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if strings.ContainsAny(r.Stdout, "\x1b\xff") {
		t.Error("bytes of a path go to the terminal as they are")
	}
	for _, n := range names {
		b.wantWritable(true, f.p(n))
		if got := b.sh("ls -A " + quote(f.p("m/"+n))); got != "" {
			t.Errorf("%q shows %q", n, got)
		}
	}
	b.wantPlan()
	f.conf(nil, block)
	if r := b.reload(); r.Code != 0 || len(r.lines) != len(names) {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, n := range names {
		b.wantWritable(false, f.p(n))
	}
	b.wantPlan()
}

func TestTerminalGetsAlignedColumns(t *testing.T) {
	f := newFixture(t, "a", "much-longer")
	f.conf(nil)
	b := f.start()
	f.conf([]string{"a", "much-longer"}, "PRIVATE_IPC=false")
	c := f.as(exec.Command("script", "-qec", f.Command("agent-sandbox").Path+" reload --dry-run", "/dev/null"))
	c.Dir, c.Env = f.Project, f.Environ()
	out, err := c.CombinedOutput()
	lines := strings.Split(strings.ReplaceAll(string(out), "\r", ""), "\n")
	if err != nil || len(lines) < 3 || strings.Contains(string(out), "ADD\t") {
		t.Fatalf("%v %q", err, out)
	}
	if x, y := strings.Index(lines[0], "rw"), strings.Index(lines[2], "setting"); x < 0 || x != y {
		t.Errorf("%q", lines)
	}
	_ = b
}
