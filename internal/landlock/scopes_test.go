package landlock_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"agent-sandbox/internal/landlock"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// The test binary run again with a role is a process to confine: it takes the
// restriction and executes its arguments from the thread that has it.
func init() {
	if os.Getenv("LANDLOCK_TEST_ROLE") == "scopes" {
		runtime.LockOSThread()
		if err := landlock.RestrictScopes(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
		fmt.Fprintln(os.Stderr, syscall.Exec(os.Args[1], os.Args[1:], os.Environ()))
		os.Exit(98)
	}
}

// needABI skips where the kernel's landlock is older than v.
func needABI(t *testing.T, v int) {
	t.Helper()
	abi, err := landlock.ABI()
	if err != nil && !errors.Is(err, landlock.ErrUnsupported) {
		t.Fatal(err)
	}
	harness.Need(t, abi >= v, fmt.Sprintf("landlock version %d, the test needs %d", abi, v))
}

func user(u *harness.User) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}}
}

// scoped runs a command as u, under the scopes or without.
func scoped(t *testing.T, u *harness.User, under bool, command ...string) harness.Result {
	t.Helper()
	c := exec.Command(command[0], command[1:]...)
	if under {
		c = exec.Command("/proc/self/exe", command...)
	}
	c.Dir = u.Home
	c.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + u.Home}
	if under {
		c.Env = append(c.Env, "LANDLOCK_TEST_ROLE=scopes")
	}
	c.SysProcAttr = user(u)
	return harness.Finish(t, c)
}

func TestScopes(t *testing.T) {
	needABI(t, 6)
	u := harness.NewUser(t)

	name := fmt.Sprintf("asb-scope-%d", os.Getpid())
	l, err := net.Listen("unix", "@"+name)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	connect := "import socket; socket.socket(socket.AF_UNIX).connect('\\0" + name + "')"
	if r := scoped(t, u, false, "/usr/bin/python3", "-c", connect); r.Code != 0 {
		t.Fatalf("without the scopes: %s", r.Stderr)
	}
	if r := scoped(t, u, true, "/usr/bin/python3", "-c", connect); r.Code == 0 {
		t.Error("an abstract socket outside was reached")
	}

	victim := exec.Command("sleep", "600")
	victim.SysProcAttr = user(u)
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { victim.Process.Kill(); victim.Wait() }()
	pid := strconv.Itoa(victim.Process.Pid)
	if r := scoped(t, u, false, "/bin/kill", "-0", pid); r.Code != 0 {
		t.Fatalf("without the scopes: %s", r.Stderr)
	}
	if r := scoped(t, u, true, "/bin/kill", "-0", pid); r.Code == 0 {
		t.Error("a process outside can be signalled")
	}

	// What a session does among its own stays: abstract sockets, signals, bwrap.
	within := `import socket,os,signal
s=socket.socket(socket.AF_UNIX); s.bind('\0asb-inside-%d' % os.getpid()); s.listen()
p=os.fork()
if p==0:
    socket.socket(socket.AF_UNIX).connect(s.getsockname()); signal.pause()
s.accept(); os.kill(p,15); assert os.waitpid(p,0)[1]==15`
	if r := scoped(t, u, true, "/usr/bin/python3", "-c", within); r.Code != 0 {
		t.Errorf("inside: %s", r.Stderr)
	}
	if r := scoped(t, u, true, "/usr/bin/bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--unshare-all", "sh", "-c", "echo >/dev/null; exit 7"); r.Code != 7 {
		t.Errorf("bwrap under the scopes: exit %d, %s", r.Code, r.Stderr)
	}
}

// TestScopesLetSignalsIn: the processes outside still reach those inside.
func TestScopesLetSignalsIn(t *testing.T) {
	needABI(t, 6)
	u := harness.NewUser(t)
	c := exec.Command("/proc/self/exe", "/bin/sleep", "600")
	c.Env = []string{"LANDLOCK_TEST_ROLE=scopes"}
	c.SysProcAttr = user(u)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "sleep runs", func() bool {
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", c.Process.Pid))
		return string(comm) == "sleep\n"
	})
	if r := scoped(t, u, false, "/bin/kill", "-TERM", strconv.Itoa(c.Process.Pid)); r.Code != 0 {
		c.Process.Kill()
		t.Errorf("kill from outside: %s", r.Stderr)
	}
	c.Wait()
	if s := c.ProcessState.Sys().(syscall.WaitStatus).Signal(); s != syscall.SIGTERM {
		t.Errorf("ended by %v", s)
	}
}

// TestScopesUnsupported: an older kernel is told from a failure, and where scopes are
// wanted only if they can be had nothing fails.
func TestScopesUnsupported(t *testing.T) {
	abi, err := landlock.ABI()
	if err != nil || abi >= landlock.ScopesABI {
		t.Logf("version %d has scopes; the virtual machine's kernel has none", abi)
		return
	}
	done := make(chan [2]error)
	go func() {
		runtime.LockOSThread()
		done <- [2]error{landlock.RestrictScopes(), landlock.RestrictWhereScoped()}
	}()
	if e := <-done; !errors.Is(e[0], landlock.ErrUnsupported) || e[1] != nil {
		t.Errorf("%v, %v", e[0], e[1])
	}
}
