//go:build vm

package denylist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// inGroup says whether a process is in the uid's cgroup.
func inGroup(pid, uid int) bool {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return strings.Contains(string(data), fmt.Sprintf("0::/agent-sandbox-exec/uid-%d\n", uid))
}

// Another process of the user removes every request at once: a launch is in the
// group, or it is none.
func TestRequestRemovedByAnotherProcess(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	for range 2 {
		c := u.as(self(), "attack", "delete")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
	}
	launched := 0
	for range 15 {
		r := finish(t, u.in("sh", "-c", "grep ^0:: /proc/self/cgroup; cat "+file))
		noSecret(t, "launch", r.out)
		if strings.Contains(r.out, "0::") {
			launched++
			if r.out != fmt.Sprintf("0::/agent-sandbox-exec/uid-%d\n", u.uid) {
				t.Errorf("launched in %v", r)
			}
		} else if r.code != 2 {
			t.Errorf("%v", r)
		}
	}
	t.Logf("%d of 15 launches came through", launched)
}

// Another process of the user stops the launcher, removes its request before the daemon
// comes to it, and makes one of its own under that name: root's answer says ok, for the
// other one. The launcher believes only its own cgroup.
func TestAnswerMeantForAnotherProcess(t *testing.T) {
	u, v := newUser(t), newUser(t)
	file := u.secret("secret")
	u.list(file)
	theDaemon.cmd.Process.Signal(syscall.SIGSTOP)
	defer theDaemon.cmd.Process.Signal(syscall.SIGCONT)
	c := u.in("cat", file)
	out := &strings.Builder{}
	c.Stdout, c.Stderr = out, out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	name := strconv.Itoa(c.Process.Pid)
	request := filepath.Join(requestDir, name)
	eventually(t, "the request", func() bool { return os.Remove(request) == nil })
	c.Process.Signal(syscall.SIGSTOP)
	theDaemon.cmd.Process.Signal(syscall.SIGCONT)
	must(t, v.in("true")) // its event comes after the one of the request that is gone
	must(t, u.as("sh", "-c", ": >"+request+"; while [ -e "+request+" ]; do sleep 0.01; done"))
	answer, _ := os.ReadFile(filepath.Join(runDir, "ans", name))
	c.Process.Signal(syscall.SIGCONT)
	c.Wait()
	if string(answer) != "ok\n" {
		t.Errorf("the other's answer: %q", answer)
	}
	if c.ProcessState.ExitCode() != 2 || !strings.Contains(out.String(), "not moved") {
		t.Errorf("status %d, %q", c.ProcessState.ExitCode(), out)
	}
}

// In a pid namespace the request is named by a number that is another process's
// outside: the kernel says who asked.
func TestPidNamespaceMovesWhoAsked(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	// A process of the user for every number an inner launcher can have.
	decoy := u.as("sleep", "1000")
	if err := decoy.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { decoy.Process.Kill(); decoy.Wait() }()
	// ns_last_pid is root's: the number is set before the identity is given up.
	c := exec.Command("unshare", "-pf", "--mount-proc", "sh", "-c", fmt.Sprintf("echo %d >/proc/sys/kernel/ns_last_pid; setpriv --reuid %d --regid %d --clear-groups %s sh -c 'grep ^0:: /proc/self/cgroup; echo pid $$; cat %s'; true",
		decoy.Process.Pid-1, u.uid, u.uid, launchBin, file))
	r := finish(t, c)
	noSecret(t, "in the namespace", r.out)
	if !strings.Contains(r.out, fmt.Sprintf("0::/agent-sandbox-exec/uid-%d\n", u.uid)) || !strings.Contains(r.err, refusal) {
		t.Errorf("in the namespace: %v", r)
	}
	if !strings.Contains(r.out, fmt.Sprintf("pid %d\n", decoy.Process.Pid)) {
		t.Errorf("the launcher did not have the other's number %d: %v", decoy.Process.Pid, r)
	}
	if inGroup(decoy.Process.Pid, u.uid) {
		t.Error("the other process with that number was moved")
	}
	for _, how := range [][]string{{"unshare", "-Urpf"}, {"bwrap", "--dev-bind", "/", "/", "--unshare-pid"}, {"unshare", "-Urpf", "--mount-proc"}} {
		r := finish(t, u.as(how[0], append(how[1:], launchBin, "cat", file)...))
		noSecret(t, how[0], r.out)
		if r.code != 2 && !strings.Contains(r.err, refusal) {
			t.Errorf("%v: %v", how, r)
		}
	}
}

