package backends

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

// A world is a user with a home, and what lies around on a host.
type world struct {
	*harness.User
	other  *harness.User // somebody else, with a folder under /srv that all may read
	srv    string        // of u, and a file system of its own that shares its mounts
	n      string        // part of names that others on this host do not have
	port   int           // that somebody listens on, on the loopback
	device string        // a device that everybody may open
	shm    string        // key of a System V segment of the user
	victim int           // a process of the user
	tty    string        // a terminal of the user
}

const secret = "s3cret-text"

func newWorld(t *testing.T) *world {
	w := &world{User: harness.NewUser(t), other: harness.NewUser(t)}
	w.n = strconv.Itoa(os.Getpid())
	sh := func(script string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	w.srv = "/srv/asb" + w.n
	sh(fmt.Sprintf("mkdir -p %[1]s && mount -t tmpfs -o mode=755 asb %[1]s && mount --make-shared %[1]s && mkdir -m 1777 %[1]s/world && "+
		"mkdir %[1]s/own %[1]s/own/mnt %[1]s/own/private && echo %[2]s | tee %[1]s/public %[1]s/own/f %[1]s/own/.env %[1]s/own/private/f && chown -R %[3]d:%[4]d %[1]s/own",
		w.srv, secret, w.UID, w.GID))
	t.Cleanup(func() { exec.Command("sh", "-c", "umount -R "+w.srv+"; rmdir "+w.srv).Run() })

	w.device = "/dev/asb" + w.n
	sh("mknod -m 666 " + w.device + " c 1 3")
	t.Cleanup(func() { os.Remove(w.device) })

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.port = l.Addr().(*net.TCPAddr).Port
	abstract, err := net.Listen("unix", "@asb"+w.n)
	if err != nil {
		t.Fatal(err)
	}
	bus, err := net.Listen("unix", w.Runtime+"/bus")
	if err != nil {
		t.Fatal(err)
	}
	os.Chown(w.Runtime+"/bus", w.UID, w.GID)
	for _, l := range []net.Listener{l, abstract, bus} {
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				c.Close()
			}
		}()
		t.Cleanup(func() { l.Close() })
	}

	// A process of the user with a terminal, a System V segment and a working
	// directory that a session has no business with.
	victim := w.Command("/usr/bin/python3", "-c", `
import os,pty,sys,ctypes
libc=ctypes.CDLL(None)
id=libc.shmget(0,4096,0o1600)
m,s=pty.openpty()
os.chdir(sys.argv[2])
print(os.ttyname(s),id,flush=True)
sys.stdin.read()
libc.shmctl(id,0,None)`, "victim-"+w.n, w.srv+"/own/private")
	w.reset()
	in, _ := victim.StdinPipe()
	out, _ := victim.StdoutPipe()
	victim.Env = append(victim.Env, "ASB_VICTIM="+secret)
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fscan(out, &w.tty, &w.shm); err != nil {
		t.Fatal(err)
	}
	w.victim = victim.Process.Pid
	t.Cleanup(func() { in.Close(); victim.Wait() })
	return w
}

// reset makes the home as it is before each try.
func (w *world) reset() {
	entries, _ := os.ReadDir(w.Home)
	for _, e := range entries {
		os.RemoveAll(filepath.Join(w.Home, e.Name()))
	}
	for _, f := range []string{".ssh/id_rsa", "notes", "proj/.env", "proj/private/f"} {
		w.Write(f, secret+"\n")
	}
	os.Chmod(w.Home+"/.ssh/id_rsa", 0o600)
	w.Write(".bashrc", "# mine\n")
	w.Write(".gitconfig", "[user]\n")
	w.Write("proj/.git/config", "[core]\n")
	w.Write("proj/.git/hooks/pre-commit", "#!/bin/sh\n")
	w.Write(".claude/CLAUDE.md", "be nice\n")
	os.RemoveAll(filepath.Join("/tmp", "asb"+w.n))
	os.WriteFile("/tmp/asb"+w.n, []byte(secret), 0o644)
	os.WriteFile("/dev/shm/asb"+w.n, []byte(secret), 0o644)
	w.T.Cleanup(func() { os.Remove("/tmp/asb" + w.n); os.Remove("/dev/shm/asb" + w.n) })
}

// An attack is a script for bash that succeeds where the attack does.
type attack struct {
	script string
	conf   string   // lines of the configuration
	modes  []string // HOME_ACCESS; empty: tmpwrite
	noConf bool     // there is no configuration folder
	plain  bool     // it succeeds without a sandbox too where the table says it fails
	outer  string   // the launch, a script in which $LAUNCH starts the session; empty: exec $LAUNCH
	// host is run beside the session and told when the script asks for it by
	// making a file `ready` in the project.
	host func(w *world)
	// after says, in place of the script's status, whether the attack succeeded.
	after func(t *testing.T, w *world) bool
	own   bool // run from a copy of the suite in ~/bin
}

