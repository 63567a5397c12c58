package backends

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/internal/seccomp"
	"agent-sandbox/internal/sys"
	"agent-sandbox/test/harness"
)

func onEach(t *testing.T, f func(t *testing.T, u *harness.User, backend string)) {
	u := harness.NewUser(t)
	for _, b := range backends {
		t.Run(b, func(t *testing.T) { f(t, u, b) })
	}
}

func TestExitStatus(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		for script, want := range map[string]int{"exit 0": 0, "exit 37": 37, "kill -9 $$": 137, "kill -TERM $$": 143} {
			if r := u.Run("agent-sandbox", "--backend", b, "sh", "-c", script); r.Code != want {
				t.Errorf("%s: status %d, want %d: %s", script, r.Code, want, r.Stderr)
			}
		}
		for command, want := range map[string]int{"no-such-command-xyz": 127, "/etc/passwd": 126} {
			if r := u.Run("agent-sandbox", "--backend", b, command); r.Code != want || !strings.Contains(r.Stderr, "cannot run") {
				t.Errorf("%s: status %d, want %d: %s", command, r.Code, want, r.Stderr)
			}
		}
		r := u.Run("agent-sandbox", "--backend", b, "sh", "-c", `echo "$SANDBOX_ACTIVE $SANDBOX_BACKEND $SANDBOX_PROJECT_DIR ${#SANDBOX_SESSION}"; pwd; printf '[%s]' "$@"`, "sh", "a b", "", "'", "\n$x`")
		if want := fmt.Sprintf("1 %s %s 8\n%s\n[a b][]['][\n$x`]", b, u.Project, u.Project); r.Stdout != want {
			t.Errorf("inside: %q, want %q: %s", r.Stdout, want, r.Stderr)
		}
		if left, _ := filepath.Glob(u.Runtime + "/agent-sandbox/sessions/*"); len(left) > 0 {
			t.Errorf("left in the registry: %q", left)
		}
	})
}

// TestWork: what people do in a session works on each backend.
func TestWork(t *testing.T) {
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		u.Mkdir(u.Home + "/.cache")
		scripts := map[string]string{
			"git":     `git init -q . && git config user.email a@b && git config user.name n && echo x >f && git add f && git commit -qm one && git checkout -qb b && git mv f g && git commit -qm two && git gc -q && git log --oneline | wc -l`,
			"files":   `mkdir -p a/b && echo x >a/b/f && mv a/b/f c && ln c d && ln -s c e && sed -i s/x/y/ c && rm -r a && cat e && truncate -s 0 c && mkfifo p`,
			"devices": `echo x >/dev/null && head -c 4 /dev/urandom >r && head -c 4 /dev/zero >>r && stat -c %s r`,
			"stdout":  `{ echo x >/dev/stdout; echo e >/dev/stderr; } 2>&1 | cat; bash -c 'cat <(echo y)'`,
			"python":  `/usr/bin/python3 -c 'import multiprocessing as m, tempfile, socket; print(m.Pool(2).map(abs,[-1])[0]); tempfile.TemporaryFile(); socket.create_server(("127.0.0.1",0))'`,
			"shell": `cat <<X | sort | head -1
b
X`,
		}
		if err == nil {
			u.Write("proj/go.mod", "module hello\n")
			u.Write("proj/main.go", "package main\n\nfunc main() { println(\"hello\") }\n")
			scripts["go"] = "GOTOOLCHAIN=local GOFLAGS=-mod=mod " + strings.TrimSpace(string(goroot)) + "/bin/go build -o h . && ./h 2>&1"
			u.Config("READONLY_MOUNTS+=(" + strings.TrimSpace(string(goroot)) + ")\n")
		}
		for name, script := range scripts {
			if r := u.Run("agent-sandbox", "--backend", b, "bash", "-ec", script); r.Code != 0 || name != "files" && r.Stdout == "" {
				t.Errorf("%s: status %d, %q, %s", name, r.Code, r.Stdout, r.Stderr)
			}
			exec.Command("sh", "-c", "cd "+u.Project+" && rm -rf [a-h] [pr] .git").Run()
		}
	})
}