func TestCgroupNamespace(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	r := finish(t, u.as("unshare", "-UrC", launchBin, "cat", file))
	noSecret(t, "in the namespace", r.out)
	if !strings.Contains(r.err, refusal) {
		t.Errorf("%v", r)
	}
}

// A group of the right name in a tree that belongs to the user is not the group.
func TestGroupOfTheSameNameElsewhere(t *testing.T) {
	u := newUser(t)
	tree := "/sys/fs/cgroup/delegated-" + u.name
	fake := tree + "/agent-sandbox-exec/uid-" + strconv.Itoa(u.uid)
	root(t, "mkdir -p %s && chown -R %d %s", fake, u.uid, tree)
	defer root(t, "rmdir %s %s/agent-sandbox-exec %s", fake, tree, tree)
	file := u.secret("secret")
	u.list(file)
	theDaemon.stop(syscall.SIGTERM)
	c := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s/cgroup.procs; exec setpriv --reuid %d --regid %d --clear-groups unshare -UrC %s cat %s", tree, u.uid, u.uid, launchBin, file))
	r := finish(t, c)
	if r.code != 2 {
		t.Errorf("without the daemon: %v", r)
	}
	if err := theDaemon.start(); err != nil {
		t.Fatal(err)
	}
}

func TestNoCgroup2NoStart(t *testing.T) {
	r := finish(t, exec.Command("unshare", "-m", "sh", "-c", "umount /sys/fs/cgroup && "+daemonBin))
	if r.code != 1 || !strings.Contains(r.err, "no cgroup2 file system is mounted") || !strings.Contains(r.err, "hint: mount -t cgroup2") {
		t.Errorf("the daemon without cgroup2: %v", r)
	}
	u := newUser(t)
	c := exec.Command("unshare", "-m", "sh", "-c", fmt.Sprintf("umount /sys/fs/cgroup; mount -t tmpfs t /sys/fs/cgroup; mkdir -p %s/uid-%d; chmod -R 777 /sys/fs/cgroup; touch %s/uid-%d/cgroup.procs; exec setpriv --reuid %d --regid %d --clear-groups %s grep ^0:: /proc/self/cgroup",
		groupDir, u.uid, groupDir, u.uid, u.uid, u.uid, launchBin))
	r = finish(t, c)
	if r.out != fmt.Sprintf("0::/agent-sandbox-exec/uid-%d\n", u.uid) {
		t.Errorf("a launch where something else lies there: %v", r)
	}
}

// The option that makes launches quick comes beside those that cgroup2 has, and goes with
// --detach unless it is the administrator's own.
func TestFavorDynMods(t *testing.T) {
	options := func() string { return root(t, "findmnt -n -o FS-OPTIONS,VFS-OPTIONS /sys/fs/cgroup") }
	again := func(args ...string) {
		t.Helper()
		theDaemon.stop(syscall.SIGTERM)
		must(t, finishDetach())
		if err := theDaemon.start(args...); err != nil {
			t.Fatal(err)
		}
	}
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	before := options()
	if strings.Contains(before, "favordynmods") || !strings.Contains(before, "nsdelegate") {
		t.Fatalf("options before: %s", before)
	}
	defer again()
	again("--favordynmods")
	if now := options(); strings.Replace(now, ",favordynmods", "", 1) != before || now == before {
		t.Errorf("options %s, before %s", now, before)
	}
	u.denied(file)
	restart(t, syscall.SIGKILL, "--favordynmods")
	again()
	if now := options(); now != before {
		t.Errorf("options after --detach %s, before %s", now, before)
	}
	root(t, "mount -o remount,nosuid,nodev,noexec,nsdelegate,favordynmods /sys/fs/cgroup")
	again("--favordynmods")
	again()
	if now := options(); !strings.Contains(now, "favordynmods") {
		t.Errorf("the administrator's own is taken away: %s", now)
	}
	root(t, "mount -o remount,nosuid,nodev,noexec,nsdelegate /sys/fs/cgroup")
}

