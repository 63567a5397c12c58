package repair

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/sys"
	"agent-sandbox/test/harness"
)

// home is a sandbox with a tmpfs home in which only the project shows.
func home(u *harness.User, args ...string) *box {
	return newBox(u, append([]string{"--tmpfs", u.Home, "--bind", u.Project, u.Project}, args...)...)
}

func (b *box) refusesToEnter(why string, pid, start, ns any) {
	b.t.Helper()
	b.refusesAs(b.u.Command, why, pid, start, ns)
}

func (b *box) refusesAs(command func(string, ...string) *exec.Cmd, why string, pid, start, ns any) {
	b.t.Helper()
	c := command("mount-repair", fmt.Sprint(pid), fmt.Sprint(start), fmt.Sprint(ns))
	c.Stdin = strings.NewReader("rw " + b.u.Project + "\n")
	r := harness.Finish(b.t, c)
	if r.Code != 3 || r.Stdout != "" || !strings.Contains(r.Stderr, why) || strings.Count(r.Stderr, "\n") != 1 {
		b.t.Errorf("want exit 3 and %q: %+v", why, r)
	}
	b.wantWritable(b.u.Project, false)
}

func rootCommand(b *box) func(string, ...string) *exec.Cmd {
	return func(name string, args ...string) *exec.Cmd {
		return exec.Command(harness.Bin(b.t, name), args...)
	}
}

