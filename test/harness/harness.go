// Package harness gives tests real users, the built binaries where those users
// can run them, and commands run with a user's own identity.
package harness

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Need skips the test with the reason unless ok; with MUST_WORK=1, as in CI, it
// fails it, so that nothing is left out unseen.
func Need(t testing.TB, ok bool, reason string) {
	t.Helper()
	if ok {
		return
	}
	if os.Getenv("MUST_WORK") == "1" {
		t.Fatalf("cannot run here: %s", reason)
	}
	t.Skip(reason)
}

// Root is the top folder of the checkout.
func Root() string {
	dir, err := os.Getwd()
	if err != nil {
		panic(err)
	}
	for dir != "/" {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	panic("not below a checkout")
}

var installed = struct {
	sync.Once
	dir string
	err error
}{}

// Bin is the path of a built binary in a folder that every user can reach and
// that only root can write: a copy of build/ and share/ below /opt, made once a
// test process. Main removes it.
func Bin(t testing.TB, name string) string {
	t.Helper()
	installed.Do(func() {
		installed.dir, installed.err = os.MkdirTemp("/opt", "asb-test.")
		if installed.err != nil {
			return
		}
		os.Chmod(installed.dir, 0o755)
		for _, c := range [][]string{{"build/.", "."}, {"share/.", "share"}} {
			src := Root() + "/" + c[0] // not Join: it would clean the "/." away
			if _, err := os.Stat(src); err != nil {
				continue
			}
			if out, err := exec.Command("cp", "-a", "--no-preserve=ownership", src, filepath.Join(installed.dir, c[1])).CombinedOutput(); err != nil {
				installed.err = fmt.Errorf("%s: %w", out, err)
				return
			}
		}
		exec.Command("chmod", "-R", "a+rX", installed.dir).Run()
	})
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	p := filepath.Join(installed.dir, name)
	if _, err := os.Stat(p); err != nil {
		t.Fatalf("%v: run make build first", err)
	}
	return p
}

// Main runs the tests and removes what Bin and NewUser made; use it in TestMain.
// The functions in after remove what the package's own tests made.
func Main(m *testing.M, after ...func()) {
	// What the tests were started with, under nohup say, is not what a test's
	// programs are to inherit: a caught signal is a default one after exec.
	for sig := syscall.Signal(1); sig < 32; sig++ {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	code := m.Run()
	for _, f := range after {
		f()
	}
	if installed.dir != "" {
		os.RemoveAll(installed.dir)
	}
	os.Exit(code)
}

// A User is an ordinary user of this machine with an empty home, a project in it
// and a runtime folder, removed when the test ends.
type User struct {
	T       testing.TB
	Name    string
	UID     int
	GID     int
	Home    string
	Project string // Home/proj
	Runtime string // /run/user/UID
	Env     []string
}

// NewUser makes a user. It needs root.
func NewUser(t testing.TB) *User {
	t.Helper()
	Need(t, os.Getuid() == 0, "making users needs root")
	name := fmt.Sprintf("asb%d-%d", os.Getpid(), userSeq())
	if out, err := run("useradd", "-m", "-s", "/bin/bash", name); err != nil {
		t.Fatalf("useradd: %v: %s", err, out)
	}
	u := &User{T: t, Name: name}
	pw, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	u.UID, _ = strconv.Atoi(pw.Uid)
	u.GID, _ = strconv.Atoi(pw.Gid)
	u.Home = pw.HomeDir
	u.Project = filepath.Join(u.Home, "proj")
	u.Runtime = fmt.Sprintf("/run/user/%d", u.UID)
	os.MkdirAll("/run/user", 0o755)
	u.Mkdir(u.Project)
	if err := os.Mkdir(u.Runtime, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		t.Fatal(err)
	}
	os.Chown(u.Runtime, u.UID, u.GID)
	t.Cleanup(func() {
		run("pkill", "-KILL", "-u", strconv.Itoa(u.UID))
		// Until orphans have been reaped, too: the next user may get the uid.
		for i := 0; i < 250; i++ {
			if _, err := run("pgrep", "-u", strconv.Itoa(u.UID)); err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		os.RemoveAll(u.Runtime) // first: once the user is gone the next may get the uid
		run("userdel", "-f", "-r", name)
	})
	return u
}

var seq struct {
	sync.Mutex
	n int
}

func userSeq() int {
	seq.Lock()
	defer seq.Unlock()
	seq.n++
	return seq.n
}

func run(name string, args ...string) ([]byte, error) {
	return exec.Command(name, args...).CombinedOutput()
}

// Mkdir makes a folder and the folders above it that are missing, owned by the user.
func (u *User) Mkdir(path string) {
	u.T.Helper()
	if _, err := os.Stat(path); err == nil {
		return
	}
	u.Mkdir(filepath.Dir(path))
	if err := os.Mkdir(path, 0o755); err != nil {
		u.T.Fatal(err)
	}
	os.Lchown(path, u.UID, u.GID)
}

// Write writes a file owned by the user, with the folders above it. A relative
// path is below the home.
func (u *User) Write(path, content string) {
	u.T.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(u.Home, path)
	}
	u.Mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		u.T.Fatal(err)
	}
	os.Lchown(path, u.UID, u.GID)
}

// Config writes the user's sandbox.conf.
func (u *User) Config(content string) { u.Write(".config/agent-sandbox/sandbox.conf", content) }

// Environ is a login's clean environment, with the built binaries first in PATH.
func (u *User) Environ() []string {
	return append([]string{
		"HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name, "SHELL=/bin/bash", "TERM=xterm", "LANG=C.UTF-8",
		"XDG_RUNTIME_DIR=" + u.Runtime,
		"PATH=" + filepath.Dir(Bin(u.T, "agent-sandbox")) + ":/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
		"SANDBOX_QUIET=true",
	}, u.Env...)
}

// Command is a command that runs as the user in the project. The name is looked
// up among the built binaries first.
func (u *User) Command(name string, args ...string) *exec.Cmd {
	u.T.Helper()
	path := name
	if !strings.Contains(name, "/") {
		if p := filepath.Join(filepath.Dir(Bin(u.T, "agent-sandbox")), name); fileExists(p) {
			path = p
		} else if p, err := exec.LookPath(name); err == nil {
			path = p
		}
	}
	c := exec.Command(path, args...)
	c.Dir = u.Project
	c.Env = u.Environ()
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}}
	return c
}

