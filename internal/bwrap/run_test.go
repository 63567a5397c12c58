package bwrap_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/sys"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, l := range []*launcher{byHand, real} {
		if l.dir != "" {
			os.RemoveAll(l.dir)
		}
	}
	os.Exit(code)
}

// A launcher is a folder with a program launch, and its helpers, that every user can
// execute.
type launcher struct {
	name string
	make []string // shell, with $DIR the folder
	sync.Once
	dir string
	err error
}

// byHand has no configuration and no records, and can do as on an old kernel; real
// is the suite's own, under another name.
var (
	byHand = &launcher{name: "plan by hand", make: []string{"sh", "-ec", `go build -trimpath -o "$DIR" ./test/launch ./cmd/mount-guard`}}
	real   = &launcher{name: "agent-sandbox", make: []string{"sh", "-ec", `cp -r build/. share "$DIR"; mv "$DIR/agent-sandbox" "$DIR/launch"; chmod -R a+rX "$DIR"`}}
)

func (l *launcher) folder(t testing.TB) string {
	t.Helper()
	l.Do(func() {
		if l.dir, l.err = os.MkdirTemp("/opt", "asb-run."); l.err != nil {
			return
		}
		os.Chmod(l.dir, 0o755)
		c := exec.Command(l.make[0], l.make[1:]...)
		c.Dir, c.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0", "DIR="+l.dir)
		if out, err := c.CombinedOutput(); err != nil {
			l.err = fmt.Errorf("%w: %s: run make build first", err, out)
		}
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	return l.dir
}

// A user with a project, and how to run things in it.
type user struct {
	*harness.User
	launcher *launcher
}

func newUser(t testing.TB, l *launcher) user {
	u := user{harness.NewUser(t), l}
	dir := l.folder(t)
	u.Env = append(u.Env, "GUARD="+dir+"/mount-guard", "PATH="+dir+":/usr/local/bin:/usr/bin:/bin", "SANDBOX_QUIET=true")
	t.Cleanup(func() { u.nothingLeft(t) })
	return u
}

// each runs a test with both launchers.
func each(t *testing.T, f func(t *testing.T, u user)) {
	for _, l := range []*launcher{byHand, real} {
		t.Run(l.name, func(t *testing.T) { f(t, newUser(t, l)) })
	}
}

// kernels are the variables to set before a command for a kernel with Landlock's
// scopes and for one without.
func (u user) kernels() []string {
	if u.launcher == real {
		return []string{""}
	}
	return []string{"", "OLD_KERNEL=1 "}
}

func (u user) environ() []string {
	return append([]string{"HOME=" + u.Home, "USER=" + u.Name, "TERM=xterm", "LANG=C.UTF-8", "PS1=@ "}, u.Env...)
}

func (u user) command(args ...string) *exec.Cmd {
	path := args[0]
	if p, err := exec.LookPath(path); err == nil {
		path = p
	}
	if path == "launch" {
		path = u.launcher.folder(u.T) + "/launch"
	}
	c := exec.Command(path, args[1:]...)
	c.Dir, c.Env = u.Project, u.environ()
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}}
	return c
}

func (u user) run(args ...string) harness.Result {
	u.T.Helper()
	return harness.Finish(u.T, u.command(args...))
}

// pids of the user's processes whose command line holds text.
func (u user) pids(text string) []int {
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		st, err := os.Stat("/proc/" + e.Name())
		if err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != u.UID {
			continue
		}
		if line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline"); bytes.Contains(line, []byte(text)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// describe is the first line of /proc/PID/stat of each process.
func describe(pids []int) string {
	var out []string
	for _, pid := range pids {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		out = append(out, fmt.Sprintf("%.60s", stat))
	}
	return strings.Join(out, "; ")
}

func (u user) pid(text string) int {
	u.T.Helper()
	var pids []int
	harness.Eventually(u.T, "process "+text, func() bool { pids = u.pids(text); return len(pids) > 0 })
	return slices.Min(pids)
}

// alive leaves out what has ended and waits for the host's init to look.
func alive(pid int) bool {
	st, err := sys.ReadProcStat(pid)
	return err == nil && !(st.Zombie && st.PPID == 1)
}

func (u user) nothingLeft(t testing.TB) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		left := u.pids("")
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) || !slices.ContainsFunc(left, alive) {
			for _, pid := range left {
				if !alive(pid) {
					continue
				}
				line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				t.Errorf("process left: %d %q", pid, line)
			}
			return
		}
	}
}

