package seccomp_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/internal/seccomp"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const eperm, enosys = int(syscall.EPERM), int(syscall.ENOSYS)

// bwrap runs a command as u in a bwrap, under the filter where o is not nil.
func bwrap(t *testing.T, u *harness.User, o *seccomp.Options, command ...string) harness.Result {
	t.Helper()
	args := []string{"--dev-bind", "/", "/", "--proc", "/proc", "--unshare-user", "--unshare-pid", "--unshare-net"}
	c := exec.Command("bwrap")
	if o != nil {
		prog, err := seccomp.Program(*o)
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.CreateTemp(t.TempDir(), "filter")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.Write(prog)
		f.Seek(0, 0)
		c.ExtraFiles = []*os.File{f}
		args = append(args, "--seccomp", "3")
	}
	c.Args = append(append(c.Args, args...), command...)
	c.Dir = u.Home
	c.Env = []string{"HOME=" + u.Home, "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "LANG=C.UTF-8", "USER=" + u.Name}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}}
	return harness.Finish(t, c)
}

// attack compiles testdata/attack.c into the user's home.
func attack(t *testing.T, u *harness.User) string {
	t.Helper()
	bin := filepath.Join(u.Home, "attack")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-static", "-o", bin, "testdata/attack.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return bin
}

// answers runs the attacker and returns the error number of each try.
func answers(t *testing.T, u *harness.User, o *seccomp.Options, bin string) map[string]int {
	t.Helper()
	r := bwrap(t, u, o, "--cap-add", "ALL", bin) // so that only the filter refuses
	if r.Code != 0 {
		t.Fatalf("exit %d: %s", r.Code, r.Stderr)
	}
	got := map[string]int{}
	for line := range strings.Lines(r.Stdout) {
		var name string
		var e int
		if _, err := fmt.Sscanf(line, "%s %d\n", &name, &e); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		got[name] = e
	}
	return got
}

// TestAttacks tries each call in a real bwrap as an ordinary user, and without the
// filter too: the answer there has to be another one, or the try proves nothing.
func TestAttacks(t *testing.T) {
	u := harness.NewUser(t)
	bin := attack(t, u)
	without := answers(t, u, nil, bin)

	want := map[string]int{}
	set := func(e int, names string) {
		for _, n := range strings.Fields(names) {
			want[n] = e
		}
	}
	set(eperm, `io_uring_setup io_uring_enter io_uring_register userfaultfd kexec_load kexec_file_load bpf reboot
		swapon swapoff acct quotactl quotactl_fd kcmp add_key request_key keyctl perf_event_open
		tiocsti tiocsti-high tioclinux tioclinux-high socket-packet socket-packet-high socket-alg socket-vsock
		socketpair-tipc personality-exec personality-page-zero personality-high`)
	set(0, `socket-unix socket-inet socket-inet6 socket-netlink socketpair-unix personality-query personality-same
		personality-aslr unshare-ipc clone-plain prlimit-read prlimit-self`)
	set(int(syscall.ENOTTY), "ioctl-other")
	set(enosys, "newer-than-known")
	if runtime.GOARCH == "amd64" {
		set(eperm, "i386 x32 x32-ioctl")
		set(enosys, "x32-ioctl-without-bit")
	}
	const mounts = `mount umount2 pivot_root open_tree move_mount fsopen fsconfig fsmount fspick mount_setattr
		open_tree_attr setns`
	const namespaces = "unshare-user unshare-mount unshare-mount-more clone-user clone-mount clone-user-high"
	const tracing = "process_vm_readv process_vm_writev ptrace prlimit-other"

	// Without the filter these fail with the same error: the kernel's own check
	// of a capability comes first, or the machine does not have the call.
	same := map[string]bool{"swapoff": true, "acct": true, "kexec_load": true, "kexec_file_load": true, "userfaultfd": true, "bpf": true,
		"newer-than-known": true, "x32-ioctl-without-bit": true}

	for _, c := range []struct {
		name string
		o    seccomp.Options
	}{
		{"bwrap", seccomp.Options{}},
		{"nested", seccomp.Options{Nested: true}},
		{"landlock", seccomp.Options{Landlock: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := answers(t, u, &c.o, bin)
			for _, n := range strings.Fields(mounts + " " + namespaces) {
				want[n] = eperm
				if c.o.Nested {
					want[n] = without[n]
				}
			}
			want["clone3-user"] = enosys
			if c.o.Nested {
				want["clone3-user"] = 0
			}
			for _, n := range strings.Fields(tracing) {
				want[n] = without[n]
				if c.o.Landlock {
					want[n] = eperm
				}
			}
			for n, e := range got {
				w, ok := want[n]
				switch {
				case !ok:
					t.Errorf("%s: nothing expected, got %d", n, e)
				case e != w:
					t.Errorf("%s: %v, want %v", n, syscall.Errno(e), syscall.Errno(w))
				case (w == eperm || w == enosys) && without[n] == w && !same[n]:
					t.Errorf("%s: %v without the filter too", n, syscall.Errno(w))
				}
			}
			for n := range want {
				if _, ok := got[n]; !ok {
					t.Errorf("%s was not tried", n)
				}
			}
		})
	}
}

// TestInstall puts the filter on a thread, as the landlock backend does, and
// executes the attacker from it.
func TestInstall(t *testing.T) {
	u := harness.NewUser(t)
	bin := attack(t, u)
	c := exec.Command("/proc/self/exe")
	c.Env = []string{"SECCOMP_TEST_EXEC=" + bin}
	r := harness.Finish(t, c)
	if r.Code != 0 {
		t.Fatalf("exit %d: %s", r.Code, r.Stderr)
	}
	for _, line := range []string{"io_uring_setup 1\n", "ptrace 1\n", "process_vm_readv 1\n", "mount 1\n", "unshare-user 1\n", "clone3-user 38\n", "socket-unix 0\n"} {
		if !strings.Contains(r.Stdout, line) {
			t.Errorf("no line %q in:\n%s", line, r.Stdout)
		}
	}
}

func init() {
	if bin := os.Getenv("SECCOMP_TEST_EXEC"); bin != "" {
		runtime.LockOSThread()
		if err := seccomp.Install(seccomp.Options{Landlock: true}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintln(os.Stderr, syscall.Exec(bin, []string{bin}, nil))
		os.Exit(1)
	}
}

// TestNestedBwrap: NESTED_SANDBOX lets a sandbox be made inside, its absence does not.
func TestNestedBwrap(t *testing.T) {
	u := harness.NewUser(t)
	inner := []string{"bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--tmpfs", "/tmp", "--unshare-all", "--proc", "/proc", "sh", "-c",
		"touch /usr/x 2>/dev/null || echo nested-$$"}
	if r := bwrap(t, u, &seccomp.Options{Nested: true}, inner...); r.Code != 0 || !strings.HasPrefix(r.Stdout, "nested-") {
		t.Errorf("nested: exit %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	if r := bwrap(t, u, &seccomp.Options{}, inner...); r.Code == 0 {
		t.Errorf("nested sandbox made without NESTED_SANDBOX: %q", r.Stdout)
	}
	// As a rootless build does it: root in a namespace of its own, a new root.
	build := `mkdir -p root/usr root/old && ln -s usr/lib usr/lib64 root && unshare -Urm sh -ec 'mount --bind root root; mount --rbind /usr root/usr; cd root; pivot_root . old; test -d /old/proc; /usr/bin/id -u'`
	if r := bwrap(t, u, &seccomp.Options{Nested: true}, "bash", "-c", build); r.Code != 0 || r.Stdout != "0\n" {
		t.Errorf("rootless: exit %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestTools: what people run in a sandbox works under the filter.
func TestTools(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("hello/go.mod", "module hello\n")
	u.Write("hello/main.go", "package main\n\nfunc main() { println(\"hello\") }\n")
	goroot := strings.TrimSpace(func() string { out, _ := exec.Command("go", "env", "GOROOT").Output(); return string(out) }())
	for name, script := range map[string]string{
		"git":    "git init -q r && cd r && git config user.email a@b && git config user.name n && echo x >f && git add f && git commit -qm x && git gc -q && git log --oneline | wc -l",
		"go":     "cd ~/hello && GOFLAGS=-mod=mod GOTOOLCHAIN=local " + goroot + "/bin/go build -o h . && ./h 2>&1",
		"gcc":    "printf 'int main(void){return 0;}' >a.c && gcc -o a a.c && ./a && echo ok",
		"strace": "strace -f -o log sh -c '/bin/true & wait' && grep -c exited log",
		"python": "/usr/bin/python3 -c 'import subprocess,threading,socket,multiprocessing as m; p=m.Pool(2); print(p.map(abs,[-1])[0]); socket.create_server((\"127.0.0.1\",0)); subprocess.run([\"true\"],check=True)'",
		"aslr":   "setarch -R true && echo ok",
	} {
		t.Run(name, func(t *testing.T) {
			if r := bwrap(t, u, &seccomp.Options{}, "bash", "-c", script); r.Code != 0 || r.Stdout == "" {
				t.Errorf("exit %d, %q, %s", r.Code, r.Stdout, r.Stderr)
			}
		})
	}
}