func fileExists(p string) bool { _, err := os.Stat(p); return err == nil }

// Result is what a finished command left.
type Result struct {
	Stdout, Stderr string
	Code           int // exit status, -1 where it could not be started, 128+N killed by N
}

// Run runs a command as the user and waits, at most two minutes.
func (u *User) Run(name string, args ...string) Result {
	u.T.Helper()
	return Finish(u.T, u.Command(name, args...))
}

// Finish runs c to its end, at most two minutes: a hang fails the test.
func Finish(t testing.TB, c *exec.Cmd) Result {
	t.Helper()
	var out, errb bytes.Buffer
	c.Stdout, c.Stderr = &out, &errb
	c.WaitDelay = 5 * time.Second
	if err := c.Start(); err != nil {
		t.Fatalf("start %v: %v", c.Args, err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	err := c.Wait()
	if !timer.Stop() {
		t.Fatalf("%v hangs; stdout %q stderr %q", c.Args, out.String(), errb.String())
	}
	r := Result{Stdout: out.String(), Stderr: errb.String()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
		if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
			r.Code = 128 + int(ws.Signal())
		}
	default:
		t.Fatalf("%v: %v", c.Args, err)
	}
	return r
}

// Eventually waits until cond holds, at most thirty seconds: for what another
// process does soon, never for a measurement.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Fatalf("never came: %s", what)
}
