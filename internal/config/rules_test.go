package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What the admin lists in a pinned array comes back when a user's file takes it
// away; defaults may go.
func TestPinnedEntriesStay(t *testing.T) {
	for _, v := range Vars {
		if v.Rule != Pinned {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			entry := map[Base]string{Absolute: "/pinned", Device: "/dev/pinned*", NoPaths: "PINNED"}[v.Paths]
			for name, user := range map[string]string{
				"emptied": v.Name + "=()",
				"unset":   "unset " + v.Name,
				"anew":    v.Name + "=(" + entry + "x)",
				"element": "for i in \"${!" + v.Name + "[@]}\"; do unset '" + v.Name + "['$i']'; done",
				"changed": "for i in \"${!" + v.Name + "[@]}\"; do " + v.Name + "[i]+=x; done",
			} {
				h := newHome(t)
				admin := h.admin(v.Name + "+=(" + entry + ")\n")
				h.write("sandbox.conf", user+"\n")
				r := h.load()
				if !slices.Contains(r.Settings.Strings(v.Name), entry) {
					t.Errorf("%s: %s is gone: %q", name, entry, r.Settings.Strings(v.Name))
				}
				if name == "emptied" && len(r.Settings.Strings(v.Name)) != 1 {
					t.Errorf("defaults stay: %q", r.Settings.Strings(v.Name))
				}
				r.warned(t, h.conf("sandbox.conf"), v.Name, entry, "administrator")
				i := slices.Index(r.Settings.Strings(v.Name), entry)
				if o := r.Settings.Entries(v.Name)[max(i, 0)].Origin; o.File != admin || o.Line != 1 {
					t.Errorf("%s: origin %v", name, o)
				}
			}
		})
	}
}

// An admin who lists a default pins it; `=(…)` pins all that it lists.
func TestAdminPinsDefaults(t *testing.T) {
	h := newHome(t)
	h.admin("BLOCKED_ENV_VARS+=(PGPASSWORD)\nBLOCKED_ENV_PATTERNS=('AWS_*' 'X_*')\n")
	h.write("sandbox.conf", "BLOCKED_ENV_VARS=()\nBLOCKED_ENV_PATTERNS=()\n")
	r := h.load()
	r.list(t, "BLOCKED_ENV_VARS", "PGPASSWORD")
	r.list(t, "BLOCKED_ENV_PATTERNS", "AWS_*", "X_*")
	if got := r.Settings.Pinned("BLOCKED_ENV_VARS"); !slices.Equal(got, []string{"PGPASSWORD"}) {
		t.Errorf("Pinned = %q", got)
	}
}

func TestUsersAddToPinned(t *testing.T) {
	h := newHome(t)
	h.admin("BLOCKED_FILES+=(/a)\n")
	h.write("sandbox.conf", "BLOCKED_FILES+=(/b)\n")
	h.write("conf.d/p.conf", "BLOCKED_FILES+=(/c /a)\n")
	r := h.load()
	r.quiet(t)
	r.list(t, "BLOCKED_FILES", "/a", "/b", "/c")
}

// A harden-only scalar that the admin set, also to its default, is not made
// weaker by a file or the environment, and may be made stricter by both.
func TestHardenOnly(t *testing.T) {
	for _, v := range Vars {
		if v.Rule != HardenOnly {
			continue
		}
		t.Run(v.Name, func(t *testing.T) {
			for i, pin := range v.Values {
				for j, ask := range v.Values {
					for _, layer := range []string{"user", "project", "environment"} {
						if layer == "environment" && !v.Env {
							continue
						}
						h := newHome(t)
						h.admin(v.Name + "=" + pin + "\n")
						switch layer {
						case "user":
							h.write("sandbox.conf", v.Name+"="+ask+"\n")
						case "project":
							h.write("conf.d/p.conf", v.Name+"="+ask+"\n")
						case "environment":
							h.env[v.Name] = ask
						}
						r := h.load()
						if got, want := r.Settings.Scalar(v.Name), v.Values[max(i, j)]; got != want {
							t.Errorf("admin %s, %s %s: %s, want %s", pin, layer, ask, got, want)
						}
						if j < i {
							r.warned(t, v.Name, "weaker")
						} else {
							r.quiet(t)
						}
					}
				}
			}
		})
	}
}

