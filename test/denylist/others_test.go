//go:build vm

package denylist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// launchTime is the median time of a launch.
func launchTime(t testing.TB, u *user, n int) time.Duration {
	t.Helper()
	times := make([]time.Duration, 0, n)
	for range n {
		start := time.Now()
		must(t, u.in("true"))
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[n/2]
}

// hanging makes a FUSE mount of the user's that answers nobody.
func hanging(t testing.TB, u *user, dir string) {
	t.Helper()
	u.mkdir(filepath.Join(u.home, "fuse-src"))
	u.secret("fuse-src/secret")
	u.write("fuse-src/denylist", "")
	u.mkdir(dir)
	c := u.as("bindfs", "--no-allow-other", "-f", filepath.Join(u.home, "fuse-src"), dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the FUSE mount", func() bool {
		return u.as("test", "-e", dir+"/secret").Run() == nil
	})
	c.Process.Signal(syscall.SIGSTOP)
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
		root(t, "umount -l %s", dir)
	})
}

func TestAHangingHomeListHoldsUpItsUserOnly(t *testing.T) {
	u, v := newUser(t), newUser(t)
	vfile := v.secret("secret")
	v.list(vfile)
	hanging(t, u, filepath.Dir(u.listPath()))
	waiting := u.in("echo", "STARTED")
	out := &strings.Builder{}
	waiting.Stderr, waiting.Stdout = out, out
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	v.denied(vfile)
	waiting.Wait()
	if !strings.Contains(out.String(), "took longer than 3s") || strings.Contains(out.String(), "STARTED") {
		t.Errorf("the user with the hanging list: %s", out)
	}
	// A restart does not wait for it either.
	box := v.enter()
	restart(t, syscall.SIGTERM)
	v.denied(vfile)
	box.denied(vfile)
}

func TestAListedPathThatHangsHoldsUpItsUserOnly(t *testing.T) {
	u, v := newUser(t), newUser(t)
	dir := filepath.Join(u.home, "mnt")
	hanging(t, u, dir)
	u.list(dir + "/secret")
	u.refused("took longer than 3s")
	v.list(v.secret("secret"))
	v.denied(filepath.Join(v.home, "secret"))
}

// A path of the base list that leads to a user's file system that hangs.
func TestABasePathThatHangsHoldsUpNobodyForLong(t *testing.T) {
	u, v := newUser(t), newUser(t)
	vfile, ufile := v.secret("secret"), u.secret("mnt/secret")
	os.WriteFile(baseList, []byte(vfile+"\n"+ufile+"\n"), 0o644)
	defer os.WriteFile(baseList, nil, 0o644)
	v.denied(vfile)
	root(t, "grep -qx user_allow_other /etc/fuse.conf || echo user_allow_other >>/etc/fuse.conf")
	dir := filepath.Join(u.home, "mnt")
	src := filepath.Join(u.home, "src")
	u.mkdir(src)
	c := u.as("bindfs", "-f", "-o", "allow_other,nonempty", src, dir)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait(); root(t, "umount -l %s", dir) }()
	eventually(t, "the FUSE mount", func() bool { return strings.Contains(root(t, "cat /proc/mounts"), dir) })
	c.Process.Signal(syscall.SIGSTOP)
	v.denied(vfile) // waits once
	start := time.Now()
	v.denied(vfile)
	v.denied(vfile)
	t.Logf("two launches beside it: %v", time.Since(start))
}

func TestHomeListThatIsALinkToShadowIsNotLogged(t *testing.T) {
	u := newUser(t)
	u.mkdir(filepath.Dir(u.listPath()))
	must(t, u.as("ln", "-s", "/etc/shadow", u.listPath()))
	u.refused("is a symbolic link")
	must(t, u.as("rm", u.listPath()))
	u.list("relative-"+secret, "/no/"+secret+"/x")
	must(t, u.in("true"))
	noSecret(t, "log", theDaemon.logged())
	shadow, _ := os.ReadFile("/etc/shadow")
	for line := range strings.SplitSeq(string(shadow), "\n") {
		if len(line) > 8 && strings.Contains(theDaemon.logged(), line) {
			t.Error("a line of /etc/shadow is in the log")
		}
	}
}

func TestRequestFolderTakesNoJunk(t *testing.T) {
	u, v := newUser(t), newUser(t)
	r := finish(t, u.as(self(), "attack", "junk", "77"))
	if r.out != "" {
		t.Errorf("could be made: %s", r.out)
	}
	must(t, v.in("true"))
	eventually(t, "an empty folder", func() bool { e, _ := os.ReadDir(requestDir); return len(e) == 0 })
}