func (u user) signals(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile("testdata/signals.py")
	if err != nil {
		t.Fatal(err)
	}
	u.Write("proj/signals.py", string(data))
	return "signals.py"
}

func TestStatus(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		u.Write("proj/plain", "not executable")
		u.Write("proj/script", "exit 5\n")
		u.Write("proj/lost", "#!/no/such/interpreter\n")
		os.Chmod(u.Project+"/script", 0o755)
		os.Chmod(u.Project+"/lost", 0o755)
		for _, c := range []struct {
			command []string
			status  int
			message string
		}{
			{[]string{"true"}, 0, ""},
			{[]string{"sh", "-c", "exit 7"}, 7, ""},
			{[]string{"sh", "-c", "exit 255"}, 255, ""},
			{[]string{"sh", "-c", "kill -TERM $$"}, 143, ""},
			{[]string{"sh", "-c", "kill -KILL $$"}, 137, ""},
			{[]string{"sh", "-c", "kill -SEGV $$"}, 139, ""},
			{[]string{"./script"}, 5, ""},
			{[]string{"./plain"}, 126, `cannot run "./plain": not executable`},
			{[]string{"/usr"}, 126, `cannot run "/usr": not executable`},
			{[]string{"./lost"}, 126, `cannot run "./lost": its interpreter is not there`},
			{[]string{"no-such-command"}, 127, `cannot run "no-such-command": no such command in the sandbox`},
			{[]string{"./no-such-file"}, 127, `cannot run "./no-such-file": no such command`},
			{[]string{""}, 127, `cannot run "": no such command`},
		} {
			r := u.run(append([]string{"launch"}, c.command...)...)
			if r.Code != c.status || !strings.Contains(r.Stderr, c.message) || c.message == "" && r.Stderr != "" {
				t.Errorf("%q: status %d, want %d; stderr %q, want %q", c.command, r.Code, c.status, r.Stderr, c.message)
			}
		}
	})
}