func TestWithoutAdminEverythingCanBeLoosened(t *testing.T) {
	h := newHome(t)
	adminDir(t)
	h.write("sandbox.conf", "PRIVATE_TMP=no\nNESTED_SANDBOX=1\nBLOCKED_ENV_VARS=()\nNETWORK_MAIL_BLOCK=off\n")
	r := h.load()
	r.quiet(t)
	if r.Settings.Bool("PRIVATE_TMP") || !r.Settings.Bool("NESTED_SANDBOX") || len(r.Settings.Strings("BLOCKED_ENV_VARS")) > 0 {
		t.Error("the user's values were not used")
	}
}

func TestAllowedProjectParentsNarrowOnly(t *testing.T) {
	h := newHome(t)
	data := filepath.Join(h.dir, "data")
	writeFile(t, filepath.Join(data, "team/x"), "")
	writeFile(t, filepath.Join(h.dir, "database/x"), "")
	os.Symlink("/opt", filepath.Join(data, "escape"))
	os.Symlink(data, filepath.Join(h.dir, "link"))
	h.admin("ALLOWED_PROJECT_PARENTS=(" + data + ")\n")
	h.write("sandbox.conf", "ALLOWED_PROJECT_PARENTS=("+data+"/team "+data+"base "+data+"/escape / "+h.dir+"/link/team)\n")
	r := h.load()
	r.list(t, "ALLOWED_PROJECT_PARENTS", data+"/team", h.dir+"/link/team")
	for _, e := range []string{data + "base", data + "/escape", `"/"`} {
		r.warned(t, h.conf("sandbox.conf")+":1", "ALLOWED_PROJECT_PARENTS", e, "administrator")
	}
	for _, all := range []string{"()", "(/opt)"} {
		h.write("sandbox.conf", "ALLOWED_PROJECT_PARENTS="+all+"\n")
		r = h.load()
		r.list(t, "ALLOWED_PROJECT_PARENTS", data)
		r.warned(t, "ALLOWED_PROJECT_PARENTS", "administrator")
	}
}

// HOME is the user's to set: where the admin adds to the default, that is the
// home of the user database.
func TestHomeDoesNotWidenTheAdminsParents(t *testing.T) {
	h := newHome(t)
	h.req.PasswdHome = "/home/real"
	h.admin("PRIVATE_TMP=true\n")
	h.load().list(t, "ALLOWED_PROJECT_PARENTS", h.dir)
	h.admin("ALLOWED_PROJECT_PARENTS+=(/data)\n")
	h.write("sandbox.conf", "ALLOWED_PROJECT_PARENTS+=(\"$HOME\")\n")
	r := h.load()
	r.list(t, "ALLOWED_PROJECT_PARENTS", "/home/real", "/data")
	r.warned(t, h.dir, "administrator")
}

func TestAdminHomeReadonlyStaysReadonly(t *testing.T) {
	h := newHome(t)
	writeFile(t, filepath.Join(h.dir, ".tool/x/f"), "")
	os.Symlink(".tool", filepath.Join(h.dir, "alias"))
	h.admin("HOME_READONLY+=(.tool)\n")
	h.write("sandbox.conf", "HOME_READONLY=()\nHOME_WRITABLE=(.tool .tool/x alias alias/new .tools)\nEXTRA_WRITABLE_PATHS=(\"$HOME/.tool/x\" \"$HOME/ok\")\n")
	h.req.AgentsDir = emptyAgents(t)
	r := h.load()
	r.list(t, "HOME_READONLY", ".tool")
	r.list(t, "HOME_WRITABLE", ".tools")
	r.list(t, "EXTRA_WRITABLE_PATHS", h.dir+"/ok")
	for _, e := range []string{`".tool"`, `".tool/x"`, `"alias"`, `"alias/new"`} {
		r.warned(t, h.conf("sandbox.conf")+":2", "HOME_WRITABLE", e, "HOME_READONLY")
	}
}

// Without the admin, the later of two layers that contradict each other counts.
func TestUserMovesDefaults(t *testing.T) {
	h := newHome(t)
	h.req.AgentsDir = emptyAgents(t)
	h.write("sandbox.conf", "HOME_WRITABLE+=(.cargo .both)\nHOME_READONLY+=(.cache .both)\n")
	r := h.load()
	r.list(t, "HOME_WRITABLE", ".cargo")
	if ro := r.Settings.Strings("HOME_READONLY"); slices.Contains(ro, ".cargo") || !slices.Contains(ro, ".cache") || !slices.Contains(ro, ".both") {
		t.Errorf("HOME_READONLY = %q", ro)
	}
	r.warned(t, ".both", "read-only")
}

