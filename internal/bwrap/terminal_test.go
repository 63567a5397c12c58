package bwrap_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"agent-sandbox/test/harness"
)

// shell starts an interactive bash with job control on a terminal, as a user has it.
func (u user) shell(t testing.TB) *harness.Term {
	t.Helper()
	term := harness.NewTerm(t, u.command("bash", "--norc", "-i"))
	term.Expect("@ ")
	term.Type("stty -echo; bind 'set enable-bracketed-paste off'\n")
	term.Expect("@ ")
	return term
}

func TestStopAndContinue(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		script := u.signals(t)
		for _, how := range []struct{ name, keys string }{
			{"Ctrl-Z", "\x1a"},
			{"SIGSTOP to itself", "stop-self\n"},
			{"SIGTSTP to its group", "stop-group\n"},
		} {
			for _, variant := range u.kernels() {
				if variant != "" && how.keys == "stop-group\n" {
					// Without scopes kill(0) stops the launcher as well, and on a busy
					// machine the shell may be told so a second time (docs/security.md).
					continue
				}
				t.Run(how.name+" "+variant, func(t *testing.T) {
					term := u.shell(t)
					term.Type(variant + "launch python3 " + script + "; echo status $?\n")
					term.Expect("ready")
					for range 2 {
						term.Type(how.keys)
						term.Expect("Stopped")
						term.Expect("@ ")
						term.Type("jobs\n")
						term.Expect("Stopped")
						term.Expect("@ ")
						term.Type("fg\n")
						term.Expect("launch python3")
						if how.keys == "\x1a" {
							term.Type("say\n")
						}
						term.Expect("<")
						// The shell continues the group and the supervisor its command: twice
						// is once, to a process that runs.
						got := strings.Replace(term.Expect(">"), " SIGWINCH", "", 1)
						if got != "SIGCONT" && got != "SIGCONT SIGCONT" {
							t.Errorf("after fg the command got %q", got)
						}
					}
					term.Type("end\n")
					term.Expect("@ ")
					term.Type("exit\n")
					term.Wait()
				})
			}
		}
		t.Run("in the background", func(t *testing.T) {
			term := u.shell(t)
			term.Type("launch sh -c 'read x; echo got $x' &\n")
			harness.Eventually(t, "SIGTTIN", func() bool { // the shell tells before its next prompt
				term.Type("\n")
				return strings.Contains(term.Output(), "Stopped")
			})
			term.Type("fg\n")
			term.Expect("launch sh")
			term.Type("word\n")
			term.Expect("got word")
			term.Type("exit\n")
			term.Wait()
		})
	})
}

// An interactive shell inside makes its own process group and takes the terminal.
func TestShellInside(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		for _, variant := range u.kernels() {
			term := u.shell(t)
			own := term.Foreground()
			term.Type(variant + "PS1='in$ ' launch bash --norc -i\n")
			term.Expect("in$ ")
			term.Type("sleep 1000\n")
			harness.Eventually(t, "sleep", func() bool { return len(u.pids("sleep\x001000")) > 0 })
			term.Type("\x03")
			term.Expect("in$ ")
			term.Type("cat\n")
			harness.Eventually(t, "cat", func() bool { return len(u.pids("cat\x00")) > 0 })
			term.Type("\x1a")
			term.Expect("Stopped")
			term.Expect("in$ ")
			term.Type("fg\n")
			term.Expect("cat")
			term.Type("\x04")
			term.Expect("in$ ")

			term.Type("suspend\n")
			term.Expect("Stopped")
			term.Expect("@ ")
			if got := term.Foreground(); got != own {
				t.Errorf("after suspend the terminal belongs to %d, not to the shell %d", got, own)
			}
			term.Type("fg\n")
			term.Expect("bash --norc -i")
			term.Type("\n")
			term.Expect("in$ ")
			term.Resize(30, 70)
			term.Type("stty size\n")
			term.Expect("30 70")
			term.Type("exit 3\n")
			term.Expect("@ ")
			term.Type("echo $?\n")
			term.Expect("3")
			if got := term.Foreground(); got != own {
				t.Errorf("after the end the terminal belongs to %d, not to the shell %d", got, own)
			}
			term.Type("exit\n")
			term.Wait()
		}
	})
}

// Without a shell that repairs it, the terminal's foreground group is the caller's again.
func TestTerminalGivenBack(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		u.Write("proj/caller.py", `
import os, subprocess, sys
r = subprocess.run(["launch", "bash", "--norc", "-i"])
print("own" if os.tcgetpgrp(0) == os.getpgrp() else "lost", r.returncode, flush=True)
`)
		term := harness.NewTerm(t, u.command("/usr/bin/python3", "caller.py"))
		term.Expect("@ ")
		term.Type("exit 4\n")
		term.Expect("own 4")
	})
}