// As many users' cgroups as there may be must not all look the same to the kernel, where
// systemd has the pids controller on.
func TestGroupsOfTheirOwnForTheKernel(t *testing.T) {
	const group = "/sys/fs/cgroup/agent-sandbox-exec"
	u := newUser(t)
	root(t, "echo +pids >/sys/fs/cgroup/cgroup.subtree_control")
	defer func() {
		root(t, "echo -pids >%s/cgroup.subtree_control; echo -pids >/sys/fs/cgroup/cgroup.subtree_control", group)
		restart(t, syscall.SIGTERM)
	}()
	restart(t, syscall.SIGTERM)
	if r := finish(t, u.in("cat", fmt.Sprintf("%s/uid-%d/pids.max", group, u.uid))); r.out != "max\n" {
		t.Errorf("%v", r)
	}
}

func TestCgroup2Elsewhere(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	theDaemon.stop(syscall.SIGTERM)
	must(t, finishDetach())
	root(t, "mkdir -p /mnt/cg && mount --move /sys/fs/cgroup /mnt/cg")
	defer func() {
		theDaemon.stop(syscall.SIGTERM)
		killAll(u.uid)
		must(t, finishDetach())
		root(t, "mount --move /mnt/cg /sys/fs/cgroup")
		if err := theDaemon.start(); err != nil {
			t.Fatal(err)
		}
	}()
	if err := theDaemon.start(); err != nil {
		t.Fatal(err)
	}
	u.denied(file)
}

func TestCgroupMadeAgainByRoot(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	u.denied(file)
	root(t, "rmdir %s/uid-%d", groupDir, u.uid)
	u.denied(file)
	root(t, "rmdir %s/uid-%d; mkdir %s/uid-%d", groupDir, u.uid, groupDir, u.uid)
	u.denied(file)
	// Every group, with the parent.
	root(t, "for p in $(cat %s/readers/cgroup.procs); do kill -9 $p; done; sleep 0.5; rmdir %s/uid-* %s/readers %s", groupDir, groupDir, groupDir, groupDir)
	u.denied(file)
}

func TestChildCgroup(t *testing.T) {
	var u *user
	// After the processes of the user have ended: --detach would name it.
	t.Cleanup(func() { root(t, "rmdir %s/uid-%d/a/b %s/uid-%d/a", groupDir, u.uid, groupDir, u.uid) })
	u = newUser(t)
	file := u.secret("secret")
	u.list(file)
	box := u.enter()
	pid := box.sh("echo $$")
	root(t, "mkdir -p %s/uid-%d/a/b && echo %s >%s/uid-%d/a/b/cgroup.procs", groupDir, u.uid, pid, groupDir, u.uid)
	box.denied(file)
	u.denied(file)
}

func TestAnotherUsersSandboxCannotBeLeft(t *testing.T) {
	u, v := newUser(t), newUser(t)
	file := u.secret("secret")
	u.list(file)
	// As through su or sudo: v's identity in u's sandbox.
	c := u.in("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	eventually(t, "the sandbox", func() bool { return inGroup(c.Process.Pid, u.uid) })
	r := finish(t, exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s/uid-%d/cgroup.procs; exec setpriv --reuid %d --regid %d --clear-groups %s cat %s",
		groupDir, u.uid, v.uid, v.uid, launchBin, file)))
	if r.code != 2 || !strings.Contains(r.err, "already in the sandbox of another user") {
		t.Errorf("%v", r)
	}
}

func TestDaemonKilledStaysDenied(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	box := u.enter()
	theDaemon.stop(syscall.SIGKILL)
	box.denied(file)
	u.refused("")
	if err := theDaemon.start(); err != nil {
		t.Fatal(err)
	}
	box.denied(file)
	u.denied(file)
}

