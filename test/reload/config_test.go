package reload

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agent-sandbox/internal/config"
	"agent-sandbox/test/harness"
)

func TestEveryLayerIsLoadedAgain(t *testing.T) {
	f := newFixture(t, "a", "b", "c")
	f.conf(nil)
	b := f.start()
	f.conf([]string{"a"})
	f.Write(".config/agent-sandbox/conf.d/10-b.conf", "EXTRA_WRITABLE_PATHS+=("+f.p("b")+")\n")
	f.Write(".config/agent-sandbox/conf.d/20-other.conf", "[[ $_PROJECT_DIR == */elsewhere ]] || return 0\nEXTRA_WRITABLE_PATHS+=("+f.p("c")+")\n")
	b.want(0, "ADD "+f.p("a"), "ADD "+f.p("b"))
	b.wantWritable(true, f.p("a"), f.p("b"))
	b.wantWritable(false, f.p("c"))
}

func TestAdminRulesHoldInAReload(t *testing.T) {
	f := newFixture(t, "a", "b", "denied/x")
	admin, err := os.MkdirTemp("/srv", "asb-admin.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(admin) })
	os.Chmod(admin, 0o755)
	put := func(s string) {
		if err := os.WriteFile(admin+"/sandbox.conf", []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f.Write(f.p("b/secret"), "s")
	put("DENIED_WRITABLE_PATHS=(" + f.p("denied") + ")\nEXTRA_BLOCKED_PATHS=(" + f.p("b") + ")\n")
	bin := f.suite("-X agent-sandbox/internal/config.AdminDir="+admin, "agent-sandbox", "agent-sandbox-reload")
	f.conf([]string{"a"})
	b := f.startCommand(f.in(bin, "agent-sandbox", "bash", "--norc", "--noprofile"))
	reload := func() reloaded { return parse(t, harness.Finish(t, f.in(bin, "agent-sandbox", "reload"))) }
	b.check(reload(), 0)
	// A path the admin denies, one below it, and a pinned entry taken out.
	f.conf([]string{"a", "denied", "denied/x"}, "EXTRA_BLOCKED_PATHS=()")
	r := reload()
	b.check(r, 0)
	if !strings.Contains(r.Stderr, "warning:") || !strings.Contains(r.Stderr, "DENIED_WRITABLE_PATHS") {
		t.Errorf("the broken rule is not told: %q", r.Stderr)
	}
	b.wantWritable(false, f.p("denied"), f.p("denied/x"))
	if got := b.sh("ls -A " + f.p("b")); got != "" {
		t.Errorf("the pinned mask shows %q", got)
	}
	// The admin denies a path that is writable: revoked.
	put("DENIED_WRITABLE_PATHS=(" + f.p("denied") + " " + f.p("a") + ")\nEXTRA_BLOCKED_PATHS=(" + f.p("b") + ")\n")
	b.check(reload(), 0, "REVOKE "+f.p("a"))
	b.wantWritable(false, f.p("a"))
	// The admin's file does not load: nothing is changed.
	put("DENIED_WRITABLE_PATHS=(\n")
	if r := reload(); r.Code != 1 || len(r.lines) != 0 {
		t.Errorf("broken admin file: %d %q", r.Code, r.Stdout)
	}
	// An entry inside what is writable is read-only inside it.
	f.conf([]string{"a", "denied"})
	put("DENIED_WRITABLE_PATHS=(" + f.p("denied/x") + ")\nEXTRA_BLOCKED_PATHS=(" + f.p("b") + ")\n")
	b.check(reload(), 0, "ADD "+f.p("denied/x"), "ADD "+f.p("a"), "ADD "+f.p("denied"))
	b.wantWritable(true, f.p("denied"))
	b.wantWritable(false, f.p("denied/x"))
}

func TestRecordedSandboxConfIsUsed(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.conf([]string{"b"}) // the default file is not the session's
	alt := f.Home + "/alt.conf"
	f.Write(alt, "READONLY_MOUNTS+=("+f.top+")\n")
	b := f.start("SANDBOX_CONF=" + alt)
	b.want(0)
	f.Write(alt, "READONLY_MOUNTS+=("+f.top+")\nEXTRA_WRITABLE_PATHS+=("+f.p("a")+")\n")
	// Also where the shell of the reload names another.
	c := f.Command("agent-sandbox", "reload")
	c.Env = append(c.Env, "SANDBOX_CONF=/nonexistent")
	b.check(parse(t, harness.Finish(t, c)), 0, "ADD "+f.p("a"))
	b.wantWritable(false, f.p("b"))
	b.wantWritable(true, f.p("a"))
}

func TestSandboxConfHasToBeOnesOwnFile(t *testing.T) {
	f := newFixture(t, "a")
	dir := f.p("conf")
	f.Mkdir(dir)
	alt := dir + "/alt.conf"
	text := "READONLY_MOUNTS+=(" + f.top + ")\n"
	f.Write(alt, text)
	b := f.start("SANDBOX_CONF=" + alt)
	wider := text + "EXTRA_WRITABLE_PATHS+=(" + f.p("a") + ")\n"
	refused := func(what string) {
		t.Helper()
		r := b.reload()
		if r.Code != 1 || len(r.lines) != 0 || !strings.Contains(r.Stderr, "alt.conf") {
			t.Errorf("%s: exit %d %q %q", what, r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(false, f.p("a"))
	}
	other := newFixture(t)
	f.Write(alt, wider)
	os.Chown(alt, other.UID, other.GID)
	refused("another user's")
	os.Chown(alt, 0, 0)
	refused("root's")
	os.Remove(alt)
	refused("gone")
	os.Mkdir(alt, 0o755)
	refused("a folder")
	os.Remove(alt)
	exec.Command("mkfifo", alt).Run()
	os.Chown(alt, f.UID, f.GID)
	refused("a FIFO")
	os.Remove(alt)
	f.Write(alt, wider)
	b.want(0, "ADD "+f.p("a"))
}

func TestRecordedHomeAccessIsUsed(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil, "HOME_ACCESS=tmpwrite")
	b := f.start("HOME_ACCESS=read")
	if b.record().HomeAccess != "read" {
		t.Fatal("not in the record")
	}
	b.want(0)
	c := f.Command("agent-sandbox", "reload")
	c.Env = append(c.Env, "HOME_ACCESS=write")
	b.check(parse(t, harness.Finish(t, c)), 0)
	b.wantWritable(false, f.Home)
}

func TestOtherOverridesComeFromTheShell(t *testing.T) {
	f := newFixture(t)
	f.conf(nil)
	b := f.start("PRIVATE_TMP=false")
	c := f.Command("agent-sandbox", "reload")
	c.Env = append(c.Env, "PRIVATE_TMP=false")
	b.check(parse(t, harness.Finish(t, c)), 0)
	r := b.want(3, "RESTART PRIVATE_TMP")
	if l := r.lines[0]; l.kind != "setting" || !strings.HasPrefix(l.detail, "needs restart") {
		t.Errorf("%+v", l)
	}
}

func TestConfigWarningsArePrinted(t *testing.T) {
	f := newFixture(t)
	f.conf(nil)
	b := f.start()
	f.conf([]string{"not-there"}, "UNKNOWN_THING=1")
	r := b.want(0)
	for _, want := range []string{"warning:", "not-there", "UNKNOWN_THING"} {
		if !strings.Contains(r.Stderr, want) {
			t.Errorf("no %q in %q", want, r.Stderr)
		}
	}
}

func TestBrokenConfigKeepsTheLastGoodSet(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.conf([]string{"a"})
	b := f.start()
	before := b.record().Marshal()
	for name, text := range map[string]string{
		"does not parse":   "EXTRA_WRITABLE_PATHS=(\n",
		"returns an error": "EXTRA_WRITABLE_PATHS=()\nreturn 3\n",
		"wrong value":      "HOME_ACCESS=everything\n",
		"project denied":   "ALLOWED_PROJECT_PARENTS=(/nowhere)\n",
		"empty path":       "EXTRA_WRITABLE_PATHS=('')\n",
		"the whole host":   "EXTRA_WRITABLE_PATHS=(/)\n",
	} {
		f.Config(text)
		r := b.reload()
		if r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "sandbox.conf") && !strings.Contains(r.Stderr, "ALLOWED_PROJECT_PARENTS") && !strings.Contains(r.Stderr, "EXTRA_WRITABLE_PATHS") && !strings.Contains(r.Stderr, "HOME_ACCESS") {
			t.Errorf("%s: exit %d %q %q", name, r.Code, r.Stdout, r.Stderr)
		}
		b.wantWritable(true, f.p("a"))
		if !bytes.Equal(before, b.record().Marshal()) {
			t.Errorf("%s: the record changed", name)
		}
	}
	f.conf([]string{"a", "b"})
	b.want(0, "ADD "+f.p("b"))
}

// launchOnly gives every launch-only setting another value than the default.
var launchOnly = map[string]string{
	"HOME_SEEDED_FILES": "(.netrc-seed)", "SANDBOX_ENV": "(FOO=bar)", "BLOCKED_ENV_VARS": "+=(FOO)", "BLOCKED_ENV_PATTERNS": "+=('FOO*')",
	"ALLOWED_ENV_VARS": "+=(FOO)", "DEVICES": "+=(/dev/full)", "DEVICES_BLACKLIST": "+=(/dev/full)", "SANDBOX_BACKEND": "bwrap",
	"PRIVATE_TMP": "false", "PRIVATE_IPC": "false", "FILTER_PASSWD": "false", "NESTED_SANDBOX": "true", "SANDBOX_NPROC_LIMIT": "100",
	"AUTOMOUNT_ROOTS": "(/nowhere)", "MOUNT_GUARD": "warn", "MOUNT_GUARD_REBIND": "false", "ENABLED_AGENTS": "(codex)",
	"NETWORK_FILTER_MODE": "isolated", "NETWORK_FILTER_FALLBACK": "open", "NETWORK_BLOCKLIST": "+=(example.org)",
	"NETWORK_BLOCKLIST_EXCEPT": "(example.org)", "NETWORK_MAIL_BLOCK": "off", "SLURM_SCOPE": "user", "CHAPERON": "off", "CHAPERON_LOG_LEVEL": "debug",
	"CHAPERON_LOG_RETAIN_DAYS": "9", "SANDBOX_MODULES": "(git)",
}

func TestEachLaunchOnlySettingIsReported(t *testing.T) {
	f := newFixture(t)
	f.Mkdir(f.Home + "/.claude")
	f.Mkdir(f.Home + "/.codex")
	f.Mkdir(f.Home + "/.gemini")
	f.Write(".gitconfig", "[user]\n")
	f.conf(nil)
	b := f.start()
	before := b.record().Marshal()
	for _, v := range config.Vars {
		if v.Reload != config.Launch {
			continue
		}
		value, ok := launchOnly[v.Name]
		if !ok {
			t.Errorf("the test has no other value for %s", v.Name)
			continue
		}
		if !strings.HasPrefix(value, "+") {
			value = "=" + value
		}
		f.conf(nil, v.Name+value)
		r := b.reload()
		l, ok := r.find("RESTART", v.Name)
		if r.Code != 3 || len(r.lines) != 1 || !ok || l.kind != "setting" || !strings.HasPrefix(l.detail, "needs restart") {
			t.Errorf("%s: exit %d %q %q", v.Name, r.Code, r.Stdout, r.Stderr)
		}
	}
	if !bytes.Equal(before, b.record().Marshal()) {
		t.Error("the record changed")
	}
	if strings.Contains(string(b.record().Marshal()), "bar") {
		t.Error("a value of SANDBOX_ENV is in the record")
	}
}

func TestDisabledAgentsFolderIsNotRevoked(t *testing.T) {
	f := newFixture(t)
	f.Mkdir(f.Home + "/.codex")
	f.conf(nil)
	b := f.start()
	b.wantWritable(true, f.Home+"/.codex")
	f.conf(nil, "ENABLED_AGENTS=(claude)")
	b.want(3, "RESTART ENABLED_AGENTS")
	b.wantWritable(true, f.Home+"/.codex")
}

func TestRunningProcessesKeepTheirEnvironment(t *testing.T) {
	f := newFixture(t)
	f.conf(nil, "SANDBOX_ENV+=(FOO=before)")
	b := f.start()
	f.conf(nil, "SANDBOX_ENV+=(FOO=after)")
	b.want(3, "RESTART SANDBOX_ENV")
	if got := b.sh("echo $FOO; bash -c 'echo $FOO'"); got != "before\nbefore" {
		t.Errorf("%q", got)
	}
}

func TestOtherVersionNeedsRestart(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	bin := f.suite("-X agent-sandbox/internal/cli.Version=9.9.9", "agent-sandbox-reload")
	f.conf([]string{"a"})
	for _, args := range [][]string{nil, {"--dry-run"}} {
		r := parse(t, harness.Finish(t, f.in(bin, "agent-sandbox-reload", args...)))
		if want := 3 - 3*len(args); r.Code != want || len(r.lines) != 1 || r.lines[0].word != "RESTART" || r.lines[0].kind != "session" ||
			r.lines[0].subject != b.ID || !strings.Contains(r.lines[0].detail, "9.9.9") {
			t.Errorf("%v: exit %d %q %q", args, r.Code, r.Stdout, r.Stderr)
		}
	}
	b.wantWritable(false, f.p("a"))
}

func TestOtherBackendsAreNotSupported(t *testing.T) {
	for _, backend := range []string{"landlock", "firejail"} {
		t.Run(backend, func(t *testing.T) {
			f := newFixture(t)
			f.conf(nil)
			c := f.Command("agent-sandbox", "--backend", backend, "--", "sh", "-c", "echo up; exec sleep 600")
			out, _ := c.StdoutPipe()
			var errb strings.Builder
			c.Stderr = &errb
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { c.Process.Kill(); c.Wait() }()
			line := make([]byte, 3)
			n, _ := out.Read(line)
			harness.Need(t, string(line[:n]) == "up\n", "the backend "+backend+" does not start here")
			for _, args := range [][]string{{"reload"}, {"reload", "--project", f.Project}, {"reload", "--dry-run"}} {
				r := f.Run("agent-sandbox", args...)
				if r.Code != 1 || r.Stdout != "" || !strings.Contains(r.Stderr, "not supported, restart") {
					t.Errorf("%v: exit %d %q %q", args, r.Code, r.Stdout, r.Stderr)
				}
			}
			// Only bwrap sessions are registered.
			if r := f.Run("agent-sandbox", "sessions"); r.Stdout != "" {
				t.Errorf("registered: %q", r.Stdout)
			}
		})
	}
}

func TestBuilderIsThatOfTheLaunch(t *testing.T) {
	f := newFixture(t, "a", "a/ro", "b")
	f.Write(f.Project+"/.git/config", "[core]\n")
	f.Mkdir(f.Project + "/.git/hooks")
	f.conf(nil, "HOME_ACCESS=read")
	b := f.start()
	f.conf([]string{"a"}, "HOME_ACCESS=read", "READONLY_MOUNTS+=("+f.p("a/ro")+")", "EXTRA_BLOCKED_PATHS+=("+f.p("b")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	b.wantPlan()
	fresh := f.start()
	probe := "for d in " + strings.Join([]string{f.p("a"), f.p("a/ro"), f.p("b"), f.Home, f.Project, f.Project + "/.git", f.Project + "/.git/hooks"}, " ") +
		"; do ls -d $d; ( : > $d/p ) 2>/dev/null && rm $d/p && echo rw; done"
	if x, y := b.sh(probe), fresh.sh(probe); x != y {
		t.Errorf("reloaded %q, launched %q", x, y)
	}
}