// What the command gets is the caller's, to the byte, and nothing more.
func TestInherits(t *testing.T) {
	u := newUser(t, byHand)
	t.Run("arguments", func(t *testing.T) {
		args := []string{"launch", "printf", "%s|", "a b", "", "'\"\n", "\xff\x01", "$HOME", "--", "*"}
		if r := u.run(args...); r.Stdout != strings.Join(args[3:], "|")+"|" {
			t.Errorf("got %q", r.Stdout)
		}
	})
	t.Run("many arguments", func(t *testing.T) {
		args := append([]string{"launch", "sh", "-c", "echo $#"}, make([]string, 20000)...)
		if r := u.run(args...); r.Stdout != "19999\n" {
			t.Errorf("got %q %q", r.Stdout, r.Stderr)
		}
	})
	t.Run("descriptors", func(t *testing.T) {
		u.Write("secret", "secret")
		r := u.run("bash", "-c", "exec 3<~/secret 4<~/secret 5<~/secret 6<~/secret 9<~/secret 77<~/secret; launch ls /proc/self/fd; launch sh -c 'ls /proc/$PPID/fd /proc/1/fd 2>&1'")
		fds := strings.Fields(r.Stdout)
		if !slices.Equal(fds[:min(4, len(fds))], []string{"0", "1", "2", "3"}) { // 3 is ls's own
			t.Errorf("descriptors %q %q", r.Stdout, r.Stderr)
		}
		if strings.Contains(r.Stdout, "77") {
			t.Errorf("descriptors of the supervisor: %q", r.Stdout)
		}
	})
	t.Run("what a quick start changes", func(t *testing.T) { // package quickstart
		const show = "cat /proc/self/timerslack_ns; grep THP_enabled /proc/self/status"
		bare := u.run("sh", "-c", show)
		if bare.Code != 0 || bare.Stdout == "" {
			t.Fatal(bare)
		}
		for _, launch := range [][]string{{"--"}, {"--backend", "landlock", "--"}} {
			args := append([]string{harness.Bin(t, "agent-sandbox")}, launch...)
			if r := u.run(append(args, "sh", "-c", show)...); r.Stdout != bare.Stdout {
				t.Errorf("%v: %q, the caller has %q (%s)", launch, r.Stdout, bare.Stdout, r.Stderr)
			}
		}
	})
	t.Run("environment", func(t *testing.T) {
		c := u.command("launch", "sh", "-c", "echo $LD_LIBRARY_PATH:$OTHER; tr '\\0' '\\n' </proc/1/environ")
		c.Env = append(c.Env, "LD_LIBRARY_PATH=/x", "OTHER=y", "OLD_KERNEL=1") // landlock's scopes close /proc/1
		r := harness.Finish(t, c)
		if r.Stdout != "/x:y\nGOMAXPROCS=1\nGOTRACEBACK=none\n" {
			t.Errorf("got %q", r.Stdout)
		}
	})
	t.Run("the loader's variables do not reach bwrap", func(t *testing.T) {
		// A library that is preloaded into bwrap would run outside the sandbox.
		u.Write("proj/lib.c", `#include <fcntl.h>
__attribute__((constructor)) static void f(void) { creat("/tmp/`+u.Name+`.escaped", 0600); }`)
		if out, err := exec.Command("gcc", "-shared", "-fPIC", "-o", u.Project+"/lib.so", u.Project+"/lib.c").CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		c := u.command("launch", "true")
		c.Env = append(c.Env, "LD_PRELOAD="+u.Project+"/lib.so")
		harness.Finish(t, c)
		if err := os.Remove("/tmp/" + u.Name + ".escaped"); err == nil {
			t.Error("the library was loaded outside")
		}
	})
	t.Run("no capabilities", func(t *testing.T) {
		for _, c := range []*exec.Cmd{u.command("launch", "grep", "Cap", "/proc/self/status"), exec.Command(byHand.folder(t)+"/launch", "grep", "Cap", "/proc/self/status")} {
			c.Dir = u.Project
			r := harness.Finish(t, c)
			if strings.Count(r.Stdout, "\t0000000000000000\n") != 5 {
				t.Errorf("got %q %q", r.Stdout, r.Stderr)
			}
		}
	})
	t.Run("limit of processes", func(t *testing.T) {
		c := u.command("launch", "bash", "-c", "ulimit -u; ulimit -Hu")
		c.Env = append(c.Env, "NPROC=77")
		if r := harness.Finish(t, c); r.Stdout != "77\n77\n" {
			t.Errorf("got %q %q", r.Stdout, r.Stderr)
		}
		c = u.command("launch", "no-such-command")
		c.Env = append(c.Env, "NPROC=77")
		if r := harness.Finish(t, c); r.Code != 127 {
			t.Errorf("status %d %q", r.Code, r.Stderr)
		}
	})
}