func TestDeniedWritablePaths(t *testing.T) {
	h := newHome(t)
	vault := filepath.Join(h.dir, "vault")
	writeFile(t, filepath.Join(vault, "deep/f"), "")
	os.Symlink(vault, filepath.Join(h.dir, "way"))
	os.Symlink(filepath.Join(vault, "later"), filepath.Join(h.dir, "dangling"))
	os.Symlink(filepath.Join(h.dir, "vault"), filepath.Join(h.dir, "denied"))
	h.admin("DENIED_WRITABLE_PATHS=(" + h.dir + "/denied)\n") // itself a link
	h.write("sandbox.conf", `
EXTRA_WRITABLE_PATHS=("$HOME/vault" "$HOME/vault/deep" "$HOME/way/deep" "$HOME/way/new/er" "$HOME/dangling" "$HOME/denied" "$HOME/vaulted" "$HOME/other")
HOME_WRITABLE=(vault/deep way dangling ok)
`)
	h.req.AgentsDir = emptyAgents(t)
	r := h.load()
	r.list(t, "EXTRA_WRITABLE_PATHS", h.dir+"/vaulted", h.dir+"/other")
	r.list(t, "HOME_WRITABLE", "ok")
	r.warned(t, h.conf("sandbox.conf")+":2", "EXTRA_WRITABLE_PATHS", h.dir+"/way/new/er", "DENIED_WRITABLE_PATHS")
	r.warned(t, h.conf("sandbox.conf")+":3", "HOME_WRITABLE", "dangling")

	// The project: refused where it lies below, kept where it only contains one.
	for dir, ok := range map[string]bool{vault: false, vault + "/deep": false, h.dir + "/proj": true} {
		h.req.ProjectDir = dir
		if err := h.load().CheckProject(); (err == nil) != ok {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// An agent's own folder is no exception.
	h.req.AgentsDir = "../../share/agents"
	h.admin("DENIED_WRITABLE_PATHS=(\"$HOME/.codex\")\n")
	r = h.load()
	if slices.Contains(r.Settings.Strings("HOME_WRITABLE"), ".codex") {
		t.Error("the agent's folder stays writable")
	}
}

func TestDeniedWritablePathsIsTheAdmins(t *testing.T) {
	for _, user := range []string{"DENIED_WRITABLE_PATHS=()", "DENIED_WRITABLE_PATHS+=(/y)", "unset DENIED_WRITABLE_PATHS"} {
		h := newHome(t)
		h.admin("DENIED_WRITABLE_PATHS=(/x)\n")
		h.write("sandbox.conf", ":\n"+user+"\n")
		r := h.load()
		r.list(t, "DENIED_WRITABLE_PATHS", "/x")
		r.warned(t, h.conf("sandbox.conf"), "DENIED_WRITABLE_PATHS", "only the administrator")
	}
	h := newHome(t)
	adminDir(t)
	h.write("sandbox.conf", "DENIED_WRITABLE_PATHS+=(/y)\n")
	r := h.load()
	r.list(t, "DENIED_WRITABLE_PATHS")
	r.warned(t, "DENIED_WRITABLE_PATHS", "only the administrator")
}

func TestNetworkExceptions(t *testing.T) {
	h := newHome(t)
	h.admin("NETWORK_BLOCKLIST+=(evil.com '*.bad.org' 2222)\nNETWORK_BLOCKLIST_EXCEPT+=(fine.evil.com)\n")
	h.write("sandbox.conf", "NETWORK_BLOCKLIST_EXCEPT+=(evil.com www.EVIL.com a.bad.org org '*' 2222 pastebin.com notevil.com)\n")
	r := h.load()
	r.list(t, "NETWORK_BLOCKLIST_EXCEPT", "fine.evil.com", "pastebin.com", "notevil.com")
	r.warned(t, "NETWORK_BLOCKLIST_EXCEPT", "www.EVIL.com", "evil.com")
}

// The admin's file is not used, and the launch refused, when somebody else could
// have written it.
func TestAdminFileMustBeRoots(t *testing.T) {
	for name, breakIt := range map[string]func(dir, file string){
		"file of another":    func(_, f string) { os.Chown(f, 1234, 0) },
		"folder of another":  func(d, _ string) { os.Chown(d, 1234, 0) },
		"file group-write":   func(_, f string) { os.Chmod(f, 0o664) },
		"file other-write":   func(_, f string) { os.Chmod(f, 0o646) },
		"folder group-write": func(d, _ string) { os.Chmod(d, 0o775) },
		"folder sticky":      func(d, _ string) { os.Chmod(d, 0o777|os.ModeSticky) },
		"file is a link":     func(_, f string) { os.Rename(f, f+".x"); os.Symlink(f+".x", f) },
		"folder is a link":   func(d, _ string) { os.Rename(d, d+".x"); os.Symlink(d+".x", d) },
		"fifo":               func(_, f string) { os.Remove(f); syscall.Mkfifo(f, 0o644) },
		"is a folder":        func(_, f string) { os.Remove(f); os.Mkdir(f, 0o755) },
		"does not parse":     func(_, f string) { os.WriteFile(f, []byte("if\n"), 0o644) },
		"fails":              func(_, f string) { os.WriteFile(f, []byte("false\n"), 0o644) },
		"crlf":               func(_, f string) { os.WriteFile(f, []byte("a=1\r\n"), 0o644) },
		"invalid value":      func(_, f string) { os.WriteFile(f, []byte("PRIVATE_TMP=maybe\n"), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHome(t)
			file := h.admin("PRIVATE_TMP=true\n")
			t.Cleanup(func() { os.RemoveAll(filepath.Dir(file) + ".x") })
			h.load().quiet(t)
			breakIt(filepath.Dir(file), file)
			h.fails(filepath.Dir(file))
		})
	}
	t.Run("folder above", func(t *testing.T) {
		h := newHome(t)
		dir := adminDir(t)
		AdminDir = filepath.Join(dir, "a/b")
		writeFile(t, filepath.Join(AdminDir, "sandbox.conf"), "")
		h.load().quiet(t)
		os.Chmod(dir, 0o777)
		h.fails(dir)
	})
	t.Run("missing", func(t *testing.T) {
		h := newHome(t)
		AdminDir = filepath.Join(adminDir(t), "none")
		h.load().quiet(t)
	})
}

// No variable of the environment moves the admin's folder or reaches its shell.
func TestEnvironmentDoesNotReachTheAdminFile(t *testing.T) {
	h := newHome(t)
	h.admin("PRIVATE_TMP=true\n[[ $HOME == /real && -z $XDG_CONFIG_HOME$SANDBOX_CONF$FOO$BASH_ENV ]] || return 1\n[[ -z $PRIVATE_IPC ]] || return 2\n")
	for _, n := range []string{"XDG_CONFIG_HOME", "FOO", "BASH_ENV", "PRIVATE_IPC", "PRIVATE_TMP"} {
		t.Setenv(n, "/tmp")
	}
	h.req.PasswdHome = "/real"
	h.load()
}

// The values of the admin are complete before a file of the user is opened: what
// the user's file does at the same moment cannot matter.
func TestUserSeesEarlierLayers(t *testing.T) {
	h := newHome(t)
	h.admin("EXTRA_BLOCKED_PATHS+=(/a)\nMOUNT_GUARD=warn\n")
	h.write("sandbox.conf", `
[[ ${EXTRA_BLOCKED_PATHS[*]} == /a && $MOUNT_GUARD == warn && $PRIVATE_TMP == true && ${HOME_WRITABLE[*]} == .cache ]] || return 1
EXTRA_WRITABLE_PATHS+=(/x)
helper=/y
`)
	h.write("conf.d/a.conf", `[[ "$_PROJECT_DIR" == "$HOME/proj" ]] || return 0
[[ ${EXTRA_WRITABLE_PATHS[*]} == /x && $_CONFIG_FILE == */conf.d/a.conf ]] || return 1
EXTRA_WRITABLE_PATHS+=("$helper")`)
	h.write("conf.d/b.conf", "[[ \"$_PROJECT_DIR\" == /elsewhere ]] || return 0\nEXTRA_WRITABLE_PATHS+=(/never)\n")
	h.write("conf.d/c.txt", "exit\n")
	h.write("conf.d/.hidden.conf", "exit\n")
	r := h.load()
	r.quiet(t)
	r.list(t, "EXTRA_WRITABLE_PATHS", "/x", "/y")
	if want := []string{filepath.Join(AdminDir, "sandbox.conf"), h.conf("sandbox.conf"), h.conf("conf.d/a.conf"), h.conf("conf.d/b.conf")}; !slices.Equal(r.Files, want) {
		t.Errorf("Files = %q", r.Files)
	}
}

func TestWrongKindsAndUnknownNames(t *testing.T) {
	h := newHome(t)
	h.req.AgentsDir = emptyAgents(t)
	h.write("sandbox.conf", `EXTRA_WRITABLE_PATHS=/one
HOME_WRITABLE=.two
BLOCKED_ENV_VARS+=THREE
PRIVATE_TMP=(no)
declare -A HOME_ACCESS=([x]=write)
declare -A EXTRA_BLOCKED_PATHS=([a]=/a [b]=/b)
BLOCKED_FILE=(x)
QUITE_UNKNOWN=1
lower=1 _UNDER=1 Mixed=1
`)
	h.write("conf.d/x.conf", "HOME_WRITABLE+=(.three)\nPRIVATE_IPC=no\n")
	r := h.load()
	r.list(t, "EXTRA_WRITABLE_PATHS")
	r.list(t, "HOME_WRITABLE", ".cache", ".three")
	r.list(t, "EXTRA_BLOCKED_PATHS")
	if got := r.Settings.Strings("BLOCKED_ENV_VARS"); !slices.Equal(got, mustVar("BLOCKED_ENV_VARS").Default) {
		t.Errorf("BLOCKED_ENV_VARS = %q", got)
	}
	if !r.Settings.Bool("PRIVATE_TMP") || r.Settings.Bool("PRIVATE_IPC") || r.Settings.Scalar("HOME_ACCESS") != "tmpwrite" {
		t.Error("scalars")
	}
	conf := h.conf("sandbox.conf")
	for line, name := range map[string]string{":1": "EXTRA_WRITABLE_PATHS", ":2": "HOME_WRITABLE", ":3": "BLOCKED_ENV_VARS", ":4": "PRIVATE_TMP",
		":5": "HOME_ACCESS", ":6": "EXTRA_BLOCKED_PATHS", ":7": "BLOCKED_FILE", ":8": "QUITE_UNKNOWN"} {
		r.warned(t, conf+line+": "+name+":")
	}
	r.warned(t, "BLOCKED_FILE:", "did you mean BLOCKED_FILES")
	if len(r.Warnings) != 8 {
		t.Errorf("%d warnings: %q", len(r.Warnings), r.Warnings)
	}
}

func TestRefusedEntries(t *testing.T) {
	for text, words := range map[string][]string{
		"EXTRA_WRITABLE_PATHS+=(/ok\n  \"\")":      {":2: EXTRA_WRITABLE_PATHS", "empty"},
		"\nREADONLY_MOUNTS+=(\"$nothing\")":        {":2: READONLY_MOUNTS", "empty"},
		"HOME_WRITABLE+=('')":                      {":1: HOME_WRITABLE", "empty"},
		"PROJECT_READONLY+=('')":                   {":1: PROJECT_READONLY", "empty"},
		"BLOCKED_FILES+=(rel/path)":                {":1: BLOCKED_FILES", "not absolute"},
		"BLOCKED_FILES+=('~/x')":                   {":1: BLOCKED_FILES", "not absolute"},
		"HOME_WRITABLE+=('~/x')":                   {":1: HOME_WRITABLE", "begins with ~"},
		"EXTRA_WRITABLE_PATHS+=(/a/../b)":          {":1: EXTRA_WRITABLE_PATHS", ".."},
		"HOME_READONLY+=(a/..)":                    {":1: HOME_READONLY", ".."},
		"PROJECT_READONLY+=(../x)":                 {":1: PROJECT_READONLY", ".."},
		"EXTRA_WRITABLE_PATHS+=(//)":               {":1: EXTRA_WRITABLE_PATHS", "/ as a whole"},
		"HOME_WRITABLE+=(.)":                       {":1: HOME_WRITABLE", "$HOME itself"},
		"HOME_WRITABLE+=(\"$HOME\")":               {":1: HOME_WRITABLE", "$HOME itself"},
		"DEVICES+=(/etc/passwd)":                   {":1: DEVICES", "/dev"},
		"DEVICES+=('/dev/../etc/*')":               {":1: DEVICES", "/dev"},
		"SANDBOX_ENV+=(NOVALUE_hunter2)":           {":1: SANDBOX_ENV", "NAME=VALUE"},
		"SANDBOX_ENV+=('1X=hunter2')":              {":1: SANDBOX_ENV", "NAME=VALUE"},
		"BLOCKED_ENV_VARS+=(A=B)":                  {":1: BLOCKED_ENV_VARS", "="},
		"ENABLED_AGENTS+=(../../x)":                {":1: ENABLED_AGENTS", "agent profile"},
		"PRIVATE_TMP=maybe":                        {":1: PRIVATE_TMP", "maybe", "true, false"},
		"HOME_ACCESS=Write":                        {":1: HOME_ACCESS", "restricted, tmpwrite, read, write"},
		"HOME_ACCESS=":                             {":1: HOME_ACCESS", "restricted"},
		"SANDBOX_NPROC_LIMIT=-1":                   {":1: SANDBOX_NPROC_LIMIT", "whole number"},
		"SANDBOX_NPROC_LIMIT=99999999999999999999": {":1: SANDBOX_NPROC_LIMIT", "whole number"},
		"CHAPERON_LOG_RETAIN_DAYS=":                {":1: CHAPERON_LOG_RETAIN_DAYS", "whole number"},
	} {
		h := newHome(t)
		h.write("sandbox.conf", text+"\n")
		err := h.fails(append(words, h.conf("sandbox.conf"))...)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the value of a secret is in the message: %v", err)
		}
	}
}

func TestSpellings(t *testing.T) {
	h := newHome(t)
	h.req.AgentsDir = emptyAgents(t)
	h.req.PasswdHome = "/home/real"
	h.write("sandbox.conf", `
HOME_WRITABLE+=("$HOME/.a" ./.b/ .c//d /home/real/.e .a /elsewhere "$HOME/.a/")
HOME_READONLY=("$HOME/.z" /outside)
PROJECT_READONLY+=("$_PROJECT_DIR/lock" /not/mine)
EXTRA_WRITABLE_PATHS=(/x/ /x /y//z/. ~/w)
PRIVATE_TMP=Off FILTER_PASSWD=0 NESTED_SANDBOX=YES SANDBOX_NPROC_LIMIT=0100
`)
	r := h.load()
	r.list(t, "HOME_WRITABLE", ".cache", ".a", ".b", ".c/d", ".e")
	r.list(t, "HOME_READONLY", ".z")
	r.list(t, "PROJECT_READONLY", ".git/hooks", ".git/config", "lock")
	r.list(t, "EXTRA_WRITABLE_PATHS", "/x", "/y/z", h.dir+"/w")
	for _, e := range []string{"/elsewhere", "/outside", "/not/mine"} {
		r.warned(t, e, "outside")
	}
	for name, want := range map[string]string{"PRIVATE_TMP": "false", "FILTER_PASSWD": "false", "NESTED_SANDBOX": "true", "SANDBOX_NPROC_LIMIT": "100"} {
		if got := r.Settings.Scalar(name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", `# EXTRA_WRITABLE_PATHS+=(/a)
EXTRA_WRITABLE_PATHS+=(/a)
EXTRA_WRITABLE_PATHS+=(
	/b   # first
	"/c d"
)
if true; then EXTRA_WRITABLE_PATHS+=("$HOME/e"); fi
PRIVATE_TMP=no; export HOME_ACCESS=read
add() { EXTRA_WRITABLE_PATHS+=("$1"); }
add /f
`)
	h.write("conf.d/p.conf", "\nEXTRA_WRITABLE_PATHS+=(/g)\n")
	h.env["PRIVATE_IPC"] = "no"
	r := h.load()
	conf := h.conf("sandbox.conf")
	want := []Entry{{"/a", Origin{"user", conf, 2}}, {"/b", Origin{"user", conf, 4}}, {"/c d", Origin{"user", conf, 5}}, {h.dir + "/e", Origin{"user", conf, 7}},
		{"/f", Origin{"user", conf, 9}}, {"/g", Origin{"project", h.conf("conf.d/p.conf"), 2}}}
	if got := r.Settings.Entries("EXTRA_WRITABLE_PATHS"); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	for name, want := range map[string]Origin{"PRIVATE_TMP": {"user", conf, 8}, "HOME_ACCESS": {"user", conf, 8}, "PRIVATE_IPC": {Layer: "environment"}, "MOUNT_GUARD": {Layer: "default"}} {
		if got := r.Settings.Entries(name)[0].Origin; got != want {
			t.Errorf("%s: origin %v, want %v", name, got, want)
		}
	}
}