func TestStoppedDaemonRefusesWithReason(t *testing.T) {
	u := newUser(t)
	theDaemon.cmd.Process.Signal(syscall.SIGSTOP)
	u.refused("no answer from agent-sandbox-execd")
	theDaemon.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "launches", func() bool { return finish(t, u.in("true")).code == 0 })
	if entries, _ := os.ReadDir(requestDir); len(entries) != 0 {
		t.Errorf("requests lie around: %v", entries)
	}
}

// A line that goes while the daemon is down goes with the restart; one that stays
// keeps even a file that was replaced.
func TestRestartAppliesTheListsAgain(t *testing.T) {
	u := newUser(t)
	a, b, c := u.secret("a"), u.secret("b"), u.secret("c")
	u.list(a, b)
	box := u.enter()
	must(t, u.as("sh", "-c", "cd; ln b b.old; echo "+secret+" >n; mv n b"))
	theDaemon.stop(syscall.SIGKILL)
	u.list(b, c)
	if err := theDaemon.start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new line", func() bool { return strings.Contains(box.sh("cat %s", c), refusal) })
	eventually(t, "the end of the old line", func() bool { return strings.Contains(box.sh("cat %s", a), secret) })
	box.denied(b)
	box.denied(filepath.Join(u.home, "b.old"))
}

func TestEmptySandboxIsForgotten(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	u.denied(file)
	if status(t, u.uid) == nil {
		t.Fatal("no status line")
	}
	for range 90 {
		if status(t, u.uid) == nil {
			break
		}
		time.Sleep(time.Second)
	}
	if f := status(t, u.uid); f != nil {
		t.Errorf("still there: %v", f)
	}
	if _, err := os.Stat(fmt.Sprintf("%s/uid-%d", groupDir, u.uid)); err == nil {
		t.Error("the cgroup is still there")
	}
	u.denied(file)
}

func TestTransparent(t *testing.T) {
	u := newUser(t)
	c := u.in("sh", "-c", "cat; echo err >&2; exit 7")
	c.Stdin = strings.NewReader("in")
	if r := finish(t, c); r.out != "in" || r.err != "err\n" || r.code != 7 {
		t.Errorf("%v", r)
	}
	same := func(command string) {
		t.Helper()
		out, in := finish(t, u.as("sh", "-c", command)), finish(t, u.in("sh", "-c", command))
		if out.out != in.out || out.err != in.err || in.code != 0 {
			t.Errorf("%s: outside %v, inside %v", command, out, in)
		}
	}
	same("env | sort; pwd; umask; ulimit -a; id; nice")
	same("grep -E '^(Sig|Shd|NoNew|Seccomp|Cap|Threads|THP)' /proc/self/status; cat /proc/self/timerslack_ns")
	same("cut -d' ' -f3- /proc/self/mountinfo; cd /proc/self/ns && for n in *; do readlink $n; done")
	same("ls -l /dev/null /proc/1 | cut -c1-40; cat /proc/1/comm; ls /proc/self/fd | wc -l")
	if r := finish(t, u.in("sh", "-c", "kill -TERM $$")); r.code != -1 {
		t.Errorf("killed by a signal: %v", r)
	}
	for want, command := range map[int]string{127: "/no/such", 126: "/etc/passwd"} {
		if r := finish(t, u.in(command)); r.code != want {
			t.Errorf("%s: %v", command, r)
		}
	}
	if r := finish(t, u.in("no-such-command")); r.code != 127 {
		t.Errorf("%v", r)
	}
	plain := u.write("plain", "echo shell $1\n")
	os.Chmod(plain, 0o755)
	if r := finish(t, u.in(plain, "works")); r.out != "shell works\n" {
		t.Errorf("a script without an interpreter line: %v", r)
	}
	if r := finish(t, u.in("--", "echo", "-x")); r.out != "-x\n" {
		t.Errorf("%v", r)
	}
	if r := finish(t, u.in("-x")); r.code != 2 {
		t.Errorf("%v", r)
	}
}