func TestEntersOnlyTheProcessThatWasNamed(t *testing.T) {
	b := newBox(harness.NewUser(t))
	b.refusesToEnter("the pid was used again", b.PID, b.Start+1, b.NS)
	b.refusesToEnter("the mount namespace is", b.PID, b.Start, b.NS+1)
	dead := exec.Command("true")
	dead.Start()
	st, err := sys.ReadProcStat(dead.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	dead.Wait()
	b.refusesToEnter("no such process", dead.Process.Pid, st.Start, b.NS)
}

func TestEntersOnlyTheCallersOwn(t *testing.T) {
	b := newBox(harness.NewUser(t))
	other := harness.NewUser(t)
	b.refusesAs(other.Command, "permission denied", b.PID, b.Start, b.NS)
	// Root may open anybody's namespace; it is not root's all the same.
	b.refusesAs(rootCommand(b), fmt.Sprintf("belongs to uid %d", b.u.UID), b.PID, b.Start, b.NS)
}

func TestNeverEntersTheHost(t *testing.T) {
	b := newBox(harness.NewUser(t))
	sleep := exec.Command("sleep", "60")
	sleep.Start()
	defer func() { sleep.Process.Kill(); sleep.Wait() }()
	id := func(pid int) (uint64, uint64) {
		st, err := sys.ReadProcStat(pid)
		if err != nil {
			t.Fatal(err)
		}
		ns, err := sys.NSInode(strconv.Itoa(pid), "mnt")
		if err != nil {
			t.Fatal(err)
		}
		return st.Start, ns
	}
	start, ns := id(sleep.Process.Pid)
	b.refusesAs(rootCommand(b), "the host's own", sleep.Process.Pid, start, ns)

	// A service with a mount namespace of its own, owned by the host's user
	// namespace, whose owner is uid 0 like the caller.
	service := exec.Command("sleep", "60")
	service.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { service.Process.Kill(); service.Wait() }()
	start, ns = id(service.Process.Pid)
	b.refusesAs(rootCommand(b), "owned by the host's user namespace", service.Process.Pid, start, ns)
}

func TestEntersTheUserNamespaceThatOwnsTheMounts(t *testing.T) {
	b := newBox(harness.NewUser(t))
	// bwrap --dev makes a second user namespace; pid 1 is in one that does not
	// own the mounts, so nsenter into both of its namespaces may not mount.
	out, _ := b.u.Command("nsenter", "-t", fmt.Sprint(b.PID), "-U", "-m", "--preserve-credentials", "mount", "-o", "remount,bind,rw", b.u.Project).CombinedOutput()
	harness.Need(t, strings.Contains(string(out), "denied") || strings.Contains(string(out), "ermitted"), "bwrap made one user namespace only: "+string(out))
	b.ok("rw " + b.u.Project)
	b.wantWritable(b.u.Project, true)
}

func TestRootOnItsOwnSession(t *testing.T) {
	u := harness.NewUser(t)
	root := *u
	root.UID, root.GID = 0, 0
	os.Chown(u.Project, 0, 0)
	b := newBox(&root)
	b.wantWritable(u.Project, false)
	b.ok("rw " + u.Project)
	b.wantWritable(u.Project, true)
	b.ok("remount-ro " + u.Project)
	b.wantWritable(u.Project, false)
}

func TestPlantedObjectsAreRefused(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("data/x", "1")
	u.Write("deep/a/b/x", "1")
	b := home(u)
	b.want(b.Sh("mkdir ~/data ~/deep; ln -s ~/proj ~/deep/a; mkdir ~/proj/b; ln -s /etc ~/link"), "")
	b.not("refused the sandbox has another object", "rw "+u.Home+"/data")
	b.not("refused the sandbox has another object", "ro "+u.Home+"/data")
	b.not("refused", "mask-dir "+u.Home+"/data")
	b.not("refused", "tmpfs "+u.Home+"/data")
	b.not("refused cannot open it in the sandbox: a symbolic link", "rw "+u.Home+"/deep/a/b")
	b.not("refused", "rw "+u.Home+"/link")
	b.not("refused", "rw "+u.Home+"/missing")
	b.not("refused it is not a mount point", "remount-ro "+u.Home+"/data")
	// The object's own name leads elsewhere: a link in the project is on the host too.
	b.want(b.Sh("ln -s /etc ~/proj/etc"), "")
	b.not("refused a symbolic link is in the path on the host", "rw "+u.Project+"/etc")
	for _, m := range b.mounts() {
		if strings.HasPrefix(m.Point, u.Home+"/") && m.Point != u.Project {
			t.Errorf("mounted %s", m.Point)
		}
	}
}

func TestSpecialFileSystemsAreRefused(t *testing.T) {
	b := newBox(harness.NewUser(t))
	paths := []string{"/proc/sys", "/proc/self", "/sys/kernel", "/dev/pts"}
	for _, m := range b.mounts() {
		if strings.HasPrefix(m.FSType, "cgroup") || m.FSType == "bpf" {
			paths = append(paths, m.Point)
		}
	}
	for _, p := range paths {
		for _, op := range []string{"rw", "ro", "mask-dir"} {
			b.not("refused", op+" "+p)
		}
	}
	b.not("refused", "remount-rw /proc")
	b.not("refused", "remount-ro /sys")
}

func TestBusyNamesTheHolder(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/log", strings.Repeat("x", 8192))
	b := newBox(u, "--bind", u.Project, u.Project)
	b.Sh("exec 7>>" + u.Project + "/log")
	r := b.not("busy\t", "remount-ro "+u.Project)
	if !strings.Contains(r, "bash fd 7 "+u.Project+"/log") {
		t.Errorf("%s", r)
	}
	b.wantWritable(u.Project, true)
	b.Sh("exec 7>&-")

	// A shared mapping keeps the mount busy after its descriptor is closed.
	// mmap(0, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, fd, 0)
	b.Sh(`perl -e 'open F, "+<", "` + u.Project + `/log"; syscall(9, 0, 4096, 3, 1, fileno F, 0); close F;
open M, ">", "` + u.Project + `/mapped"; close M; sleep 60' & holder=$!`)
	harness.Eventually(t, "mapping", func() bool { _, err := os.Stat(u.Project + "/mapped"); return err == nil })
	r = b.not("busy\t", "remount-ro "+u.Project)
	if !strings.Contains(r, "perl mapping "+u.Project+"/log") {
		t.Errorf("%s", r)
	}
	b.Sh("kill $holder; wait $holder")
	b.ok("remount-ro " + u.Project)
	b.wantWritable(u.Project, false)
}

func TestMasks(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/secret", "SECRET")
	u.Write("proj/keys/id", "SECRET")
	b := newBox(u, "--bind", u.Project, u.Project)
	b.ok("mask-file "+u.Project+"/secret", "mask-dir "+u.Project+"/keys")
	b.want(b.Sh("cd ~/proj; cat secret; ls -A keys; stat -c %a%F secret; stat -c %a keys"), "444regular empty file\n555")
	b.want(b.Sh("cd ~/proj; (echo x >secret) 2>/dev/null || echo no; (echo x >keys/x) 2>/dev/null || echo no; rm -f secret 2>/dev/null || echo no"), "no\nno\nno")
	n := len(b.mounts())
	b.ok("mask-file "+u.Project+"/secret", "mask-dir "+u.Project+"/keys")
	if len(b.mounts()) != n {
		t.Errorf("a mask that is there was made again")
	}
	b.not("refused", "mask-file "+u.Project)
	// A mask is never taken for an old file and replaced.
	for _, op := range []string{"rw", "ro", "dev", "remount-rw"} {
		b.not("refused", op+" "+u.Project+"/secret")
		b.not("refused", op+" "+u.Project+"/keys")
	}
	b.want(b.Sh("cat ~/proj/secret; ls -A ~/proj/keys"), "")
}

func TestMaskReachesOldWorkingDirectories(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/sub/secret", "SECRET")
	u.Write("proj/sub/deep/x", "x")
	b := newBox(u)
	// A shell whose working directory lies below the mount that comes.
	b.Sh("cd ~/proj/sub/deep")
	b.ok("rw " + u.Project)
	b.want(b.Sh("cat ../secret"), "SECRET")
	b.ok("mask-file " + u.Project + "/sub/secret")
	b.want(b.Sh("cat ~/proj/sub/secret; cat ../secret; cat /proc/self/cwd/../secret; cd ..; cat secret"), "")
}

func TestMaskReachesOtherMountsOfTheObject(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/secret", "SECRET")
	b := newBox(u, "--bind", u.Project, u.Project, "--bind", u.Home, "/mnt")
	b.ok("mask-file " + u.Project + "/secret")
	b.want(b.Sh("cat ~/proj/secret /mnt/proj/secret"), "")
}

func TestMaskOfAnOpenFileIsBusy(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/secret", "SECRET")
	b := newBox(u, "--bind", u.Project, u.Project)
	b.Sh("exec 6<~/proj/secret")
	r := b.not("busy\t", "mask-file "+u.Project+"/secret")
	if !strings.Contains(r, "bash fd 6 "+u.Project+"/secret") {
		t.Errorf("%s", r)
	}
	b.want(b.Sh("cat ~/proj/secret"), "")
}

func TestMasksStayThroughAnAddition(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/secret", "SECRET")
	u.Write("proj/keys/id", "SECRET")
	u.Write("proj/ro/f", "f")
	u.Write("proj/sub/f", "f")
	u.Write("empty", "")
	b := newBox(u, "--ro-bind", u.Home+"/empty", u.Project+"/secret", "--tmpfs", u.Project+"/keys", "--remount-ro", u.Project+"/keys",
		"--ro-bind", u.Project+"/ro", u.Project+"/ro", "--bind", u.Project+"/sub", u.Project+"/sub")
	b.Sh(`( cd ~/proj; while [ ! -e /tmp/stop ]; do cat secret keys/id ~/proj/secret ~/proj/keys/id; done 2>/dev/null >/tmp/seen; echo end >>/tmp/seen ) &`)
	keep := []string{"keep " + u.Project + "/secret", "keep " + u.Project + "/keys", "keep " + u.Project + "/ro", "keep " + u.Project + "/sub"}
	for range 20 {
		b.ok(append(keep, "rw "+u.Project)...)
		b.ok(append(keep, "detach "+u.Project+"/sub")...)
		b.ok("rw " + u.Project + "/sub")
		b.ok(append(keep, "remount-ro "+u.Project)...)
	}
	b.ok(append(keep, "rw "+u.Project)...)
	b.Sh("touch /tmp/stop; wait")
	b.want(b.Sh("cat /tmp/seen"), "end")
	b.wantWritable(u.Project, true)
	b.wantWritable(u.Project+"/sub", true)
	b.wantWritable(u.Project+"/ro", false)
	b.want(b.Sh("cat ~/proj/secret; ls -A ~/proj/keys; touch ~/proj/keys/x 2>/dev/null"), "")
}

func TestRevocationReachesAnOldWorkingDirectory(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/sub/f", "f")
	b := newBox(u, "--bind", u.Project+"/sub", u.Project+"/sub")
	b.Sh("cd ~/proj/sub")
	b.ok("keep "+u.Project+"/sub", "rw "+u.Project)
	b.want(b.Sh("touch here && echo yes"), "yes")
	// One mount of the folder can be written: the old one, now on top.
	b.wantWritable(u.Project+"/sub", true)
	writable := 0
	for _, m := range b.mounts() {
		if m.Point == u.Project+"/sub" && !m.ReadOnly() {
			writable++
		}
	}
	if writable != 1 {
		t.Errorf("%d writable mounts of it", writable)
	}
	b.ok("remount-ro "+u.Project+"/sub", "remount-ro "+u.Project)
	b.want(b.Sh("touch here2 2>/dev/null || echo no; touch ~/proj/sub/x 2>/dev/null || echo no; cd ~/proj; touch x 2>/dev/null || echo no"), "no\nno\nno")

	// And an open descriptor keeps it busy, in whatever mount it was opened.
	b.ok("rw "+u.Project, "rw "+u.Project+"/sub")
	b.Sh("cd ~/proj/sub; exec 8>>f")
	b.not("busy\t", "remount-ro "+u.Project+"/sub")
	b.Sh("exec 8>&-")
	b.ok("remount-ro "+u.Project+"/sub", "remount-ro "+u.Project)
	for _, m := range b.mounts() {
		if strings.HasPrefix(m.Point, u.Project) && !m.ReadOnly() {
			t.Errorf("%s is still writable: mount %d of %s", m.Point, m.ID, m.Root)
		}
	}
}

func TestRevocationReachesOtherMountsOfTheObject(t *testing.T) {
	u := harness.NewUser(t)
	b := newBox(u, "--bind", u.Project, u.Project, "--bind", u.Project, "/mnt")
	b.ok("remount-ro " + u.Project)
	b.wantWritable("/mnt", false)
	b.ok("rw " + u.Project)
	b.ok("remount-rw /mnt\t" + u.Project)
	b.wantWritable("/mnt", true)
	b.ok("keep /mnt", "remount-ro "+u.Project)
	b.wantWritable("/mnt", true)
}

func hostMount(t *testing.T, dir, opts string) {
	t.Helper()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", opts, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
}

// share makes dir a mount of the host from which mounts propagate, as systemd
// makes them all.
func share(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{{"--bind", dir, dir}, {"--make-shared", dir}} {
		if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
			t.Fatalf("%s", out)
		}
	}
	t.Cleanup(func() { exec.Command("umount", "-l", dir).Run() })
}

