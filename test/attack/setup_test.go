package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/test/attack/attacks"
	"agent-sandbox/test/harness"
)

// sh runs a script outside, as the user, and fails the test where it fails.
func sh(t testing.TB, u *harness.User, script string) string {
	t.Helper()
	r := u.Run("bash", "-ec", script)
	if r.Code != 0 {
		t.Fatalf("outside: exit %d: %s\n%s", r.Code, r.Stderr, script)
	}
	return strings.TrimSuffix(r.Stdout, "\n")
}

// launch runs a script inside and returns all of the result.
func launch(t testing.TB, u *harness.User, script string, env ...string) harness.Result {
	t.Helper()
	c := u.Command("agent-sandbox", "bash", "-c", script)
	c.Env = append(c.Env, env...)
	return harness.Finish(t, c)
}

func refused(t testing.TB, r harness.Result, says string) {
	t.Helper()
	if r.Code != 125 || !strings.Contains(r.Stderr, says) {
		t.Errorf("exit %d, want 125: %q, want %q", r.Code, r.Stderr, says)
	}
}

func warned(t testing.TB, r harness.Result, says ...string) {
	t.Helper()
	for _, s := range says {
		if r.Code != 0 || !strings.Contains(r.Stderr, "warning: ") || !strings.Contains(r.Stderr, s) {
			t.Errorf("exit %d, %q: want a warning with %q", r.Code, r.Stderr, s)
		}
	}
}

const gitUser = "git config --global user.name n; git config --global user.email a@b; git config --global init.defaultBranch main; "