// TestTerminal: Ctrl-C reaches the command and nothing else, Ctrl-Z and fg work.
func TestTerminal(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		u.Write("t.sh", `trap 'echo "<int>"; exit 5' INT
trap 'echo "<cont>"' CONT
echo ready; while :; do sleep 0.1; done
`)
		c := u.Command("bash", "--norc", "-i")
		c.Env = append(c.Env, "PS1=@ ", "HOME_ACCESS=read")
		term := harness.NewTerm(t, c)
		term.Expect("@ ")
		term.Type("stty -echo; bind 'set enable-bracketed-paste off'\n")
		term.Expect("@ ")
		term.Type("agent-sandbox --backend " + b + " bash ~/t.sh 2>/dev/null\n")
		term.Expect("ready")
		term.Type("\x1a")
		term.Expect("Stopped")
		term.Expect("@ ")
		term.Type("fg\n")
		term.Expect("<cont>")
		term.Type("\x03")
		term.Expect("<int>")
		term.Expect("@ ")
		term.Type("echo status $?\n")
		term.Expect("status 5")
		term.Type("exit\n")
		term.Wait()
	})
}

func TestSignals(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		c := u.Command("agent-sandbox", "--backend", b, "bash", "-c", `trap 'echo term; exit 9' TERM; touch up; while :; do sleep 0.05; done`)
		var out strings.Builder
		c.Stdout = &out
		os.Remove(u.Project + "/up")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the command runs", func() bool { _, err := os.Stat(u.Project + "/up"); return err == nil })
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
		if c.ProcessState.ExitCode() != 9 || out.String() != "term\n" {
			t.Errorf("status %d, %q", c.ProcessState.ExitCode(), out.String())
		}
	})
}

// TestNotListed: only bwrap sessions are registered.
func TestNotListed(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		os.Remove(u.Project + "/up")
		c := u.Command("agent-sandbox", "--backend", b, "sh", "-c", "touch up; cat")
		in, _ := c.StdinPipe()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, "the command runs", func() bool { _, err := os.Stat(u.Project + "/up"); return err == nil })
		r := u.Run("agent-sandbox", "sessions")
		if listed := strings.Contains(r.Stdout, u.Project); listed != (b == "bwrap") || r.Code != 0 {
			t.Errorf("sessions: %d, %q, %s", r.Code, r.Stdout, r.Stderr)
		}
		in.Close()
		c.Wait()
	})
}

// TestReload: no session of these backends is changed while it runs.
func TestReload(t *testing.T) {
	u := harness.NewUser(t)
	reload := func(want string, args ...string) {
		t.Helper()
		if r := u.Run("agent-sandbox", append([]string{"reload"}, args...)...); r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, want) {
			t.Errorf("reload %q: status %d, %q, %s", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	reload("no live session")
	for _, b := range []string{"firejail", "landlock"} {
		os.Remove(u.Project + "/id")
		c := u.Command("agent-sandbox", "--backend", b, "sh", "-c", "echo $SANDBOX_SESSION >id; cat")
		in, _ := c.StdinPipe()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		var id []byte
		harness.Eventually(t, "the command runs", func() bool { id, _ = os.ReadFile(u.Project + "/id"); return len(id) == 9 })
		for _, args := range [][]string{nil, {string(id[:8])}, {string(id[:3])}, {"--project", u.Project}, {"--dry-run"}} {
			reload("runs on "+b+": not supported, restart", args...)
		}
		in.Close()
		c.Wait()
		reload("no live session", string(id[:8]))
		u.Config("SANDBOX_BACKEND=" + b + "\n")
		reload("is " + b + ": not supported, restart")
		u.Config("")
	}
}

// TestDryRun: a command line, and nothing is run.
func TestDryRun(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		r := u.Run("agent-sandbox", "--backend", b, "--dry-run", "touch", "it's")
		word := map[string]string{"bwrap": "--unshare-pid", "firejail": "--caps.drop=all", "landlock": "--supervise landlock"}[b]
		if r.Code != 0 || !strings.Contains(r.Stdout, word) || !strings.Contains(r.Stdout, `touch 'it'\''s'`) {
			t.Errorf("status %d, %q, %s", r.Code, r.Stdout, r.Stderr)
		}
		if _, err := os.Stat(u.Project + "/it's"); err == nil {
			t.Error("the command was run")
		}
	})
}