func TestVim(t *testing.T) {
	_, err := exec.LookPath("vim")
	harness.Need(t, err == nil, "no vim")
	u := newUser(t, byHand)
	for _, variant := range u.kernels() {
		term := u.shell(t)
		term.Type(variant + "launch vim -u NONE note\n")
		term.Expect("[New")
		term.Type("\x1a")
		term.Expect("Stopped")
		term.Expect("@ ")
		term.Type("fg\n")
		term.Expect("launch vim")
		term.Type("ihello\x1b:wq\n")
		term.Expect("@ ")
		if data, _ := os.ReadFile(u.Project + "/note"); string(data) != "hello\n" {
			t.Errorf("vim saved %q", data)
		}
		os.Remove(u.Project + "/note")
		term.Type("exit\n")
		term.Wait()
	}
}

func TestHangUp(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		term := u.shell(t)
		term.Type("launch bash -c '(trap \"\" HUP; sleep 1000) & exec sleep 1001'\n")
		harness.Eventually(t, "sleep", func() bool { return len(u.pids("sleep\x001001")) > 0 })
		term.HangUp()
		term.Wait()
		u.nothingLeft(t)
	})
}

// SIGKILL of the launcher ends everything, at once.
func TestLauncherKilled(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		attack := u.Project + "/freeinit"
		if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-static", "-o", attack, "testdata/freeinit.c").CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		for _, c := range []struct{ name, env, command, says string }{
			{"plain", "", "sleep 1000", ""},
			{"session of its own", "", "setsid sleep 1000 & sleep 1001", ""},
			{"pid 1 traced, scopes in force", "", "./freeinit; sleep 1000", "cannot attach: Operation not permitted"},
			{"pid 1 freed of its death signal, no landlock", "OLD_KERNEL=1", "./freeinit; sleep 1000", "freed"},
		} {
			if c.env != "" && u.launcher == real {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				// The launcher leads the terminal's session: its end is a hangup too, which is not what ends the rest here.
				cmd := u.command("launch", "sh", "-c", "trap '' HUP; "+c.command)
				if c.env != "" {
					cmd.Env = append(cmd.Env, c.env)
				}
				term := harness.NewTerm(t, cmd)
				if c.says != "" {
					term.Expect(c.says)
				}
				harness.Eventually(t, "sleep", func() bool { return len(u.pids("sleep\x00100")) > 0 })
				syscall.Kill(cmd.Process.Pid, syscall.SIGKILL)
				term.Wait()
				u.nothingLeft(t)
			})
		}
	})
}

// The command's end is the session's, whatever it leaves running.
func TestLeftBehind(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		for _, c := range []string{"sleep 1000 & exit 6", "setsid sleep 1000 & exit 6", "(trap '' TERM HUP INT; sleep 1000) & exit 6"} {
			if r := u.run("launch", "sh", "-c", c); r.Code != 6 {
				t.Errorf("%q: status %d %q", c, r.Code, r.Stderr)
			}
			if left := u.pids(""); len(left) != 0 {
				t.Errorf("%q: left: %s", c, describe(left))
			}
		}
	})
}

func TestZombies(t *testing.T) {
	u := newUser(t, byHand)
	r := u.run("launch", "bash", "-c", `for i in $(seq 50); do (true & exec true) & done; wait; sleep 0.2; grep -l 'State:.Z' /proc/[0-9]*/status | wc -l`)
	if strings.TrimSpace(r.Stdout) != "0" {
		t.Errorf("zombies: %q %q", r.Stdout, r.Stderr)
	}
}

func TestManyAtOnce(t *testing.T) {
	each(t, func(t *testing.T, u user) {
		before, _ := os.ReadDir("/tmp")
		r := u.run("bash", "-c", `for i in $(seq 200); do launch sh -c 'exit 3' & p+=($!); done; n=0; for p in ${p[@]}; do wait $p; [ $? = 3 ] && n=$((n+1)); done; echo $n`)
		if r.Stdout != "200\n" {
			t.Errorf("of 200 launches ended well: %q; %q", r.Stdout, r.Stderr)
		}
		u.nothingLeft(t)
		after, _ := os.ReadDir("/tmp")
		for _, f := range after {
			if slices.ContainsFunc(before, func(b os.DirEntry) bool { return b.Name() == f.Name() }) {
				continue // of an earlier user with this uid
			}
			if fi, err := f.Info(); err == nil && int(fi.Sys().(*syscall.Stat_t).Uid) == u.UID {
				t.Errorf("left: /tmp/%s (%d files before)", f.Name(), len(before))
			}
		}
		if mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", os.Getpid())); err != nil || strings.Contains(string(mounts), u.Name) {
			t.Errorf("mounts left: %v %s", err, mounts)
		}
	})
}