// Only who creates a file is moved, whatever its name says.
func TestRequestInAnothersName(t *testing.T) {
	u, v := newUser(t), newUser(t)
	victim, own := v.as("sleep", "1000"), u.as("sleep", "1000")
	for _, c := range []*exec.Cmd{victim, own} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
	}
	u.as("sh", "-c", fmt.Sprintf("cd %s; : >%d; : >%d; : >1; sleep 1", requestDir, victim.Process.Pid, own.Process.Pid)).Run()
	for _, c := range []*exec.Cmd{victim, own} {
		if inGroup(c.Process.Pid, u.uid) || inGroup(c.Process.Pid, v.uid) {
			t.Errorf("process %d was moved", c.Process.Pid)
		}
	}
	data, _ := os.ReadFile("/proc/1/cgroup")
	if strings.Contains(string(data), "agent-sandbox-exec") {
		t.Error("process 1 was moved")
	}
}

// Every name that the launcher may take is there already.
func TestSquattedNames(t *testing.T) {
	u, v := newUser(t), newUser(t)
	stop := make(chan bool)
	done := make(chan bool)
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			c := u.as("sh", "-c", fmt.Sprintf("cd %s; set -C; i=$$; while [ $i -lt $(($$ + 60)) ]; do : >$i; i=$((i + 1)); done 2>/dev/null", requestDir))
			c.Run()
		}
	}()
	for range 5 {
		must(t, v.in("true"))
	}
	close(stop)
	<-done
}

func TestFloodDelaysNoOther(t *testing.T) {
	u, v := newUser(t), newUser(t)
	v.list(v.secret("secret"))
	before := launchTime(t, v, 15)
	rss := daemonMemory(t)
	flood := u.as(self(), "attack", "flood")
	if err := flood.Start(); err != nil {
		t.Fatal(err)
	}
	during := launchTime(t, v, 15)
	flood.Process.Kill()
	flood.Wait()
	t.Logf("launch: %v before, %v during the flood; memory of the daemon %d kB before, %d kB after", before, during, rss, daemonMemory(t))
	v.denied(filepath.Join(v.home, "secret"))
	if now := daemonMemory(t); now > 4*rss {
		t.Errorf("the daemon grew from %d to %d kB", rss, now)
	}
	eventually(t, "an empty folder", func() bool { e, _ := os.ReadDir(requestDir); return len(e) == 0 })
}

func daemonMemory(t testing.TB) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", theDaemon.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var kb int
	for line := range strings.SplitSeq(string(data), "\n") {
		fmt.Sscanf(line, "VmRSS: %d kB", &kb)
	}
	return kb
}

func TestLeaseOnTheRequestStallsNobody(t *testing.T) {
	u, v := newUser(t), newUser(t)
	c := u.as(self(), "attack", "lease")
	in, _ := c.StdinPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	must(t, v.in("true"))
	in.Close()
	c.Wait()
}

func TestOneProcessThatAsksManyTimes(t *testing.T) {
	u, v := newUser(t), newUser(t)
	c := u.as(self(), "attack", "requests", "200")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	must(t, v.in("true"))
	c.Wait()
	must(t, u.in("true"))
	u.list("/nothing/a")
	must(t, u.in("true"))
}

func TestRequestFolderRemovedByRoot(t *testing.T) {
	u := newUser(t)
	root(t, "mv %s/req %s/away", runDir, runDir)
	// The service manager starts it again.
	theDaemon.cmd.Wait()
	root(t, "rmdir %s/away", runDir)
	if err := theDaemon.start(); err != nil {
		t.Fatal(err)
	}
	must(t, u.in("true"))
}

func TestFullFolderIsRefusedOrWaits(t *testing.T) {
	u := newUser(t)
	theDaemon.cmd.Process.Signal(syscall.SIGSTOP)
	for i := 0; os.WriteFile(fmt.Sprintf("%s/full.%d", requestDir, i), nil, 0o600) == nil; i++ {
	}
	theDaemon.cmd.Process.Signal(syscall.SIGCONT)
	eventually(t, "launches", func() bool { return finish(t, u.in("true")).code == 0 })
}

func TestMoreThan256Users(t *testing.T) {
	u := newUser(t)
	var users []*user
	for range count("USERS", 300) {
		v := &user{t: t, uid: u.uid + 100000 + len(users), name: fmt.Sprintf("many%d", len(users)), home: u.home}
		users = append(users, v)
	}
	var lines strings.Builder
	for _, v := range users {
		fmt.Fprintf(&lines, "%s:x:%d:%d::%s:/bin/sh\n", v.name, v.uid, v.uid, v.home)
	}
	appendTo(t, "/etc/passwd", lines.String())
	u.list(u.secret("secret"))
	for _, v := range users {
		if r := finish(t, v.in("true")); r.code != 0 {
			t.Fatalf("user %s: %v", v.name, r)
		}
	}
	users[len(users)-1].denied(filepath.Join(u.home, "secret"))
}

func TestUserWithoutEntryIsRefused(t *testing.T) {
	u := &user{t: t, uid: 4000000, name: "nobody-at-all", home: "/"}
	u.refused("not in the user database")
}