// TestPaths: any bytes in a path on landlock and bwrap; firejail takes them or says
// why not, and protects what it took.
func TestPaths(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		for i, name := range []string{"a b", "q'q", "co:lon", "d$x", "t~x", "(p)", "eq=", "\xff\xfe", "é",
			// those that firejail cannot take
			"tab\tx", "new\nline", "st*r", "qu?", "[x]", "back\\slash", `dq"`, "ha#sh", "two  sp", "end ", "com,ma", "se;mi", "am&p", "b!ng", "pe%c", "{c}"} {
			dir := u.Home + "/" + name
			u.Mkdir(dir)
			u.Write(dir+"/secret", "s3cret")
			u.Config("READONLY_MOUNTS+=(\"$HOME/\"" + shellBytes(name) + ")\nBLOCKED_FILES+=(\"$HOME/\"" + shellBytes(name) + "/secret)\n")
			r := u.Run("agent-sandbox", "--backend", b, "bash", "-c", `cd "$1" && { grep -q s3cret secret && echo SEEN; echo x 2>/dev/null >new && echo WRITTEN; echo tried; }`, "bash", dir)
			refused := r.Code == 125 && strings.Contains(r.Stderr, "firejail cannot take the path")
			if strings.Contains(r.Stdout, "SEEN") || strings.Contains(r.Stdout, "WRITTEN") || !strings.Contains(r.Stdout, "tried") && (b != "firejail" || !refused) {
				t.Errorf("%q: status %d, %q, %s", name, r.Code, r.Stdout, r.Stderr)
			}
			if refused && i < 9 {
				t.Errorf("%q is refused: %s", name, r.Stderr)
			}
			os.RemoveAll(dir)
		}
	})
}

// shellBytes writes any bytes as a word of bash.
func shellBytes(s string) string {
	out := "$'"
	for i := range len(s) {
		out += fmt.Sprintf("\\x%02x", s[i])
	}
	return out + "'"
}

// TestNamedBackendIsNoFallback: a backend that was asked for and does not work is an
// error.
func TestNamedBackendIsNoFallback(t *testing.T) {
	u := harness.NewUser(t)
	for _, b := range []string{"bwrap", "firejail"} {
		c := u.Command("agent-sandbox", "--backend", b, "true")
		c.Env = append(c.Env, "PATH="+pathWithout(t, u, "bwrap", "firejail"))
		if r := harness.Finish(t, c); r.Code != 125 || !strings.Contains(r.Stderr, b+" is not installed") {
			t.Errorf("%s: status %d, %s", b, r.Code, r.Stderr)
		}
	}
	r := inject(t, u, "landlock_create_ruleset:error=ENOSYS", "landlock")
	if r.Code != 125 || !strings.Contains(r.Stderr, "not supported by this kernel's landlock") {
		t.Errorf("landlock: status %d, %s", r.Code, r.Stderr)
	}
}

