package bwrap_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

// hand makes root's the bwrap that a test put in the project: one of the user's own
// is not taken.
func hand(u user) {
	os.Chmod(u.Project+"/bin/bwrap", 0o755)
	os.Chown(u.Project+"/bin/bwrap", 0, 0)
	os.Chown(u.Project+"/bin", 0, 0)
}

// A session that cannot be set up: 125, what is wrong, how to mend it, and nothing
// of the command.
func TestSetupFails(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		u.Write("proj/bin/bwrap", "#!/bin/sh\n[ \"$1\" = --version ] && echo bubblewrap 0.4.1 && exit\necho 'bwrap: Unknown option --perms' >&2\nexit 1\n")
		hand(u)
		for _, c := range []struct{ name, script, what, mend string }{
			{"missing", `PATH=$(dirname "$(command -v launch)"); launch printf ran`, "bwrap is not installed", "apt install bubblewrap"},
			{"too old", `PATH=$PWD/bin:$PATH; launch printf ran`, "bwrap 0.4.1 is too old", "install a newer"},
			{"no user namespaces", `unshare -Ur sh -c 'echo 0 >/proc/sys/user/max_user_namespaces; launch printf ran'`, "user namespaces are switched off", "sysctl -w user.max_user_namespaces"},
			{"proc partly covered, as in docker", `unshare -Urmpf --mount-proc sh -c 'mount --bind /dev/null /proc/version; launch printf ran'`, "the container around", "systempaths=unconfined"},
		} {
			if strings.Contains(c.script, "unshare") && u.launcher == real {
				continue // there nobody is root, to whom the administrator's folders could belong
			}
			r := u.run("bash", "-c", "export SANDBOX_BACKEND=bwrap; "+c.script)
			if r.Code != 125 || !strings.Contains(r.Stderr, c.what) || !strings.Contains(r.Stderr, "hint: ") || !strings.Contains(r.Stderr, c.mend) || r.Stdout != "" {
				t.Errorf("%s: status %d, %q, %q; want %q, %q", c.name, r.Code, r.Stdout, r.Stderr, c.what, c.mend)
			}
		}
	})
}

// bwrap is tried five times where the host's mounts change under it.
func TestRetries(t *testing.T) {
	u := newUser(t, byHand)
	u.Write("proj/bin/bwrap", `#!/bin/sh
[ "$1" = --version ] && exec /usr/bin/bwrap --version
echo >>tries
[ $(wc -l <tries) -ge $(cat works) ] && exec /usr/bin/bwrap "$@"
echo "bwrap: Can't bind mount /oldroot/x on /newroot/x: Unable to remount destination \"/newroot/x\" with correct flags: Invalid argument" >&2
exit 1
`)
	hand(u)
	if r := u.run("bash", "-c", "echo 5 >works; PATH=$PWD/bin:$PATH launch printf ran"); r.Code != 0 || r.Stdout != "ran" || r.Stderr != "" {
		t.Errorf("status %d, %q, %q", r.Code, r.Stdout, r.Stderr)
	}
	if r := u.run("bash", "-c", "rm tries; echo 99 >works; PATH=$PWD/bin:$PATH launch printf ran; echo $?; wc -l <tries"); r.Stdout != "125\n5\n" || !strings.Contains(r.Stderr, "Invalid argument") {
		t.Errorf("%q, %q", r.Stdout, r.Stderr)
	}
}

// A signal while bwrap sets up ends the launch, and all that was started.
func TestInterruptedSetup(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		u.Write("proj/bin/bwrap", "#!/bin/sh\n[ \"$1\" = --version ] && exec /usr/bin/bwrap --version\necho setting up >&9\nsleep 1000\n")
		hand(u)
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
			c := u.command("launch", "printf", "ran")
			c.Env = append(c.Env, "PATH="+u.Project+"/bin:"+u.launcher.dir+":/usr/bin:/bin")
			term := harness.NewTerm(t, c)
			harness.Eventually(t, "bwrap", func() bool { return len(u.pids("sleep\x001000")) > 0 })
			c.Process.Signal(sig)
			if got := term.Wait(); got != 128+int(sig) || strings.Contains(term.Output(), "ran") {
				t.Errorf("%s: status %d, printed %q", sig, got, term.Output())
			}
			for _, pid := range u.pids("sleep\x001000") {
				syscall.Kill(pid, syscall.SIGKILL) // of the stand-in, whose own child has no death signal
			}
			u.nothingLeft(t)
		}
	})
}