// TestWorktree: git commits in a worktree whose common folder lies elsewhere,
// and what git runs outside stays closed there too.
func TestWorktree(t *testing.T) {
	u := harness.NewUser(t)
	main := u.Home + "/repo"
	sh(t, u, gitUser+`rmdir ~/proj; git init -q ~/repo; cd ~/repo; echo x >f; git add f; git commit -qm x; git worktree add -q ~/proj -b work`)
	r := launch(t, u, `echo y >g; git add g; git commit -qm inside && git stash list && git rebase -q main; git log --oneline | wc -l
for f in `+main+`/.git/config `+main+`/.git/hooks/post-commit `+main+`/.git/config.worktree ../proj/.git; do echo evil >>$f; done 2>/dev/null
mv `+main+`/.git/hooks `+main+`/.git/h 2>/dev/null; rm -rf `+main+`/.git/hooks 2>/dev/null; echo evil >`+main+`/f 2>/dev/null; true`)
	if r.Code != 0 || r.Stdout != "2\n" || strings.Contains(r.Stderr, "warning:") {
		t.Errorf("exit %d, %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	want(t, "the host's git", sh(t, u, `cd ~/repo; git log --format=%s work | head -1; git status --porcelain`), "inside")
	want(t, "written", sh(t, u, `grep -rl evil ~/repo/.git/config ~/repo/.git/hooks ~/proj/.git ~/repo/f || true; ls ~/repo/.git | grep -x h || true`), "")
}

// TestForgedGitFile: a `.git` file is the agent's to write and grants nothing.
func TestForgedGitFile(t *testing.T) {
	u := harness.NewUser(t)
	sh(t, u, gitUser+`git init -q ~/other; cd ~/other; echo x >f; git add f; git commit -qm x; git worktree add -q ~/else -b else; mkdir -p ~/plain/worktrees/a ~/plain/objects ~/plain/refs; touch ~/plain/HEAD`)
	for name, dotgit := range map[string]string{
		"another repository":  "gitdir: " + u.Home + "/other/.git",
		"another worktree":    "gitdir: " + u.Home + "/other/.git/worktrees/else",
		"a plain folder":      "gitdir: " + u.Home + "/plain/worktrees/a",
		"with dots":           "gitdir: ../other/.git/worktrees/else",
		"the ssh folder":      "gitdir: " + u.Home + "/.ssh",
		"the root":            "gitdir: /",
		"nothing":             "gitdir: ",
		"too long":            "gitdir: /" + strings.Repeat("x", 10000),
		"of bytes":            "gitdir: \xff\x00/etc",
		"a link made of dots": "gitdir: link/worktrees/else",
	} {
		sh(t, u, "ln -sfn ~/other/.git ~/proj/link; mkdir -p ~/.ssh")
		u.Write(u.Project+"/.git", dotgit+"\n")
		// The forger owns the project, but not the folder it points to; it can
		// make that folder point back only where it may write already.
		got := inside(t, u, `for d in ~/other/.git ~/other/.git/worktrees/else ~/plain ~/.ssh ~/else; do (: >$d/evil) 2>/dev/null && echo $d; done; true`, "HOME_ACCESS=read")
		if got != "" {
			t.Errorf("%s: writable: %s", name, got)
		}
		want(t, name+": on the host", sh(t, u, `find ~ -name evil`), "")
	}
}

// TestLinkedHome: the home is reached through a link, as where /home is a link to
// /var/home. Both spellings work, protections hold through both.
func TestLinkedHome(t *testing.T) {
	u := harness.NewUser(t)
	top := "/srv/" + u.Name
	t.Cleanup(func() { os.RemoveAll(top) })
	u.Mkdir(top + "/var/home")
	physical := top + "/var/home/u"
	u.Mkdir(physical + "/work")
	if err := os.Symlink("var/home", top+"/home"); err != nil {
		t.Fatal(err)
	}
	passwd := u.Home
	u.Write(passwd+"/.ssh/id_rsa", "TOPSECRET")
	u.Home, u.Project = top+"/home/u", physical+"/work"
	for _, f := range []string{"/.ssh/id_rsa", "/.aws/credentials", "/secret", "/work/.env"} {
		u.Write(physical+f, "TOPSECRET")
	}
	u.Write(physical+"/.bashrc", "# rc")
	u.Mkdir(physical + "/.cache")
	u.Config(`BLOCKED_FILES+=("$HOME/secret" "$HOME/work/.env")` + "\nEXTRA_WRITABLE_PATHS+=(" + passwd + ")\nHOME_READONLY+=(.config/x)\n")
	for _, mode := range attacks.Modes {
		got := inside(t, u, fmt.Sprintf(`for h in %s %s; do cat $h/.ssh/id_rsa $h/.aws/credentials $h/secret $h/work/.env %s/.ssh/id_rsa | grep -a TOP
echo evil >>$h/.bashrc; echo evil >$h/.config/agent-sandbox/sandbox.conf; echo ok >$h/work/made; echo ok >$h/.cache/made; done 2>/dev/null; cat $HOME/work/made $HOME/.cache/made`, u.Home, physical, passwd),
			"HOME_ACCESS="+mode, "HOME="+u.Home)
		want(t, mode, got, "ok\nok")
		want(t, mode+" on the host", sh(t, u, "grep -rl evil "+physical+" || true"), "")
	}
}

// TestLinkedFolders: ~/.claude and the configuration folder are links into a folder
// of dotfiles, as many people keep them.
func TestLinkedFolders(t *testing.T) {
	for _, mode := range attacks.Modes {
		t.Run(mode, func(t *testing.T) {
			u := harness.NewUser(t)
			sh(t, u, `mkdir -p ~/dot/claude ~/dot/agent-sandbox ~/dot/ssh ~/.config; ln -s dot/claude ~/.claude; ln -s ~/dot/agent-sandbox ~/.config/agent-sandbox; echo TOPSECRET >~/dot/ssh/id_rsa
echo "HOME_READONLY+=(.profile2)" >~/dot/agent-sandbox/sandbox.conf; echo mine >~/dot/claude/CLAUDE.md; echo x >~/dot/rc; ln -sf dot/rc ~/.bashrc`)
			if mode != "write" {
				sh(t, u, `ln -s dot/ssh ~/.ssh`)
			}
			got := inside(t, u, `echo state >~/.claude/state.json; grep -q mine ~/.claude/CLAUDE.md && grep -q sandbox ~/.claude/CLAUDE.md && echo note
cat ~/.ssh/id_rsa ~/dot/ssh/id_rsa 2>/dev/null | grep -a TOP
for f in ~/.config/agent-sandbox/sandbox.conf ~/dot/agent-sandbox/sandbox.conf ~/dot/agent-sandbox/new ~/.bashrc ~/dot/rc ~/dot/claude/CLAUDE.md; do echo evil >>$f; done 2>/dev/null
rm -f ~/.config/agent-sandbox; mkdir -p ~/.config/agent-sandbox; echo evil >~/.config/agent-sandbox/sandbox.conf
mv ~/.config ~/.c; mkdir -p ~/.config/agent-sandbox; echo evil >~/.config/agent-sandbox/sandbox.conf; true`, "HOME_ACCESS="+mode)
			if mode == "write" {
				got = strings.ReplaceAll(got, "TOPSECRET\n", "") // not masked there: the link ~/.ssh is missing
			}
			if !strings.HasPrefix(got, "note") || strings.Contains(got, "TOPSECRET") {
				t.Errorf("inside: %q", got)
			}
			want(t, "on the host", sh(t, u, `grep -rl evil ~ || true; cat ~/dot/claude/state.json; readlink ~/.config/agent-sandbox | tail -c 14`), "state\nagent-sandbox")
		})
	}
}

// TestLinkGrantsNothing: an entry of the configuration whose way leads through a
// folder that sandboxes write in may be a link of an agent's making. What it leads
// to is not granted.
func TestLinkGrantsNothing(t *testing.T) {
	u := harness.NewUser(t)
	top := "/srv/" + u.Name
	t.Cleanup(func() { os.RemoveAll(top) })
	u.Mkdir(top + "/data")
	u.Write(top+"/data/f", "TOPSECRET")
	u.Mkdir(u.Home + "/other")
	u.Config("EXTRA_WRITABLE_PATHS+=(~/proj/build)\nREADONLY_MOUNTS+=(~/proj/include)\n")
	// A session makes them.
	want(t, "first session", inside(t, u, "ln -s "+top+"/data build; ln -s "+top+"/data include; echo ok"), "ok")
	r := launch(t, u, "echo evil >build/f; cat include/f "+top+"/data/f; true")
	if strings.Contains(r.Stdout, "TOPSECRET") {
		t.Errorf("the link's target can be read: %s", r.Stderr)
	}
	warned(t, r, "build", "include")
	want(t, "on the host", sh(t, u, "cat "+top+"/data/f"), "TOPSECRET")
	// A link that stays in what is writable is no way out.
	sh(t, u, "rm -f ~/proj/build ~/proj/include; mkdir ~/proj/out; ln -s out ~/proj/build")
	want(t, "link in the project", inside(t, u, "echo x >build/f && cat out/f"), "x")
}

// TestLinkOpensNothingReadOnly: in a writable home a link at a missing folder of
// HOME_WRITABLE, or of an agent's, does not make what is read-only there writable.
func TestLinkOpensNothingReadOnly(t *testing.T) {
	for _, name := range []string{".cache", ".claude", ".codex"} {
		u := harness.NewUser(t)
		sh(t, u, "mkdir -p ~/.local/bin")
		r := u.Run("env", "HOME_ACCESS=write", "agent-sandbox", "sh", "-c", "touch ~/.local/bin/x || ln -s ~/.local/bin ~/"+name+" && echo linked")
		if !strings.Contains(r.Stdout, "linked") {
			t.Fatalf("%s: %q %q", name, r.Stdout, r.Stderr)
		}
		if r := u.Run("env", "HOME_ACCESS=write", "agent-sandbox", "sh", "-c", "touch ~/.local/bin/evil && echo wrote"); strings.Contains(r.Stdout, "wrote") {
			t.Errorf("%s: the next session writes where the link leads", name)
		}
	}
}

// TestCarriedStateIsNoSecret: claude's ~/.claude.json is copied into ~/.claude once.
// In a writable home an agent could make it a link to what it may not read.
func TestCarriedStateIsNoSecret(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(".ssh/id_rsa", "TOPSECRET")
	u.Write("bin/claude", "#!/bin/sh\ncat ~/.claude/.claude.json")
	os.Chmod(u.Home+"/bin/claude", 0o755)
	sh(t, u, "mkdir ~/.claude; ln -s .ssh/id_rsa ~/.claude.json")
	r := u.Run("env", "HOME_ACCESS=read", "agent-sandbox", u.Home+"/bin/claude")
	if strings.Contains(r.Stdout, "TOPSECRET") || exists(u.Home+"/.claude/.claude.json") {
		t.Errorf("the secret was carried over: %q", r.Stdout)
	}
}

// TestHardLinkedSecret: a secret with another name is warned of.
func TestHardLinkedSecret(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(u.Project+"/.env", "TOPSECRET")
	sh(t, u, "ln ~/proj/.env ~/proj/copy")
	u.Config("BLOCKED_FILES+=(~/proj/.env)\n")
	warned(t, launch(t, u, "true"), ".env", "hard link")
}

// admin runs a command as the user where the administrator has this configuration:
// in a mount namespace of its own, so that no one else meets it.
func admin(t testing.TB, u *harness.User, conf string, env []string, args ...string) harness.Result {
	t.Helper()
	if !exists("/etc/agent-sandbox") {
		if err := os.Mkdir("/etc/agent-sandbox", 0o755); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
	c := exec.Command("unshare", append([]string{"-m", "bash", "-c", `set -e
mount -t tmpfs -o mode=755 t /etc/agent-sandbox; printf %s "$ADMIN" >/etc/agent-sandbox/sandbox.conf; chmod 644 /etc/agent-sandbox/sandbox.conf
cd "$PROJECT"; uid=$1 gid=$2; shift 2; exec setpriv --reuid "$uid" --regid "$gid" --clear-groups env -u ADMIN -u PROJECT "$@"`, "bash", fmt.Sprint(u.UID), fmt.Sprint(u.GID)}, args...)...)
	c.Env = append(append(u.Environ(), "ADMIN="+conf, "PROJECT="+u.Project), env...)
	return harness.Finish(t, c)
}

// TestAdmin: what the administrator says holds against the user's configuration,
// the environment and the file system.
func TestAdmin(t *testing.T) {
	u := harness.NewUser(t)
	top := "/srv/" + u.Name
	t.Cleanup(func() { os.RemoveAll(top) })
	for _, d := range []string{"data/in", "data2", "free/held", "target"} {
		u.Write(top+"/"+d+"/f", "fixed\n")
	}
	u.Write("secret", "TOPSECRET")
	u.Write("keys/k", "TOPSECRET")
	u.Write("state/f", "fixed\n")
	if err := os.Symlink(top+"/data", top+"/link"); err != nil { // a link to what is denied
		t.Fatal(err)
	}
	if err := os.Symlink(top+"/target", top+"/denied-link"); err != nil { // denied, and a link
		t.Fatal(err)
	}
	conf := fmt.Sprintf(`DENIED_WRITABLE_PATHS=(%[1]s/data %[1]s/free/held %[1]s/denied-link %[2]s/not-there)
BLOCKED_FILES=(%[2]s/secret)
EXTRA_BLOCKED_PATHS=(%[2]s/keys)
BLOCKED_ENV_VARS=(MY_VALUE)
HOME_READONLY=(state)
PRIVATE_TMP=true
NESTED_SANDBOX=false
NETWORK_FILTER_MODE=isolated
ALLOWED_PROJECT_PARENTS=(%[2]s %[1]s)
`, top, u.Home)
	u.Config(fmt.Sprintf(`EXTRA_WRITABLE_PATHS=(%[1]s/data %[1]s/data/in %[1]s/link/in %[1]s/free %[1]s/data2 %[1]s/target)
BLOCKED_FILES=() EXTRA_BLOCKED_PATHS=() BLOCKED_ENV_VARS=() ALLOWED_ENV_VARS=(MY_VALUE) HOME_READONLY=() HOME_WRITABLE+=(state)
DENIED_WRITABLE_PATHS=() PRIVATE_TMP=false NESTED_SANDBOX=true NETWORK_FILTER_MODE=open ALLOWED_PROJECT_PARENTS=(/)
`, top))
	for _, mode := range []string{"read", "write"} {
		r := admin(t, u, conf, []string{"HOME_ACCESS=" + mode, "MY_VALUE=TOPSECRET", "PRIVATE_TMP=false", "NETWORK_FILTER_MODE=open"}, "agent-sandbox", "bash", "-c", fmt.Sprintf(`
cat ~/secret ~/keys/k; echo "$MY_VALUE"; mv ~/keys ~/k; cat ~/k/k
for d in data data/in link link/in free/held target denied-link; do echo evil >>%[1]s/$d/f; echo evil >>%[1]s/$d/new; done; echo evil >>~/state/f; mv ~/state ~/s
mv %[1]s/free/held %[1]s/free/h; mkdir -p %[1]s/free/held; echo evil >%[1]s/free/held/f; mkdir -p ~/not-there; echo evil >~/not-there/f
touch %[1]s/data2/ok %[1]s/free/ok && echo ok; unshare -U true && echo nested; ls /sys/class/net /proc/sys/net/ipv4/conf | grep -E '^(eth|en)' && echo net; ls /tmp`, top))
		want(t, mode+" inside", r.Stdout, "\nok\n")
		if r.Code != 0 {
			t.Errorf("%s: exit %d: %s", mode, r.Code, r.Stderr)
		}
		for _, name := range []string{"EXTRA_WRITABLE_PATHS", "BLOCKED_FILES", "EXTRA_BLOCKED_PATHS", "BLOCKED_ENV_VARS", "PRIVATE_TMP", "NESTED_SANDBOX", "NETWORK_FILTER_MODE", "ALLOWED_PROJECT_PARENTS", "DENIED_WRITABLE_PATHS"} {
			if !strings.Contains(r.Stderr, name) {
				t.Errorf("%s: no warning of %s in: %s", mode, name, r.Stderr)
			}
		}
		want(t, mode+" on the host", sh(t, u, "grep -rl evil "+top+" ~/state ~/not-there || true; ls -d ~/k ~/s "+top+"/free/h || true"), "")
	}
	for _, project := range []string{top + "/data", top + "/data/in", top + "/link/in", top + "/target", "/"} {
		refused(t, admin(t, u, conf, nil, "agent-sandbox", "--project-dir", project, "true"), "project dir")
	}
	refused(t, admin(t, u, "BLOCKED_FILES=(", nil, "agent-sandbox", "true"), "/etc/agent-sandbox/sandbox.conf")
}

// TestSeededFile: what a session changes in ~/.gitconfig is its own, the user's file
// stays. A program that saves by renaming needs the folder to be writable too, which
// a private copy in a home of the host's cannot have.
func TestSeededFile(t *testing.T) {
	u := harness.NewUser(t)
	const text = "[user]\n\tname = n\n"
	for _, mode := range attacks.Modes {
		u.Write(".gitconfig", text)
		how := `printf '\temail = in@side\n' >>~/.gitconfig`
		if mode == "tmpwrite" {
			how = `git config --global user.email in@side`
		}
		got := inside(t, u, how+`; git config --global user.email; git config --global user.name; rm -f ~/.gitconfig 2>/dev/null; echo evil >~/.gitconfig`, "HOME_ACCESS="+mode)
		want(t, mode, got, "in@side\nn")
		if data, _ := os.ReadFile(u.Home + "/.gitconfig"); string(data) != text {
			t.Errorf("%s: the user's file has %q", mode, data)
		}
	}
}

// TestNetwork: the modes of NETWORK_FILTER_MODE with each fallback.
func TestNetwork(t *testing.T) {
	u := harness.NewUser(t)
	const interfaces = `tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort | tr '\n' ' '`
	host := sh(t, u, interfaces)
	harness.Need(t, strings.TrimSpace(host) != "lo", "a network interface other than lo")
	for _, c := range []struct{ mode, fallback, want, says string }{
		{"open", "strict", host, ""}, {"isolated", "strict", "lo ", ""}, {"isolated", "open", "lo ", ""},
		{"filtered", "stricter", "lo ", "isolated"}, {"proxied", "stricter", "lo ", "isolated"},
		{"filtered", "open", host, "open"}, {"proxied", "open", host, "open"},
		{"filtered", "strict", "", ""}, {"proxied", "strict", "", ""},
	} {
		u.Config("NETWORK_FILTER_MODE=" + c.mode + "\nNETWORK_FILTER_FALLBACK=" + c.fallback + "\n")
		r := launch(t, u, interfaces)
		name := c.mode + " " + c.fallback
		if c.want == "" {
			refused(t, r, "NETWORK_FILTER_MODE")
			continue
		}
		want(t, name, r.Stdout, c.want)
		if c.says != "" {
			warned(t, r, c.says)
		}
	}
}

// TestRuntimeDir: the registry is hidden wherever it lies.
func TestRuntimeDir(t *testing.T) {
	u := harness.NewUser(t)
	visible := u.Home + "/run dir"
	u.Mkdir(visible)
	os.Chmod(visible, 0o700)
	inProject := u.Project + "/run"
	u.Mkdir(inProject)
	os.Chmod(inProject, 0o700)
	const script = `for d in "$R/agent-sandbox" ~/.local/state/agent-sandbox /run/user/$UID/agent-sandbox "$S"; do ls -A "$d" | grep .; mkdir -p "$d/sessions" && echo evil >"$d/sessions/deadbeef"; mv "$d" "$d.x"; done 2>/dev/null
mv "$R" "$R.x" 2>/dev/null; mv ~/.local ~/.l 2>/dev/null; grep -l agent-sandbox-session /proc/*/fd/* 2>/dev/null; test -s /etc/resolv.conf && echo resolves; ls -A /run`
	for _, mode := range attacks.Modes {
		for _, dir := range []string{u.Runtime, visible, inProject, ""} {
			env := []string{"HOME_ACCESS=" + mode, "XDG_RUNTIME_DIR=" + dir, "R=" + dir, "S=" + u.Home + "/.state/agent-sandbox", "XDG_STATE_HOME=" + u.Home + "/.state"}
			got := inside(t, u, script, env...)
			if !strings.HasPrefix(got, "resolves\nagent-sandbox") {
				t.Errorf("%s %q: %q", mode, dir, got)
			}
			want(t, mode+" "+dir, sh(t, u, "grep -rl evil ~ /run/user/$UID || true; ls -d ~/.l ~/run*.x ~/proj/run.x 2>/dev/null || true"), "")
		}
	}
}

// TestRoot: agents run as root in containers; a session of root's is no other.
func TestRoot(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "root")
	home, err := os.MkdirTemp("/srv", "root.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(home) })
	os.MkdirAll(home+"/proj", 0o755)
	os.MkdirAll(home+"/.ssh", 0o700)
	os.WriteFile(home+"/.ssh/id_rsa", []byte("TOPSECRET"), 0o600)
	os.WriteFile(home+"/.bashrc", []byte("# rc\n"), 0o644)
	core, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
	for _, mode := range attacks.Modes {
		c := exec.Command(harness.Bin(t, "agent-sandbox"), "bash", "-c", `exec 2>/dev/null
id -u; cat ~/.ssh/id_rsa /proc/1/root$HOME/.ssh/id_rsa
for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger /etc/passwd /usr/bin/env ~/.bashrc /sys/kernel/uevent_helper /proc/irq/default_smp_affinity; do : >>$f && echo "open $f"; done; for f in $(find /proc -maxdepth 6 -not -path "/proc/[0-9]*" -not -path "/proc/*self/*" -not -path "/proc/pressure/*" -type f -perm -200); do : >>$f && echo "open $f"; done
mount -t tmpfs t /mnt && echo mount; umount ~/.ssh && echo umount; mount -o remount,rw /usr && echo remount; mknod /tmp/d b 259 0 && echo mknod; chroot / true && echo chroot
unshare -m true && echo unshare; nsenter -t 1 -m true && echo nsenter; grep CapEff /proc/self/status; cat /dev/mem; head -c1 /proc/kcore; dmesg >/dev/null && echo dmesg; kill -0 1 && :; ls /home; cat /etc/shadow /etc/gshadow /etc/shadow-; echo x >made`)
		c.Dir = home + "/proj"
		c.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "HOME_ACCESS=" + mode, "SANDBOX_QUIET=true", "LANG=C.UTF-8"}
		r := harness.Finish(t, c)
		if r.Code != 0 || r.Stdout != "0\nCapEff:\t0000000000000000\n" {
			t.Errorf("%s: exit %d, %q, %s", mode, r.Code, r.Stdout, r.Stderr)
		}
		if !exists(home + "/proj/made") {
			t.Errorf("%s: the project is not writable", mode)
		}
	}
	if now, _ := os.ReadFile("/proc/sys/kernel/core_pattern"); string(now) != string(core) {
		t.Errorf("core_pattern is %q", now)
	}
}

// TestNested: with NESTED_SANDBOX a process has capabilities in a namespace of its
// own, and still uncovers nothing.
func TestNested(t *testing.T) {
	u := harness.NewUser(t)
	u.Write(u.Project+"/.env", "TOPSECRET")
	u.Write(u.Project+"/closed/f", "fixed\n")
	u.Write(".ssh/id_rsa", "TOPSECRET")
	u.Config("NESTED_SANDBOX=true\nBLOCKED_FILES+=(~/proj/.env)\nREADONLY_MOUNTS+=(~/proj/closed)\n")
	for _, mode := range []string{"read", "write"} {
		got := inside(t, u, `exec 2>/dev/null; cat >/tmp/s <<'E'
P=~/proj; mkdir -p /tmp/m /tmp/u /tmp/w
umount $P/.env; umount -l $P/.env; cat $P/.env; umount -l ~/.ssh; cat ~/.ssh/id_rsa; umount -l $P/closed; echo evil >>$P/closed/f
umount -l $P; cat $P/.env
mount --bind $P /tmp/m && cat /tmp/m/.env; mount --bind ~ /tmp/m && cat /tmp/m/.ssh/id_rsa /tmp/m/proj/.env; mount --rbind $P /tmp/m && cat /tmp/m/.env && umount /tmp/m/.env && cat /tmp/m/.env
mount --move $P/.env /tmp/m; cat $P/.env
mount -o remount,rw,bind $P/closed && echo evil >>$P/closed/f; mount -o remount,rw,bind ~/.bashrc; mount -o remount,rw /usr
mount -t overlay -o lowerdir=$P,upperdir=/tmp/u,workdir=/tmp/w o /tmp/m && cat /tmp/m/.env
mount -t overlay -o lowerdir=$HOME,upperdir=/tmp/u,workdir=/tmp/w o /tmp/m && cat /tmp/m/.ssh/id_rsa
mount --make-rshared /; umount -l /proc; mount -t proc p /proc; cat /proc/1/root$P/.env
pivot_root / $P; umount -l /; cat $P/.env
echo nested
E
unshare -Urmpf bash /tmp/s; unshare -Urm bash /tmp/s`, "HOME_ACCESS="+mode)
		want(t, mode, got, "nested\nnested")
		want(t, mode+" on the host", sh(t, u, "cat ~/proj/closed/f"), "fixed")
	}
}

// TestTmpAndIPCShared: what the user opens is open, and warned of.
func TestTmpAndIPCShared(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("PRIVATE_TMP=false\nPRIVATE_IPC=false\nFILTER_PASSWD=false\n")
	p := "/tmp/" + u.Name
	t.Cleanup(func() { os.Remove(p); os.Remove("/dev/shm/" + u.Name) })
	want(t, "inside", inside(t, u, "echo x >"+p+"; echo x >/dev/shm/"+u.Name+"; cmp /etc/passwd /etc/passwd && grep -c nobody /etc/passwd"), "1")
	for _, f := range []string{p, "/dev/shm/" + u.Name} {
		if !exists(f) {
			t.Errorf("%s did not reach the host", f)
		}
	}
	sock := filepath.Join("/tmp", u.Name+".sock")
	t.Cleanup(func() { os.Remove(sock) })
	c := u.Command("/usr/bin/python3", "-c", "import socket,time; s=socket.socket(socket.AF_UNIX); s.bind('"+sock+"'); s.listen(); time.sleep(60)")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	harness.Eventually(t, "the socket", func() bool { return exists(sock) })
	warned(t, launch(t, u, "true"), "PRIVATE_TMP", sock)
}