func TestHostMountsBelow(t *testing.T) {
	u := harness.NewUser(t)
	for _, d := range []string{"nfs", "fixed", "kept"} {
		u.Mkdir(u.Project + "/" + d)
		hostMount(t, u.Project+"/"+d, "mode=0777")
	}
	exec.Command("mount", "-o", "remount,ro,bind", u.Project+"/fixed").Run()
	b := newBox(u)
	for _, d := range []string{"", "/nfs", "/fixed", "/kept"} {
		b.wantWritable(u.Project+d, false)
	}
	keep := "keep " + u.Project + "/kept"
	for range 2 { // by a clone, then in place
		b.ok(keep, "rw "+u.Project)
		b.wantWritable(u.Project+"/nfs", true)
		b.wantWritable(u.Project+"/fixed", false)
		b.wantWritable(u.Project+"/kept", false)
		b.ok(keep, "remount-ro "+u.Project)
		for _, d := range []string{"", "/nfs", "/fixed", "/kept"} {
			b.wantWritable(u.Project+d, false)
		}
	}
}

// A mount that the host made during the session is locked to its place, so an
// addition above it leaves it behind, covered, with whoever works in it.
func TestRevocationReachesACoveredMount(t *testing.T) {
	u := harness.NewUser(t)
	u.Mkdir(u.Project + "/auto")
	share(t, u.Home)
	b := newBox(u)
	hostMount(t, u.Project+"/auto", "mode=0777")
	b.want(b.Sh("touch ~/proj/auto/x && echo yes"), "yes")
	b.Sh("cd ~/proj/auto")
	b.ok("rw " + u.Project)
	b.want(b.Sh("touch old && echo yes"), "yes")
	b.ok("remount-ro " + u.Project)
	b.want(b.Sh("touch old2 2>/dev/null || echo no; cd ~/proj/auto; touch new 2>/dev/null || echo no"), "no\nno")
}