func (w *world) expand(s string) string {
	return strings.NewReplacer("@N@", w.n, "@SRV@", w.srv, "@OTHER@", w.other.Name, "@PORT@", strconv.Itoa(w.port), "@DEVICE@", w.device,
		"@SHM@", w.shm, "@VICTIM@", strconv.Itoa(w.victim), "@TTY@", w.tty, "@RUN@", w.Runtime, "@SECRET@", secret).Replace(s)
}

// inside is the script with its verdict, which is there only if it ran to its end.
func (w *world) inside(a *attack) string {
	return w.expand("python() { /usr/bin/python3 -c \"import ctypes,fcntl,os,socket\n$1\"; }\nattack() {\n" + a.script + "\n}\nif attack >/dev/null 2>&1; then echo OPEN; else echo CLOSED; fi\n")
}

// try runs the attack on a backend in each of its modes; the attack fails where it
// does so in all of them.
func (w *world) try(t *testing.T, backend string, a *attack) (fails bool, stderr string) {
	t.Helper()
	modes := a.modes
	if len(modes) == 0 {
		modes = []string{"tmpwrite"}
	}
	fails = true
	for _, mode := range modes {
		w.reset()
		if !a.noConf {
			w.Config(w.expand(a.conf) + "\n")
		}
		bin := "agent-sandbox"
		if a.own {
			bin = filepath.Join(w.Home, "bin/agent-sandbox")
			w.Mkdir(filepath.Dir(bin))
			if out, err := exec.Command("cp", "-a", filepath.Dir(harness.Bin(t, "agent-sandbox"))+"/.", filepath.Dir(bin)).CombinedOutput(); err != nil {
				t.Fatalf("cp: %v: %s", err, out)
			}
			exec.Command("chown", "-R", fmt.Sprintf("%d:%d", w.UID, w.GID), filepath.Dir(bin)).Run()
		}
		outer := a.outer
		if outer == "" {
			outer = "exec $LAUNCH"
		}
		outer = strings.ReplaceAll(outer, "$LAUNCH", bin+` --backend "$1" -- bash -c "$2"`)
		c := w.Command("bash", "-c", w.expand(outer), "bash", backend, w.inside(a))
		c.Env = append(c.Env, "HOME_ACCESS="+mode, "AWS_SESSION_TOKEN="+secret)
		open, errs := w.run(t, c, a)
		stderr += errs
		if open {
			t.Logf("%s, %s: the attack succeeds", backend, mode)
			fails = false
		}
	}
	return fails, stderr
}

// control runs the attack without a sandbox: it has to succeed, or its failure in
// one says nothing.
func (w *world) control(t *testing.T, a *attack) {
	t.Helper()
	if a.plain || t.Failed() {
		return
	}
	w.reset()
	if !a.noConf {
		w.Config("\n")
	}
	if a.own {
		w.Write("bin/agent-sandbox", "")
	}
	outer := a.outer
	if outer == "" {
		outer = "exec $LAUNCH"
	}
	outer = strings.ReplaceAll(outer, "$LAUNCH", `bash -c "$2"`)
	c := w.Command("bash", "-c", w.expand(outer), "bash", "", w.inside(a))
	c.Env = append(c.Env, "AWS_SESSION_TOKEN="+secret)
	if open, errs := w.run(t, c, a); !open {
		t.Errorf("the attack fails without a sandbox too: %s", errs)
	}
}

func (w *world) run(t *testing.T, c *exec.Cmd, a *attack) (open bool, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	c.WaitDelay = 5 * time.Second
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	told := make(chan struct{})
	go func() {
		defer close(told)
		if a.host == nil {
			return
		}
		for {
			if _, err := os.Stat(w.Project + "/ready"); err == nil {
				a.host(w)
				return
			}
			select {
			case <-ended:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	hang := time.AfterFunc(time.Minute, func() { syscall.Kill(c.Process.Pid, syscall.SIGKILL) })
	err := c.Wait()
	close(ended)
	<-told
	if !hang.Stop() {
		t.Fatalf("hangs: %s%s", out.String(), errs.String())
	}
	open = strings.Contains(out.String(), "OPEN\n")
	_, ready := os.Stat(w.Project + "/ready") // all that one whose launcher is killed leaves
	if !open && !strings.Contains(out.String(), "CLOSED\n") && (a.after == nil || ready != nil) {
		t.Fatalf("the attack did not run: %v\n%s%s", err, out.String(), errs.String())
	}
	if a.after != nil {
		open = a.after(t, w)
	}
	return open, errs.String()
}

// running says whether the user has a process with the text in its command line.
func (w *world) running(text string) bool {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && bytes.HasPrefix(data, []byte(strings.ReplaceAll(text, " ", "\x00"))) {
			return true
		}
	}
	return false
}
