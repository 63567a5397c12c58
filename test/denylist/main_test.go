//go:build vm

package denylist

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	daemonBin = "/usr/sbin/agent-sandbox-execd"
	launchBin = "/usr/bin/agent-sandbox-exec"
	runDir    = "/run/agent-sandbox-exec"
	pinDir    = "/sys/fs/bpf/agent-sandbox-exec"
	baseList  = "/etc/agent-sandbox-exec/denylist"
	groupDir  = "/sys/fs/cgroup/agent-sandbox-exec"
	secret    = "TOPSECRET"
	refusal   = "Operation not permitted"
)

func TestMain(m *testing.M) {
	// The same binary is the attacker: `denylist.test attack NAME ARG...`.
	if len(os.Args) > 2 && os.Args[1] == "attack" {
		os.Exit(attack(os.Args[2], os.Args[3:]))
	}
	if err := install(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if err := theDaemon.start(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	code := m.Run()
	theDaemon.stop(syscall.SIGTERM)
	os.Exit(code)
}

func install() error {
	if err := installDaemon(false); err != nil {
		return err
	}
	if err := installFile("build/agent-sandbox-exec", launchBin); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(baseList), 0o755); err != nil {
		return err
	}
	return os.WriteFile(baseList, []byte("# nothing\n"), 0o644)
}

// installDaemon installs the daemon, or the build of a version after it.
func installDaemon(next bool) error {
	if next {
		return installFile("build/next/agent-sandbox-execd", daemonBin)
	}
	return installFile("build/agent-sandbox-execd", daemonBin)
}

// installFile puts a program in place of one that may run.
func installFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to+".new", data, 0o755)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	return err
}

// daemon is the daemon under test, with what it wrote.
type daemon struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	log bytes.Buffer
}

var theDaemon = &daemon{}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.Write(p)
}

func (d *daemon) logged() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.log.String()
}

// start starts the daemon and waits for READY=1, as systemd does.
func (d *daemon) start(args ...string) error {
	name := filepath.Join("/run", "notify-"+strconv.Itoa(os.Getpid()))
	os.Remove(name)
	sock, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(sock)
	if err := syscall.Bind(sock, &syscall.SockaddrUnix{Name: name}); err != nil {
		return err
	}
	syscall.SetsockoptTimeval(sock, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &syscall.Timeval{Sec: 120})
	d.cmd = exec.Command(daemonBin, args...)
	d.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "NOTIFY_SOCKET=" + name}
	d.cmd.Stderr = d
	if err := d.cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	cmd := d.cmd
	go func() {
		buf := make([]byte, 64)
		n, err := syscall.Read(sock, buf)
		for err == syscall.EINTR { // with a time limit the kernel does not go on by itself
			n, err = syscall.Read(sock, buf)
		}
		if err == nil && string(buf[:n]) != "READY=1" {
			err = fmt.Errorf("daemon said %q", buf[:n])
		}
		done <- err
	}()
	if err := <-done; err != nil {
		cmd.Process.Kill()
		cmd.Wait()
		return fmt.Errorf("daemon did not become ready: %w: %s", err, d.logged())
	}
	return nil
}

func (d *daemon) stop(sig syscall.Signal) {
	d.cmd.Process.Signal(sig)
	d.cmd.Wait()
}

func restart(t testing.TB, sig syscall.Signal, args ...string) {
	t.Helper()
	theDaemon.stop(sig)
	if err := theDaemon.start(args...); err != nil {
		t.Fatal(err)
	}
}

// A user is an ordinary user of the guest.
type user struct {
	t    testing.TB
	name string
	uid  int
	home string
}

var userCount = struct {
	sync.Mutex
	n int
}{n: 2000}