func TestPrivateKeepsHostMountsOut(t *testing.T) {
	u := harness.NewUser(t)
	u.Mkdir(u.Project + "/auto/x")
	u.Mkdir(u.Project + "/other")
	share(t, u.Home)
	b := newBox(u, "--bind", u.Project+"/auto", u.Project+"/auto")
	hostMount(t, u.Project+"/other", "mode=0777")
	b.wantWritable(u.Project+"/other", true)
	b.ok("private /\t" + u.Project + "/auto")
	exec.Command("umount", u.Project+"/other").Run()
	hostMount(t, u.Project+"/other", "mode=0777")
	b.wantWritable(u.Project, false)
	hostMount(t, u.Project+"/auto/x", "mode=0777")
	harness.Eventually(t, "automount", func() bool {
		for _, m := range b.mounts() {
			if m.Point == u.Project+"/auto/x" {
				return true
			}
		}
		return false
	})
	b.ok("private /")
	for _, m := range b.mounts() {
		if m.Shared || m.Master {
			t.Errorf("%s still receives mounts", m.Point)
		}
	}
}

func TestReadOnlyOverlay(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/.git/hooks/x", "x")
	u.Write("proj/.git/config", "x")
	b := newBox(u, "--bind", u.Project, u.Project)
	b.Sh("cd ~/proj/.git")
	b.ok("ro "+u.Project+"/.git/hooks", "ro "+u.Project+"/.git/config", "rw "+u.Project+"/.git")
	b.wantWritable(u.Project+"/.git/hooks", false)
	b.want(b.Sh("(echo x >config) 2>/dev/null || echo no; (echo x >hooks/y) 2>/dev/null || echo no; mv ../.git ../g 2>/dev/null || echo no"), "no\nno\nno")
	b.want(b.Sh("touch ~/proj/.git/index && echo yes"), "yes")
	// Who works inside already cannot be stopped by a mount, and is named.
	u.Mkdir(u.Project + "/inner/deep")
	b.Sh("cd ~/proj/inner/deep")
	r := b.not("busy\t", "ro "+u.Project+"/inner")
	if !strings.Contains(r, "bash cwd "+u.Project+"/inner/deep") {
		t.Errorf("%s", r)
	}
	b.wantWritable(u.Project+"/inner", false)
}