// pathWithout is a PATH that has only what is common, less the named programs.
func pathWithout(t *testing.T, u *harness.User, names ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/opt", "asb-path.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	for _, p := range []string{"bwrap", "firejail", "sh", "bash", "true", "echo", "getent"} {
		if full, err := exec.LookPath(p); err == nil && !contains(names, p) {
			os.Symlink(full, dir+"/"+p)
		}
	}
	return dir
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// inject runs a launch under strace, which answers a system call in the kernel's place.
func inject(t *testing.T, u *harness.User, what, backend string) harness.Result {
	t.Helper()
	c := u.Command("strace", "-f", "-o", "/dev/null", "-e", "inject="+what, harness.Bin(t, "agent-sandbox"), "--backend", backend, "sh", "-c", "echo RAN")
	return harness.Finish(t, c)
}

// A program that an agent could have put in PATH, in a virtual environment's folder
// say, does not run outside for the sandbox.
func TestPlantedBackendIsNotRun(t *testing.T) {
	u := harness.NewUser(t)
	for _, name := range []string{"bwrap", "firejail", "getent"} {
		u.Write("proj/.venv/bin/"+name, "#!/bin/sh\ntouch "+u.Home+"/planted\nexit 1\n")
		os.Chmod(u.Project+"/.venv/bin/"+name, 0o755)
	}
	for _, args := range [][]string{{"true"}, {"--backend", "firejail", "true"}, {"check"}, {"plan"}} {
		c := u.Command("agent-sandbox", args...)
		c.Env = append(c.Env, "PATH="+u.Project+"/.venv/bin:/usr/bin:/bin")
		if r := harness.Finish(t, c); r.Code != 0 {
			t.Errorf("%v: status %d, %s", args, r.Code, r.Stderr)
		}
		if _, err := os.Lstat(u.Home + "/planted"); err == nil {
			t.Fatalf("%v ran what the agent planted", args)
		}
	}
}

// TestProbe: where a restriction is not in force the command does not run.
func TestProbe(t *testing.T) {
	u := harness.NewUser(t)
	for _, call := range []string{"landlock_restrict_self", "seccomp"} {
		if r := inject(t, u, call+":retval=0", "landlock"); r.Code != 125 || strings.Contains(r.Stdout, "RAN") || !strings.Contains(r.Stderr, "not in force") {
			t.Errorf("%s does nothing: status %d, %q, %s", call, r.Code, r.Stdout, r.Stderr)
		}
	}
	// firejail made to pass over options, as it does with lines it does not
	// understand: it reads the first of its arguments before ours.
	u.Write("proj/.git/hooks/pre-commit", "")
	u.Write("proj/.env", "x")
	u.Config("BLOCKED_FILES+=(\"$_PROJECT_DIR/.env\")\n")
	real, err := exec.LookPath("firejail")
	if err != nil {
		t.Fatal(err)
	}
	for _, option := range []string{"read-only", "blacklist", "whitelist"} {
		// Root's file: one of the user's own is not taken.
		bin := pathWithout(t, u, "firejail")
		if err := os.WriteFile(bin+"/firejail", fmt.Appendf(nil, "#!/bin/sh\nexec %s --ignore=%s \"$@\"\n", real, option), 0o755); err != nil {
			t.Fatal(err)
		}
		c := u.Command("agent-sandbox", "--backend", "firejail", "sh", "-c", "echo RAN")
		c.Env = append(c.Env, "PATH="+bin)
		if r := harness.Finish(t, c); r.Code != 125 || strings.Contains(r.Stdout, "RAN") || !strings.Contains(r.Stderr, "does not hold") {
			t.Errorf("without %s: status %d, %q, %s", option, r.Code, r.Stdout, r.Stderr)
		}
	}
}

// The test binary run again with a role forbids new namespaces, as a container does,
// and executes its arguments.
func init() {
	if os.Getenv("BACKENDS_TEST_ROLE") == "container" {
		runtime.LockOSThread()
		err := sys.SetNoNewPrivs()
		if err == nil {
			err = seccomp.Install(seccomp.Options{})
		}
		if err == nil {
			err = syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
}

// TestAuto takes the first backend that works.
func TestAuto(t *testing.T) {
	u := harness.NewUser(t)
	launch := func(want string, c *exec.Cmd) {
		t.Helper()
		r := harness.Finish(t, c)
		if r.Code != 0 || r.Stdout != want+"\n" {
			t.Errorf("status %d, %q, want %s: %s", r.Code, r.Stdout, want, r.Stderr)
		}
		if warned := strings.Contains(r.Stderr, "is used, which protects less"); warned != (want != "bwrap") {
			t.Errorf("%s: warned of less protection: %t: %s", want, warned, r.Stderr)
		}
	}
	bin := harness.Bin(t, "agent-sandbox")
	args := []string{"--backend", "auto", "sh", "-c", "echo $SANDBOX_BACKEND"}
	launch("bwrap", u.Command("agent-sandbox", args...))
	c := u.Command("agent-sandbox", args...)
	c.Env = append(c.Env, "PATH="+pathWithout(t, u, "bwrap"))
	launch("firejail", c)
	c = u.Command("agent-sandbox", args...)
	c.Env = append(c.Env, "PATH="+pathWithout(t, u, "bwrap", "firejail"))
	launch("landlock", c)

	// Both are installed and neither can work: no namespaces, no set-uid.
	c = u.Command("/proc/self/exe", append([]string{bin}, args...)...)
	c.Env = append(c.Env, "BACKENDS_TEST_ROLE=container")
	launch("landlock", c)
	c = u.Command("/proc/self/exe", bin, "check")
	c.Env = append(c.Env, "BACKENDS_TEST_ROLE=container")
	r := harness.Finish(t, c)
	for _, line := range []string{"no\tuser namespaces\t", "no\tfirejail\t", "ok\tlandlock\t"} {
		if !strings.Contains(r.Stdout, line) {
			t.Errorf("check has no %q: %s", line, r.Stdout)
		}
	}
	if r.Code != 0 {
		t.Errorf("check with one backend: status %d", r.Code)
	}

	// Nothing works: no session, and the reason for each.
	c = u.Command("strace", append([]string{"-f", "-o", "/dev/null", "-e", "inject=landlock_create_ruleset:error=ENOSYS", bin}, args...)...)
	c.Env = append(c.Env, "PATH="+pathWithout(t, u, "bwrap", "firejail"))
	if r := harness.Finish(t, c); r.Code != 125 || !strings.Contains(r.Stderr, "bwrap is not installed") || !strings.Contains(r.Stderr, "firejail: not installed") || !strings.Contains(r.Stderr, "landlock: ") {
		t.Errorf("nothing works: status %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestAdminPins: what the administrator asks for and the backend does not have
// refuses the launch. The folder of the admin's file is fixed at build time, so this
// builds a launcher with another one.
func TestAdminPins(t *testing.T) {
	_, err := exec.LookPath("go")
	harness.Need(t, err == nil, "building a launcher needs go")
	u := harness.NewUser(t)
	dir, err := os.MkdirTemp("/opt", "asb-admin.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	if out, err := exec.Command("cp", "-a", filepath.Dir(harness.Bin(t, "agent-sandbox"))+"/.", dir).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v: %s", err, out)
	}
	build := exec.Command("go", "build", "-o", dir+"/agent-sandbox", "-ldflags", "-X agent-sandbox/internal/config.AdminDir="+dir+"/etc", "./cmd/agent-sandbox")
	build.Dir = harness.Root()
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	os.Mkdir(dir+"/etc", 0o755)
	u.Write("proj/.env", "s3cret")
	u.Write(".gitconfig", "[user]\n")
	for admin, refusedOn := range map[string][]string{
		"PRIVATE_TMP=true":                        {"landlock"},
		"PRIVATE_IPC=true":                        {"landlock"},
		"FILTER_PASSWD=true":                      {"landlock"},
		"BLOCKED_FILES+=(" + u.Project + "/.env)": {"landlock"},
		"EXTRA_BLOCKED_PATHS+=(/etc/ssl)":         nil,
		"DENIED_WRITABLE_PATHS=(/opt)":            nil,
		"HOME_SEEDED_FILES+=(.vimrc)":             nil, // there is none
	} {
		os.WriteFile(dir+"/etc/sandbox.conf", []byte(admin+"\n"), 0o644)
		for _, b := range backends {
			r := u.Run(dir+"/agent-sandbox", "--backend", b, "true")
			name, _, _ := strings.Cut(admin, "=")
			want := 0
			if contains(refusedOn, b) {
				want = 125
			}
			if r.Code != want || want != 0 && !strings.Contains(r.Stderr, "what the administrator's configuration asks for: "+strings.TrimSuffix(name, "+")) {
				t.Errorf("%s on %s: status %d, want %d: %s", admin, b, r.Code, want, r.Stderr)
			}
		}
	}
}

// TestRoot: agents run as root in containers. Capabilities are gone all the same.
func TestRoot(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "this is about root")
	home, err := os.MkdirTemp("/root", "asb.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	os.MkdirAll(home+"/proj", 0o755)
	os.MkdirAll(home+"/.ssh", 0o700)
	os.WriteFile(home+"/.ssh/id_rsa", []byte("s3cret"), 0o600)
	for _, b := range []string{"bwrap", "landlock"} { // firejail wants the home of the user database
		c := exec.Command(harness.Bin(t, "agent-sandbox"), "--backend", b, "sh", "-c",
			`grep -h CapEff: /proc/self/status; cat ~/.ssh/id_rsa; touch ok; touch /etc/asb-new; mknod node c 1 3; chown 1:1 ok; mount -t tmpfs x .`)
		c.Dir = home + "/proj"
		c.Env = []string{"HOME=" + home, "PATH=/usr/bin:/bin", "SANDBOX_QUIET=true", "HOME_ACCESS=write"}
		r := harness.Finish(t, c)
		if !strings.Contains(r.Stdout, "CapEff:\t0000000000000000") || strings.Contains(r.Stdout, "s3cret") {
			t.Errorf("%s: %q, %s", b, r.Stdout, r.Stderr)
		}
		for _, p := range []string{"/etc/asb-new", home + "/proj/node"} {
			if _, err := os.Lstat(p); err == nil {
				t.Errorf("%s: %s was made", b, p)
				os.Remove(p)
			}
		}
		st, err := sys.Lstat(home + "/proj/ok")
		if err != nil || st.UID != 0 {
			t.Errorf("%s: file in the project: %v, owner %d", b, err, st.UID)
		}
		os.Remove(home + "/proj/ok")
	}
}

// TestNProc: the limit of processes reaches the command.
func TestNProc(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		u.Config("SANDBOX_NPROC_LIMIT=77\n")
		r := u.Run("agent-sandbox", "--backend", b, "bash", "-c", "ulimit -u")
		if n, _ := strconv.Atoi(strings.TrimSpace(r.Stdout)); n != 77 {
			t.Errorf("status %d, limit %q: %s", r.Code, r.Stdout, r.Stderr)
		}
	})
}

// TestNested: NESTED_SANDBOX lets a sandbox be made inside, on landlock it is said
// that it cannot.
func TestNested(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("NESTED_SANDBOX=true\n")
	inner := []string{"bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-pid", "sh", "-c", "touch /usr/x || echo nested"}
	for _, b := range []string{"bwrap", "firejail"} {
		if r := u.Run("agent-sandbox", append([]string{"--backend", b}, inner...)...); r.Stdout != "nested\n" {
			t.Errorf("%s: status %d, %q, %s", b, r.Code, r.Stdout, r.Stderr)
		}
	}
	if r := u.Run("agent-sandbox", append([]string{"--backend", "landlock"}, inner...)...); r.Code == 0 || !strings.Contains(r.Stderr, "NESTED_SANDBOX: ") {
		t.Errorf("landlock: status %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestHomeAccess: what can be written in each mode, and what of it stays. On landlock
// there is no temporary home, and with HOME_ACCESS=write nothing new directly in it.
func TestHomeAccess(t *testing.T) {
	onEach(t, func(t *testing.T, u *harness.User, b string) {
		for mode, home := range map[string]string{"restricted": "refused", "tmpwrite": "gone", "read": "refused", "write": "stays"} {
			if b == "landlock" && (mode == "tmpwrite" || mode == "write") {
				home = "refused"
			}
			u.Mkdir(u.Home + "/.cache")
			u.Mkdir(u.Home + "/work")
			u.Write("dotfiles/vimrc", "mine")
			os.Symlink("dotfiles/vimrc", u.Home+"/.vimrc")
			c := u.Command("agent-sandbox", "--backend", b, "bash", "-c", `cd
for p in new work/new .cache/new proj/new; do echo x 2>/dev/null >$p && echo "$p written" || echo "$p refused"; done; cat .vimrc`)
			c.Env = append(c.Env, "HOME_ACCESS="+mode)
			r := harness.Finish(t, c)
			state := func(p string) string {
				_, err := os.Stat(u.Home + "/" + p)
				os.Remove(u.Home + "/" + p)
				switch {
				case strings.Contains(r.Stdout, "\n"+p+" refused") || strings.HasPrefix(r.Stdout, p+" refused"):
					return "refused"
				case err != nil:
					return "gone"
				}
				return "stays"
			}
			work := "refused"
			if mode == "write" {
				work = "stays"
			}
			for p, want := range map[string]string{"new": home, "work/new": work, ".cache/new": "stays", "proj/new": "stays"} {
				if got := state(p); got != want {
					t.Errorf("%s: %s %s, want %s: %q %s", mode, p, got, want, r.Stdout, r.Stderr)
				}
			}
			if !strings.HasSuffix(r.Stdout, "mine") {
				t.Errorf("%s: a link to a file of the home: %q %s", mode, r.Stdout, r.Stderr)
			}
		}
	})
}

// TestHardlinkStaysHidden: a masked file that has a second name beside it stays hidden
// under both where landlock grants the folder entry by entry.
func TestHardlinkStaysHidden(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("data/f", "s3cret")
	if err := os.Link(u.Home+"/data/f", u.Home+"/data/g"); err != nil {
		t.Fatal(err)
	}
	u.Write("data/h", "open")
	u.Config("READONLY_MOUNTS+=(~/data)\nBLOCKED_FILES+=(~/data/f)\n")
	r := u.Run("agent-sandbox", "--backend", "landlock", "sh", "-c", "cat ~/data/f ~/data/g; cat ~/data/h")
	if r.Stdout != "open" {
		t.Errorf("%q, %s", r.Stdout, r.Stderr)
	}
}