// newUser makes a user with an empty home, for one test. A test that failed while it had
// stopped the daemon does not take the next one with it.
func newUser(t testing.TB) *user {
	t.Helper()
	if theDaemon.cmd.ProcessState != nil {
		if err := theDaemon.start(); err != nil {
			t.Fatal(err)
		}
	}
	userCount.Lock()
	userCount.n++
	uid := userCount.n
	userCount.Unlock()
	u := &user{t, fmt.Sprintf("u%d", uid), uid, fmt.Sprintf("/home/u%d", uid)}
	appendTo(t, "/etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", u.name, uid, uid, u.home))
	u.mkdir(u.home)
	t.Cleanup(func() {
		killAll(uid)
		if t.Failed() {
			t.Logf("daemon's log:\n%s", tail(theDaemon.logged(), 3000))
		}
	})
	return u
}

func appendTo(t testing.TB, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// killAll ends the processes of a test's user.
func killAll(uid int) {
	for range 100 {
		c := exec.Command("/bin/sh", "-c", "kill -KILL -1")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
		c.Run()
		if out, _ := exec.Command("pgrep", "-r", "DRST", "-u", strconv.Itoa(uid)).Output(); len(out) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (u *user) mkdir(path string) {
	u.t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		u.t.Fatal(err)
	}
	for p := path; strings.HasPrefix(p, u.home); p = filepath.Dir(p) {
		os.Lchown(p, u.uid, u.uid)
	}
	os.Lchown(path, u.uid, u.uid)
}

// write writes a file of the user's; a relative path is below the home.
func (u *user) write(path, content string) string {
	u.t.Helper()
	if !filepath.IsAbs(path) {
		path = filepath.Join(u.home, path)
	}
	u.mkdir(filepath.Dir(path))
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		u.t.Fatal(err)
	}
	if err := os.Lchown(path, u.uid, u.uid); err != nil {
		u.t.Fatal(err)
	}
	return path
}

// secret makes a file that holds the secret.
func (u *user) secret(path string) string { return u.write(path, secret+"\n") }

const homeList = ".config/agent-sandbox-exec/denylist" // below the home

func (u *user) listPath() string { return filepath.Join(u.home, homeList) }

// list writes the home list.
func (u *user) list(paths ...string) {
	u.t.Helper()
	text := ""
	for _, p := range paths {
		text += p + "\n"
	}
	u.write(u.listPath(), text)
}

// as is a command with the user's identity, outside the sandbox.
func (u *user) as(name string, args ...string) *exec.Cmd {
	c := exec.Command(name, args...)
	c.Dir = "/"
	c.Env = []string{"HOME=" + u.home, "USER=" + u.name, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.uid), Groups: []uint32{}}}
	return c
}

// in is a command in the sandbox.
func (u *user) in(args ...string) *exec.Cmd { return u.as(launchBin, args...) }

type result struct {
	out, err string
	code     int
}

func (r result) String() string {
	return fmt.Sprintf("status %d, stdout %q, stderr %q", r.code, r.out, r.err)
}

// finish runs a command to its end; a hang of two minutes fails the test.
func finish(t testing.TB, c *exec.Cmd) result {
	t.Helper()
	var out, errb bytes.Buffer
	c.Stdout, c.Stderr = &out, &errb
	c.WaitDelay = time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	err := c.Wait()
	if !timer.Stop() {
		t.Fatalf("%v hangs: %q %q", c.Args, out.String(), errb.String())
	}
	r := result{out.String(), errb.String(), 0}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.code = exit.ExitCode()
	} else if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		t.Fatal(err)
	}
	return r
}

// must runs a command that has to succeed and returns its output.
func must(t testing.TB, c *exec.Cmd) string {
	t.Helper()
	r := finish(t, c)
	if r.code != 0 {
		t.Fatalf("%v: %v", c.Args, r)
	}
	return r.out
}

// root runs a shell command as root, which has to succeed.
func root(t testing.TB, format string, args ...any) string {
	t.Helper()
	return must(t, exec.Command("/bin/sh", "-ec", fmt.Sprintf(format, args...)))
}