func TestDataTmpfsAndDevices(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("d/0", "FILTERED\n")
	os.Chmod(u.Home+"/d/0", 0o600)
	u.Mkdir(u.Project + "/scratch")
	u.Write("list", "HOST") // not /etc/passwd: other tests make users, which takes the mount away
	list := u.Home + "/list"
	b := newBox(u, "--bind", u.Project, u.Project)
	data := u.Home + "/d/0"
	b.ok("data " + list + "\t" + data)
	b.want(b.Sh("cd; cat list; stat -c %a list; (echo x >list) 2>/dev/null || echo no"), "FILTERED\n444\nno")
	u.Write("d/1", "SECOND\n")
	os.Chmod(u.Home+"/d/1", 0o600)
	n := len(b.mounts())
	b.ok("data " + list + "\t" + u.Home + "/d/1")
	b.want(b.Sh("cat ~/list"), "SECOND")
	if len(b.mounts()) != n {
		t.Error("a data file was mounted on top of another")
	}
	u.Write("proj/note", "host")
	b.ok("data " + u.Project + "/note\t" + data + "\trw")
	b.want(b.Sh("cat ~/proj/note; echo mine >~/proj/note; cat ~/proj/note"), "FILTERED\nmine")
	if got, _ := os.ReadFile(u.Project + "/note"); string(got) != "host" {
		t.Errorf("written through to the host: %q", got)
	}
	os.Chmod(data, 0o666)
	b.not("refused cannot use the content", "data /etc/group\t"+data)
	b.not("refused cannot use the content", "data /etc/group\t/etc/hostname")
	syscall.Mkfifo(u.Home+"/d/fifo", 0o600)
	os.Chown(u.Home+"/d/fifo", u.UID, u.GID)
	b.not("refused cannot use the content", "data /etc/group\t"+u.Home+"/d/fifo")

	b.ok("tmpfs " + u.Project + "/scratch\tmode=0700")
	b.want(b.Sh("stat -c %a ~/proj/scratch; echo x >~/proj/scratch/x; cat ~/proj/scratch/x"), "700\nx")
	if _, err := os.Stat(u.Project + "/scratch/x"); err == nil {
		t.Error("the tmpfs is the host's folder")
	}
	b.not("refused", "dev "+u.Project+"/note")
}

