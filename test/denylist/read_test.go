//go:build vm

package denylist

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// attack runs an attack inside; it must not show the secret, and must fail.
func (u *user) attacked(name string, args ...string) {
	u.t.Helper()
	r := finish(u.t, u.in(append([]string{self(), "attack", name}, args...)...))
	if r.code != 1 || strings.Contains(r.out, secret) {
		u.t.Errorf("%s inside: %v", name, r)
	}
}

// works makes sure that the attack would show the secret outside: a test whose
// attack cannot work proves nothing.
func (u *user) works(name string, args ...string) {
	u.t.Helper()
	r := finish(u.t, u.as(self(), append([]string{"attack", name}, args...)...))
	if r.code != 0 || !strings.Contains(r.out, secret) {
		u.t.Errorf("%s outside does not work: %v", name, r)
	}
}

func listed(t testing.TB) (*user, string) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	return u, file
}

func TestHeldPipesChildrenLinksMounts(t *testing.T) {
	u, file := listed(t)
	box := u.enter()
	must(t, u.as("ln", file, filepath.Join(u.home, "hard")))
	must(t, u.as("ln", "-s", file, filepath.Join(u.home, "soft")))
	for _, command := range []string{
		"cat %s | cat", "(sh -c 'cat %s')", "cp %s /tmp/copy-$$; cat /tmp/copy-$$", "cat ~/hard", "cat ~/soft", "cat <%s", "dd if=%s", "cat /proc/self/root%s",
		"unshare -Urm sh -c 'touch ~/m; mount --bind %s ~/m && cat ~/m'", "unshare -Urm sh -c 'mount --bind ~ /mnt && cat /mnt/secret'",
		"unshare -UrmC cat %s", "unshare -Urpf cat %s", "setsid cat %s", "bwrap --dev-bind / / cat %s",
		"python3 -c 'import mmap; f = open(\"%s\"); print(mmap.mmap(f.fileno(), 0, prot=1)[:])'",
	} {
		noSecret(t, command, box.sh(strings.ReplaceAll(command, "%s", file)))
	}
	if out := box.sh("stat -c %%s %s", file); out != "10" {
		t.Errorf("stat: %q", out)
	}
}

func TestHeldOPath(t *testing.T) {
	u, file := listed(t)
	u.works("o-path", file)
	u.attacked("o-path", file)
}

func TestHeldIoUring(t *testing.T) {
	u, file := listed(t)
	u.works("io-uring", file)
	u.attacked("io-uring", file)
}