// denied fails the test unless a new launch is refused the file by the kernel.
func (u *user) denied(path string) {
	u.t.Helper()
	r := finish(u.t, u.in("cat", path))
	if r.code != 1 || !strings.Contains(r.err, refusal) || strings.Contains(r.out+r.err, secret) {
		u.t.Errorf("cat %s inside: %v", path, r)
	}
}

// readable fails the test unless a new launch can read the file.
func (u *user) readable(path string) {
	u.t.Helper()
	r := finish(u.t, u.in("cat", path))
	want, err := os.ReadFile(path)
	if err != nil || r.code != 0 || r.out != string(want) {
		u.t.Errorf("cat %s inside: %v (%v)", path, r, err)
	}
}

// refused fails the test unless the launch is, with a reason that holds text.
func (u *user) refused(text string, args ...string) {
	u.t.Helper()
	if len(args) == 0 {
		args = []string{"echo", "STARTED"}
	}
	r := finish(u.t, u.in(args...))
	if r.code != 2 || r.out != "" || !strings.Contains(r.err, text) {
		u.t.Errorf("launch: %v, want status 2 and %q", r, text)
	}
}

// A shell is one that runs for a while, inside or outside.
type shell struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

// enter starts a shell in the sandbox, outside one outside.
func (u *user) enter() *shell   { return startShell(u.t, u.in("/bin/sh")) }
func (u *user) outside() *shell { return startShell(u.t, u.as("/bin/sh")) }

const endMark = "--end-of-command--"

func startShell(t testing.TB, c *exec.Cmd) *shell {
	t.Helper()
	s := &shell{t: t, cmd: c, lines: make(chan string, 10000)}
	var err error
	if s.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stdout, c.Stderr = w, w
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		defer close(s.lines)
		data := make([]byte, 0, 4096)
		buf := make([]byte, 4096)
		for {
			n, err := r.Read(buf)
			data = append(data, buf[:n]...)
			for {
				line, rest, ok := bytes.Cut(data, []byte{'\n'})
				if !ok {
					break
				}
				s.lines <- string(line)
				data = rest
			}
			if err != nil {
				r.Close()
				return
			}
		}
	}()
	t.Cleanup(func() { s.in.Close(); c.Process.Kill(); c.Wait() })
	s.sh("true")
	return s
}

// sh has the shell run a command and returns what it writes.
func (s *shell) sh(format string, args ...any) string {
	s.t.Helper()
	fmt.Fprintf(s.in, format+"\necho; echo "+endMark+"\n", args...)
	var out []string
	limit := time.After(2 * time.Minute)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the shell ended: %q", out)
			}
			if line == endMark {
				return strings.TrimSuffix(strings.Join(out, "\n"), "\n")
			}
			out = append(out, line)
		case <-limit:
			s.t.Fatalf("the shell hangs: %q", out)
		}
	}
}

// denied fails the test unless the running shell is refused the file.
func (s *shell) denied(path string) {
	s.t.Helper()
	if out := s.sh("cat '%s'", path); !strings.Contains(out, refusal) || strings.Contains(out, secret) {
		s.t.Errorf("cat %s in a running sandbox: %q", path, out)
	}
}

// noSecret fails the test if the text holds the secret.
func noSecret(t testing.TB, what, text string) {
	t.Helper()
	if strings.Contains(text, secret) {
		t.Errorf("%s: the secret is read: %q", what, text)
	}
}

// eventually waits for what comes soon; thirty seconds are a hang.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if cond() {
			return
		}
	}
	t.Errorf("never came: %s", what)
}

// status is the daemon's --status line of a uid.
func status(t testing.TB, uid int) []string {
	t.Helper()
	for line := range strings.SplitSeq(must(t, exec.Command(daemonBin, "--status")), "\n") {
		f := strings.Split(line, "\t")
		if f[0] == strconv.Itoa(uid) {
			return f
		}
	}
	return nil
}

// self is this test binary, where every user can run it.
func self() string { return "/t/denylist.test" }

func finishDetach() *exec.Cmd { return exec.Command(daemonBin, "--detach") }