// A file bound on its own into a tmpfs home: the host's new file does not show
// anywhere inside.
func TestFileBoundAloneIsBoundAnew(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(".gitconfig", "old")
	u.Write("rc", "old")
	b := home(u, "--ro-bind", u.Home+"/.gitconfig", u.Home+"/.gitconfig", "--bind", u.Home+"/rc", u.Home+"/rc")
	n := len(b.mounts())
	for i := range 3 {
		u.Write("new", fmt.Sprint("new", i))
		os.Rename(u.Home+"/new", u.Home+"/.gitconfig")
		u.Write("new", fmt.Sprint("new", i))
		os.Rename(u.Home+"/new", u.Home+"/rc")
		b.want(b.Sh("cat ~/.gitconfig ~/rc")[:3], map[bool]string{true: "old", false: "new"}[i == 0])
		b.ok("ro "+u.Home+"/.gitconfig", "rw "+u.Home+"/rc")
		b.want(b.Sh("cat ~/.gitconfig ~/rc"), fmt.Sprintf("new%[1]dnew%[1]d", i))
	}
	b.want(b.Sh("(echo x >~/.gitconfig) 2>/dev/null || echo no; echo mine >~/rc; cat ~/rc"), "no\nmine")
	if got, _ := os.ReadFile(u.Home + "/rc"); string(got) != "mine\n" {
		t.Errorf("host has %q", got)
	}
	if got := len(b.mounts()); got != n {
		t.Errorf("%d mounts, %d before", got, n)
	}
	// Revoked, then renamed over: binding it anew would widen it.
	b.ok("remount-ro " + u.Home + "/rc")
	u.Write("new", "newer")
	os.Rename(u.Home+"/new", u.Home+"/rc")
	b.not("refused", "rw "+u.Home+"/rc")
}

func TestDetachShowsNothingWritable(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/sub/f", "f")
	b := newBox(u, "--bind", u.Project, u.Project, "--bind", u.Project+"/sub", u.Project+"/sub")
	if r := b.repair("keep "+u.Project+"/sub", "detach "+u.Project); !strings.HasPrefix(r[1], "refused "+u.Project+"/sub is mounted inside") {
		t.Errorf("%q", r)
	}
	b.ok("detach " + u.Project + "/sub")
	b.wantWritable(u.Project+"/sub", false)
	b.wantWritable(u.Project, true)
	b.not("refused", "detach "+u.Home)
}

func TestNestedNamespaces(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("proj/secret", "SECRET")
	b := newBox(u, "--bind", u.Project, u.Project)
	b.Sh(`mkfifo /tmp/in /tmp/out; unshare -Urm bash -c 'cd /; while read -r l </tmp/in; do eval "$l" >/tmp/out 2>&1; done' & nested=$!`)
	inside := func(cmd string) string {
		return b.Sh("printf '%s\\n' " + quote(cmd) + " >/tmp/in; cat /tmp/out")
	}
	b.want(inside("touch "+u.Project+"/a && cat "+u.Project+"/secret"), "SECRET")
	b.ok("mask-file " + u.Project + "/secret")
	b.want(inside("cat "+u.Project+"/secret"), "")
	b.ok("remount-ro " + u.Project)
	b.wantWritable(u.Project, false)
	b.want(inside("touch "+u.Project+"/a 2>/dev/null || echo no"), "no")
	b.Sh("kill $nested")
}

func TestThousandOperationsInOneProcess(t *testing.T) {
	u := harness.NewUser(t)
	var ops, off []string
	for i := range 1000 {
		d := fmt.Sprintf("%s/d%d", u.Project, i)
		u.Mkdir(d)
		ops = append(ops, "rw "+d)
		off = append(off, "remount-ro "+d)
	}
	b := newBox(u)
	start := time.Now()
	b.ok(ops...)
	added := time.Since(start)
	b.wantWritable(u.Project+"/d999", true)
	start = time.Now()
	b.ok(off...)
	t.Logf("1,000 additions %v, revocations %v", added, time.Since(start))
	b.wantWritable(u.Project+"/d0", false)
	b.wantWritable(u.Project+"/d999", false)
}