// SIGKILL of the launcher at any moment of its start leaves no process.
func TestKilledAtAnyMoment(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		r := u.run("bash", "-c", `for i in $(seq 0 60); do launch sleep 1000 & sleep 0.00$((i % 10))$((RANDOM % 10)); [ $((i % 3)) = 0 ] && sleep 0.0$((i / 6)); kill -KILL $!; wait $!; done 2>/dev/null; echo done`)
		if r.Stdout != "done\n" {
			t.Errorf("%q %q", r.Stdout, r.Stderr)
		}
		u.nothingLeft(t)
		if u.launcher == real {
			u.run("launch", "true") // sweeps
			for _, dir := range []string{"sessions", "chaperon"} {
				if left, _ := os.ReadDir(u.Runtime + "/agent-sandbox/" + dir); len(left) > 0 {
					t.Errorf("%d of %s left, among them %s", len(left), dir, left[0].Name())
				}
			}
		}
	})
}

// A bwrap that gets no death signal from a launcher that goes before it has told it
// what to do ends by itself: one with privileges, and that of a script.
func TestWaitingBwrapIsNotLeft(t *testing.T) {
	for kind, make := range map[string]string{
		"setuid": "cp /usr/bin/bwrap bin/bwrap && chmod 4755 bin/bwrap",
		"script": "printf '#!/bin/sh\n/usr/bin/bwrap \"$@\"\n' >bin/bwrap && chmod 755 bin/bwrap",
	} {
		t.Run(kind, func(t *testing.T) {
			u := newUser(t, real)
			bin := t.TempDir() // root's, and open to others
			os.Chmod(bin, 0o755)
			os.Chmod(filepath.Dir(bin), 0o755)
			c := exec.Command("sh", "-ec", "mkdir bin; "+make)
			c.Dir = bin
			if out, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			path := "PATH=" + bin + "/bin:" + u.launcher.dir + ":/usr/bin:/bin"
			u.Config("sleep 1\n")
			if r := u.run("bash", "-c", path+" launch true & sleep 0.4; kill -KILL $!; wait $!; echo done"); r.Stdout != "done\n" {
				t.Errorf("killed while the configuration is read: %q %q", r.Stdout, r.Stderr)
			}
			u.nothingLeft(t)
			u.Config("NOSUCH=(\n")
			if r := u.run("bash", "-c", path+" launch true; echo $?"); r.Stdout != "125\n" {
				t.Errorf("a configuration that is wrong: %q %q", r.Stdout, r.Stderr)
			}
			u.nothingLeft(t)
		})
	}
}

// Stopped with its job at any moment of its start, and continued, a launch goes on.
func TestStoppedWhileItStarts(t *testing.T) {
	u := newUser(t, real)
	for i := range 60 {
		c := u.command("launch", "sleep", "30")
		c.SysProcAttr.Setpgid = true
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(3000+200*i) * time.Microsecond)
		syscall.Kill(-c.Process.Pid, syscall.SIGTSTP)
		time.Sleep(60 * time.Millisecond)
		syscall.Kill(-c.Process.Pid, syscall.SIGCONT)
		syscall.Kill(-c.Process.Pid, syscall.SIGTERM)
		hangs := time.AfterFunc(20*time.Second, func() {
			t.Errorf("stopped %d µs after its start it hangs", 3000+200*i)
			c.Process.Kill()
		})
		c.Wait()
		hangs.Stop()
	}
}