// Odd states that a caller hands down change nothing and hang nothing.
func TestOddCallers(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		const report = "grep -E 'Sig(Blk|Ign)' /proc/self/status"
		for _, c := range []struct{ name, wrap, blocked, ignored string }{
			{"plain", "exec launch", "0000000000000000", "0000000000000000"},
			{"SIGCHLD ignored", `exec python3 -c 'import os,signal,sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); signal.signal(signal.SIGPIPE, signal.SIG_DFL); signal.signal(signal.SIGXFSZ, signal.SIG_DFL); os.execvp("launch", ["launch"]+sys.argv[1:])'`, "0000000000000000", "0000000000000000"},
			{"all blocked", `exec python3 -c 'import os,signal,sys; signal.pthread_sigmask(signal.SIG_SETMASK, range(1,65)); os.execvp("launch", ["launch"]+sys.argv[1:])'`, "0000000000000000", "0000000000000000"},
			{"nohup", "exec nohup launch", "0000000000000000", "0000000000000001"},
			{"background job of a script", "launch \"$@\" & wait; exit; :", "0000000000000000", "0000000000000006"},
			{"stop signals ignored", "trap '' TSTP TTIN TTOU; exec launch", "0000000000000000", "0000000000380000"},
		} {
			r := u.run("sh", "-c", c.wrap+` "$@"`, "sh", "sh", "-c", report)
			// Of signal 32 and up, which are the C library's own, whoever started the
			// tests may have had some ignored.
			mask := func(name string) (m uint64) {
				_, rest, _ := strings.Cut(r.Stdout, name+":\t")
				hex, _, _ := strings.Cut(rest, "\n")
				m, err := strconv.ParseUint(hex, 16, 64)
				if err != nil {
					t.Errorf("%s: %s: %v", c.name, name, err)
				}
				return m & (1<<31 - 1)
			}
			want := func(hex string) uint64 { n, _ := strconv.ParseUint(hex, 16, 64); return n }
			if mask("SigBlk") != want(c.blocked) || mask("SigIgn") != want(c.ignored) {
				t.Errorf("%s: %q %q", c.name, r.Stdout, r.Stderr)
			}
		}
		t.Run("closed standard descriptors", func(t *testing.T) {
			u.Write("proj/seen", "")
			r := u.run("bash", "-c", "launch sh -c 'ls -l /proc/self/fd >seen' <&- >&- 2>&-; echo $?; cat seen")
			for _, fd := range []string{"0", "2"} {
				if !strings.Contains(r.Stdout, " "+fd+" -> /dev/null\n") {
					t.Errorf("descriptor %s: %q", fd, r.Stdout)
				}
			}
			if !strings.HasPrefix(r.Stdout, "0\n") {
				t.Errorf("got %q %q", r.Stdout, r.Stderr)
			}
		})
		t.Run("small limits", func(t *testing.T) {
			r := u.run("bash", "-c", "ulimit -n 64; ulimit -c 0; ulimit -s 512; launch sh -c 'ulimit -n; ulimit -s'")
			if r.Stdout != "64\n512\n" {
				t.Errorf("got %q %q", r.Stdout, r.Stderr)
			}
		})
		t.Run("the command's closed output is closed", func(t *testing.T) {
			r := u.run("bash", "-c", "{ launch sh -c 'exec >/dev/null; echo >&2 closed; sleep 20' & echo $! >pid; } | cat; kill $(cat pid)")
			if !strings.Contains(r.Stderr, "closed") {
				t.Errorf("got %q", r.Stderr)
			}
		})
	})
}

func TestSignalsToTheLauncher(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		script := u.signals(t)
		for _, group := range []string{"", "own-group"} {
			t.Run("command "+group, func(t *testing.T) {
				term := harness.NewTerm(t, u.command("bash", "--norc", "-i"))
				term.Expect("@ ")
				term.Type("stty -echo; launch python3 " + script + " " + group + "; echo \"status $?\"\n")
				term.Expect("ready")
				launcher := u.pid("launch")
				for _, s := range []struct {
					sig  syscall.Signal
					name string
				}{{syscall.SIGINT, "SIGINT"}, {syscall.SIGTERM, "SIGTERM"}, {syscall.SIGHUP, "SIGHUP"}, {syscall.SIGQUIT, "SIGQUIT"}, {syscall.SIGUSR1, "SIGUSR1"}, {syscall.SIGUSR2, "SIGUSR2"}} {
					for _, to := range []int{launcher, -launcher} {
						syscall.Kill(to, s.sig)
						if got := heard(term); got != s.name {
							t.Errorf("%s to %d: the command got %q", s.name, to, got)
						}
					}
				}
				if group == "" {
					term.Type("\x03")
					if got := heard(term); got != "SIGINT" {
						t.Errorf("Ctrl-C: the command got %q", got)
					}
					term.Type("\x1c")
					if got := heard(term); got != "SIGQUIT" {
						t.Errorf("Ctrl-\\: the command got %q", got)
					}
					term.Resize(33, 99)
					if got := heard(term); got != "SIGWINCH" {
						t.Errorf("resize: the command got %q", got)
					}
					term.Type("size\n")
					term.Expect("size 33 99")
				}
				if group == "" {
					term.Type("end\n")
				} else {
					syscall.Kill(u.pid("python3"), syscall.SIGKILL)
				}
				term.Expect("status")
			})
		}
	})
}

// heard asks the command what it got: after a pause in which a second delivery
// of the same signal would come, until it got anything.
func heard(term *harness.Term) string {
	time.Sleep(60 * time.Millisecond)
	for {
		term.Type("say\n")
		term.Expect("<")
		if got := term.Expect(">"); got != "" {
			return got
		}
	}
}