// hang mounts a FUSE file system whose server never answers.
func hang(t *testing.T, dir string, u *harness.User) {
	t.Helper()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	harness.Need(t, err == nil, "no /dev/fuse")
	opts := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", f.Fd())
	if err := syscall.Mount("hang", dir, "fuse", 0, opts); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); syscall.Unmount(dir, syscall.MNT_DETACH) })
}

func TestDeadline(t *testing.T) {
	u := harness.NewUser(t)
	u.Mkdir(u.Project + "/hang")
	u.Mkdir(u.Project + "/a")
	b := newBox(u)
	hang(t, u.Project+"/hang", u)
	r := b.run("rw "+u.Project+"/a\nrw "+u.Project+"/hang/x\nrw "+u.Project+"\n",
		"--timeout", "1", fmt.Sprint(b.PID), fmt.Sprint(b.Start), fmt.Sprint(b.NS))
	lines := strings.Split(r.Stdout, "\n")
	if r.Code != 1 || len(lines) != 4 || !strings.HasPrefix(lines[0], "busy\tdone, but not checked") || !strings.HasPrefix(lines[1], "refused not done") || !strings.Contains(r.Stderr, "deadline") {
		t.Errorf("%+v", r)
	}
}

func TestUsage(t *testing.T) {
	u := harness.NewUser(t)
	for _, args := range [][]string{{}, {"1"}, {"x", "1", "1"}, {"0", "1", "1"}, {"1", "-1", "1"}, {"1", "1", "1", "1"}, {"--timeout", "0", "1", "1", "1"}} {
		if r := u.Run("mount-repair", args...); r.Code != 2 || r.Stdout != "" || !strings.HasPrefix(r.Stderr, "mount-repair: ") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := u.Run("mount-repair", "--help"); r.Code != 0 || !strings.HasPrefix(r.Stdout, "usage: mount-repair") {
		t.Errorf("%+v", r)
	}
	// The worker's arguments, given by hand, reach nothing.
	for _, args := range [][]string{{"--join", "1"}, {"--join"}, {"--source"}} {
		if r := u.Run("mount-repair", args...); r.Code == 0 || r.Stdout != "" {
			t.Errorf("%q: %+v", args, r)
		}
	}
}

func TestBadLinesHaveTheirPlace(t *testing.T) {
	u := harness.NewUser(t)
	b := newBox(u)
	got := b.repair("rw "+u.Project, "rw relative", "rw /a/../b", "nonsense /x", "rw", "rw /a\t/b\t/c", `rw /\q`, "data /x", "tmpfs /x\tsize=1")
	if got[0] != "ok" {
		t.Errorf("%q", got[0])
	}
	for _, l := range got[1:] {
		if !strings.HasPrefix(l, "refused ") {
			t.Errorf("%q", l)
		}
	}
	if r := b.run("rw "+u.Project+"\nremount-ro "+u.Project, fmt.Sprint(b.PID), fmt.Sprint(b.Start), fmt.Sprint(b.NS)); r.Code != 2 {
		t.Errorf("a cut last line was taken: %+v", r)
	}
	b.wantWritable(u.Project, true)
}

func TestEndsWithItsParent(t *testing.T) {
	u := harness.NewUser(t)
	b := newBox(u)
	pid := filepath.Join(u.Project, "pid")
	c := u.Command("bash", "-c", fmt.Sprintf("mkfifo f; %s %d %d %d <f & echo $! >pid; exec 9>f; sleep 60; true", harness.Bin(t, "mount-repair"), b.PID, b.Start, b.NS))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "start", func() bool { d, _ := os.ReadFile(pid); return len(d) > 0 })
	d, _ := os.ReadFile(pid)
	n, _ := strconv.Atoi(strings.TrimSpace(string(d)))
	harness.Eventually(t, "a pidfd of the parent", func() bool {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", n))
		return slices.ContainsFunc(links, func(l string) bool {
			to, _ := os.Readlink(l)
			return strings.Contains(to, "pidfd")
		})
	})
	c.Process.Kill()
	c.Wait()
	harness.Eventually(t, "end", func() bool { st, err := sys.ReadProcStat(n); return err != nil || st.Zombie })
}