// open_by_handle_at is root's: root in a sandbox is denied, too.
func TestHeldOpenByHandle(t *testing.T) {
	_, file := listed(t)
	if err := os.WriteFile(baseList, []byte(file+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(baseList, nil, 0o644)
	r := finish(t, exec.Command(self(), "attack", "by-handle", file))
	if !strings.Contains(r.out, secret) {
		t.Errorf("outside: %v", r)
	}
	r = finish(t, exec.Command(launchBin, self(), "attack", "by-handle", file))
	if r.code != 1 || strings.Contains(r.out, secret) {
		t.Errorf("inside: %v", r)
	}
}

func TestHeldExecAndWriteOnly(t *testing.T) {
	u := newUser(t)
	script := u.write("script", "#!/bin/sh\necho "+secret+"\n")
	binary := filepath.Join(u.home, "binary")
	root(t, "cp /bin/echo %s && chown %d %s && chmod 755 %s %s", binary, u.uid, binary, binary, script)
	u.list(script, binary)
	for _, c := range []string{script, binary} {
		r := finish(t, u.in(c, secret))
		if r.code == 0 || strings.Contains(r.out, secret) {
			t.Errorf("exec of %s: %v", c, r)
		}
		u.attacked("write-only", c)
	}
}

func TestHeldOwnOverlay(t *testing.T) {
	u, file := listed(t)
	box := u.enter()
	out := box.sh("unshare -Urm sh -c 'mount -t tmpfs t /mnt; mkdir /mnt/u /mnt/w /mnt/m; mount -t overlay -o lowerdir=%s,upperdir=/mnt/u,workdir=/mnt/w overlay /mnt/m && echo MOUNTED; cat /mnt/m/secret; echo x >>/mnt/m/secret; cat /mnt/m/secret; mv /mnt/m/secret /mnt/m/x; cat /mnt/m/x; cat /mnt/u/*'", filepath.Dir(file))
	noSecret(t, "own overlay", out)
	if !strings.Contains(out, "MOUNTED") {
		t.Errorf("the overlay cannot be mounted: %q", out)
	}
}

// An outside process of the same user that has the secret in its memory and a
// descriptor of it.
func TestOutsideProcessCannotBeAttached(t *testing.T) {
	u, file := listed(t)
	c := u.as(self(), "attack", "hold", file)
	in, _ := c.StdinPipe()
	out, _ := c.StdoutPipe()
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { in.Close(); c.Wait() }()
	var pid, fd, address, size string
	if _, err := fmt.Fscan(out, &pid, &fd, &address, &size); err != nil {
		t.Fatal(err)
	}
	u.works("proc-mem", pid, address, size)
	u.works("vm-readv", pid, address, size)
	u.works("getfd", pid, fd)
	u.attacked("proc-mem", pid, address, size)
	u.attacked("vm-readv", pid, address, size)
	u.attacked("getfd", pid, fd)
	u.attacked("ptrace", pid)
	noSecret(t, "/proc/PID/fd", finish(t, u.in("cat", "/proc/"+pid+"/fd/"+fd)).out)
	// Reading /proc stays real, and so does tracing one's own inside.
	if r := finish(t, u.in("cat", "/proc/"+pid+"/environ")); r.code != 0 || !strings.Contains(r.out, "HOME=") {
		t.Errorf("environ: %v", r)
	}
	if r := finish(t, u.in("strace", "-o", "/dev/null", "sh", "-c", "true & wait; echo traced")); r.out != "traced\n" {
		t.Errorf("strace inside: %v", r)
	}
}

func TestDescriptorIsNotReceived(t *testing.T) {
	u, file := listed(t)
	for i, inside := range []bool{false, true} {
		sock := fmt.Sprintf("/tmp/send-%s-%d", u.name, i)
		c := u.as(self(), "attack", "send", file, sock)
		out, _ := c.StdoutPipe()
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fscanln(out, new(string)); err != nil {
			t.Fatal(err)
		}
		if inside {
			u.attacked("receive", sock)
		} else {
			u.works("receive", sock)
		}
		c.Process.Kill()
		io.Copy(io.Discard, out)
		c.Wait()
	}
}

func TestDescriptorIsNotInherited(t *testing.T) {
	u, file := listed(t)
	for _, redirect := range []string{"<", "3<", "4<>", "200<", "0<>", "5>>"} {
		r := finish(t, u.as("bash", "-c", fmt.Sprintf("exec agent-sandbox-exec sh -c 'echo STARTED' %s %s", redirect, file)))
		if r.code != 2 || r.out != "" || !strings.Contains(r.err, "is a listed file") {
			t.Errorf("%s: %v", redirect, r)
		}
	}
	other := u.write("other", "other\n")
	list := u.listPath()
	r := finish(t, u.as("bash", "-c", "exec agent-sandbox-exec cat <"+other))
	if r.code != 0 || r.out != "other\n" {
		t.Errorf("another file: %v", r)
	}
	if r := finish(t, u.as("bash", "-c", "exec agent-sandbox-exec true 3>>"+list)); r.code != 2 {
		t.Errorf("the home list, open for writing: %v", r)
	}
	// A file that is open and that the user himself may not open.
	shut := u.write("shut", "x\n")
	if r := finish(t, u.as("bash", "-c", "exec 3<"+shut+"; chmod 0 "+shut+"; exec agent-sandbox-exec cat <&3")); r.code != 0 || r.out != "x\n" {
		t.Errorf("an unreadable file that is not listed: %v", r)
	}
}

func TestListReaderCannotBeAttached(t *testing.T) {
	u, file := listed(t)
	for _, inside := range []bool{false, true} {
		args := []string{self(), "attack", "seize-readers"}
		if inside {
			args = append([]string{launchBin}, args...)
		}
		c := u.as(args[0], args[1:]...)
		out := &strings.Builder{}
		c.Stdout = out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		// Each with other groups, so that a new reader takes the identity.
		for i := range 40 {
			l := u.in("true")
			l.SysProcAttr.Credential.Groups = []uint32{uint32(5000 + i)}
			finish(t, l)
		}
		c.Process.Kill()
		c.Wait()
		if out.String() != "" {
			t.Errorf("inside %v: %s", inside, out)
		}
	}
	u.denied(file)
}

// It makes itself undumpable, also where the administrator has programs that change
// their identity dumped: nobody but root can attach to it or read its memory.
func TestListReaderIsUndumpable(t *testing.T) {
	const how = "/proc/sys/fs/suid_dumpable"
	before, err := os.ReadFile(how)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(how, []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(how, before, 0)
	u, file := listed(t)
	restart(t, syscall.SIGTERM) // it keeps so many readers and no more
	u.denied(file)
	// This one waits a while for its user's next launch.
	found := strings.Fields(root(t, "pgrep -u %d -f '^agent-sandbox-execd list-reader'", u.uid))
	if len(found) == 0 {
		t.Fatal("no list reader of the user")
	}
	for _, pid := range found {
		if r := finish(t, u.as(self(), "attack", "ptrace", pid)); r.code == 0 || !strings.Contains(r.err, "operation not permitted") {
			t.Errorf("attaching to the reader %s: %v", pid, r)
		}
		if r := finish(t, u.as("cat", "/proc/"+pid+"/environ")); r.code == 0 || !strings.Contains(r.err, "Permission denied") {
			t.Errorf("reading from the reader %s: %v", pid, r)
		}
	}
	// The attack works on a process of his.
	own := u.as("sleep", "1000")
	if err := own.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { own.Process.Kill(); own.Wait() }()
	if r := finish(t, u.as(self(), "attack", "ptrace", fmt.Sprint(own.Process.Pid))); r.code != 0 {
		t.Errorf("attaching to his own: %v", r)
	}
}
