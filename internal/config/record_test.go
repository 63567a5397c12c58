package config

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestDefaultsWithoutAnyFile(t *testing.T) {
	h := newHome(t)
	r := h.load()
	r.quiet(t)
	if len(r.Files) != 0 || r.ConfigDir != filepath.Join(h.dir, ".config/agent-sandbox") || r.ConfFile != "" {
		t.Errorf("Files %q, ConfigDir %q, ConfFile %q", r.Files, r.ConfigDir, r.ConfFile)
	}
	r.list(t, "ALLOWED_PROJECT_PARENTS", h.dir)
	for _, v := range Vars {
		if v.Type != Array && r.Settings.Scalar(v.Name) != strings.Join(v.Default, "") {
			t.Errorf("%s = %q", v.Name, r.Settings.Scalar(v.Name))
		}
	}
	r.list(t, "HOME_WRITABLE", ".cache", ".claude", ".local/state/claude", ".local/share/claude", ".codex", ".gemini")
	var names []string
	for _, p := range r.Agents {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"claude", "codex", "gemini"}) {
		t.Errorf("Agents %q", names)
	}
	entries, err := os.ReadDir(h.dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the load wrote to the home: %v", entries)
	}
}

func TestWhichFiles(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "EXTRA_WRITABLE_PATHS+=(/default)\n")
	h.write("conf.d/a.conf", "EXTRA_WRITABLE_PATHS+=(/part)\n")
	writeFile(t, filepath.Join(h.dir, "alt.conf"), "EXTRA_WRITABLE_PATHS+=(/alt)\n")
	h.load().list(t, "EXTRA_WRITABLE_PATHS", "/default", "/part")

	for _, name := range []string{filepath.Join(h.dir, "alt.conf"), "alt.conf", "./x/../alt.conf"} {
		h.env["SANDBOX_CONF"] = name
		r := h.load()
		r.list(t, "EXTRA_WRITABLE_PATHS", "/alt", "/part")
		if r.ConfFile != filepath.Join(h.dir, "alt.conf") {
			t.Errorf("ConfFile %q", r.ConfFile)
		}
	}
	h.env["SANDBOX_CONF"] = "/nonexistent.conf"
	h.fails("/nonexistent.conf", "no such file")
	delete(h.env, "SANDBOX_CONF")

	writeFile(t, filepath.Join(h.dir, "xdg/agent-sandbox/sandbox.conf"), "EXTRA_WRITABLE_PATHS+=(/xdg)\n")
	h.env["XDG_CONFIG_HOME"] = filepath.Join(h.dir, "xdg")
	h.load().list(t, "EXTRA_WRITABLE_PATHS", "/xdg")
	h.env["XDG_CONFIG_HOME"] = "xdg" // relative: not valid, ignored
	h.load().list(t, "EXTRA_WRITABLE_PATHS", "/default", "/part")
	h.req.ConfigDir = filepath.Join(h.dir, "xdg/agent-sandbox") // as a record names it
	h.load().list(t, "EXTRA_WRITABLE_PATHS", "/xdg")
}

// A reload runs the recorded SANDBOX_CONF as its user: only a regular file of
// that user's.
func TestReloadWantsTheUsersOwnFile(t *testing.T) {
	needRoot(t)
	h := newHome(t)
	conf := filepath.Join(h.dir, "alt.conf")
	writeFile(t, conf, "EXTRA_WRITABLE_PATHS+=(/alt)\n")
	h.env["SANDBOX_CONF"] = conf
	h.req.Reload = true
	h.load().list(t, "EXTRA_WRITABLE_PATHS", "/alt")
	os.Chown(conf, 1234, 0)
	h.fails(conf, "1234")
	h.req.Reload = false
	h.load()
	h.req.Reload = true
	os.Remove(conf)
	os.Mkdir(conf, 0o755)
	h.fails(conf, "folder")
}

func TestEnvironmentOverrides(t *testing.T) {
	for _, v := range Vars {
		if v.Type == Array {
			continue
		}
		h := newHome(t)
		other := "12"
		if v.Type != Integer {
			other = v.Values[len(v.Values)-1]
			if other == strings.Join(v.Default, "") {
				other = v.Values[0]
			}
		}
		h.env[v.Name] = other
		got := h.load().Settings.Scalar(v.Name)
		want := strings.Join(v.Default, "")
		if v.Env {
			want = other
		}
		if got != want {
			t.Errorf("%s=%s in the environment: %q, want %q", v.Name, other, got, want)
		}
		h.env[v.Name] = "bogus!"
		if v.Env {
			err := h.fails("environment variable "+v.Name, "bogus!")
			for _, val := range v.Values {
				if err != nil && !strings.Contains(err.Error(), val) {
					t.Errorf("%v: does not name %s", err, val)
				}
			}
		} else {
			h.load()
		}
		h.env[v.Name] = ""
		if got, want := h.load().Settings.Scalar(v.Name), strings.Join(v.Default, ""); got != want {
			t.Errorf("%s empty in the environment: %q, want %q", v.Name, got, want)
		}
	}
	// contract section 3
	var names []string
	for _, v := range Vars {
		if v.Env {
			names = append(names, v.Name)
		}
	}
	slices.Sort(names)
	want := strings.Fields("FILTER_PASSWD HOME_ACCESS MOUNT_GUARD MOUNT_GUARD_REBIND NETWORK_FILTER_MODE NETWORK_MAIL_BLOCK PRIVATE_IPC PRIVATE_TMP SANDBOX_BACKEND SANDBOX_NPROC_LIMIT SANDBOX_QUIET SLURM_SCOPE")
	if !slices.Equal(names, want) {
		t.Errorf("overridable: %q", names)
	}
}

func TestHomeAccessOfTheEnvironmentIsReported(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "HOME_ACCESS=write\n")
	if r := h.load(); r.HomeAccess != "" || r.Settings.Scalar("HOME_ACCESS") != "write" {
		t.Errorf("%q", r.HomeAccess)
	}
	h.env["HOME_ACCESS"] = "read"
	if r := h.load(); r.HomeAccess != "read" || r.Settings.Scalar("HOME_ACCESS") != "read" {
		t.Errorf("%q", r.HomeAccess)
	}
}

func TestPrintShowsNoSecret(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "SANDBOX_ENV+=(KEY=hunter2)\nEXTRA_WRITABLE_PATHS+=($'/a\\nb\\xff')\n")
	r := h.load()
	var out bytes.Buffer
	r.Settings.Print(&out)
	sum := sha256.Sum256([]byte("KEY=hunter2"))
	for _, want := range []string{"SANDBOX_ENV\tKEY=sha256:" + hex.EncodeToString(sum[:]), `EXTRA_WRITABLE_PATHS` + "\t" + `/a\nb\xff`,
		"SANDBOX_NPROC_LIMIT\t", "PRIVATE_TMP\ttrue", "HOME_WRITABLE\t.codex"} {
		if !slices.Contains(strings.Split(out.String(), "\n"), want) {
			t.Errorf("no line %q", want)
		}
	}
	all := out.String() + fmt.Sprint(r.Settings.LaunchSettings())
	if strings.Contains(all, "hunter2") {
		t.Error("a secret is shown")
	}
	last := -1
	for line := range strings.Lines(out.String()) {
		name, _, _ := strings.Cut(line, "\t")
		i, ok := varIndex[name]
		if !ok || i < last {
			t.Errorf("%q is out of order", line)
		}
		last = i
	}
}

func TestLaunchSettingsOfARecord(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "SANDBOX_ENV+=(K=V)\n")
	r := h.load()
	recorded := r.Settings.LaunchSettings()
	for _, s := range recorded {
		if v := mustVar(s.Name); v.Reload != Launch || s.Value == "" {
			t.Errorf("%v", s)
		}
	}
	if d, err := r.ApplyLaunch(recorded); err != nil || len(d) > 0 {
		t.Errorf("the same settings: %q, %v", d, err)
	}

	// The config changes: what a reload cannot apply stays as recorded, the
	// folder of an agent that was disabled included; the rest is new.
	h.write("sandbox.conf", `SANDBOX_ENV+=(K=W)
ENABLED_AGENTS=(codex pi)
PRIVATE_TMP=no
SANDBOX_NPROC_LIMIT=5
BLOCKED_ENV_VARS=()
EXTRA_WRITABLE_PATHS+=(/new)
HOME_WRITABLE+=(.mine)
`)
	r = h.load()
	d, err := r.ApplyLaunch(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Fields("SANDBOX_ENV BLOCKED_ENV_VARS PRIVATE_TMP SANDBOX_NPROC_LIMIT ENABLED_AGENTS"); !slices.Equal(d, want) {
		t.Errorf("differ: %q, want %q", d, want)
	}
	r.list(t, "EXTRA_WRITABLE_PATHS", "/new")
	r.list(t, "HOME_WRITABLE", ".cache", ".mine", ".claude", ".local/state/claude", ".local/share/claude", ".codex", ".gemini")
	if !r.Settings.Bool("PRIVATE_TMP") || r.Settings.Scalar("SANDBOX_NPROC_LIMIT") != "" || len(r.Agents) != 3 {
		t.Error("recorded settings were not kept")
	}
	for _, s := range slices.DeleteFunc(r.Settings.LaunchSettings(), func(s Setting) bool { return s.Name == "SANDBOX_ENV" }) {
		if !slices.Contains(recorded, s) {
			t.Errorf("%v is not what was recorded", s)
		}
	}
	r.quiet(t)
}

// Not even a record can hold what a load would not give.
func TestForgedRecord(t *testing.T) {
	h := newHome(t)
	for _, s := range []Setting{{"NOPE", "x"}, {"EXTRA_WRITABLE_PATHS", "/x"}, {"PRIVATE_TMP", "maybe"}, {"PRIVATE_TMP", "yes"}, {"SANDBOX_BACKEND", ""},
		{"SANDBOX_ENV", "K=V"}, {"SANDBOX_ENV", "sha256:00"}, {"ENABLED_AGENTS", "../x"}, {"DEVICES", "/etc/x"}, {"HOME_SEEDED_FILES", "../x"},
		{"HOME_SEEDED_FILES", "a/"}, {"AUTOMOUNT_ROOTS", "/a/.."}, {"SANDBOX_NPROC_LIMIT", "007"}} {
		if _, err := h.load().ApplyLaunch([]Setting{s}); err == nil {
			t.Errorf("%v was taken", s)
		}
	}
	if _, err := h.load().ApplyLaunch([]Setting{{"PRIVATE_TMP", "true"}, {"PRIVATE_TMP", "false"}}); err == nil {
		t.Error("two values of a scalar were taken")
	}
}

// The admin's rules hold over what a record says too.
func TestRecordDoesNotLiftDenials(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "ENABLED_AGENTS=()\n")
	h.admin("DENIED_WRITABLE_PATHS=(\"$HOME/.pi\")\n")
	r := h.load()
	if _, err := r.ApplyLaunch([]Setting{{"ENABLED_AGENTS", "pi"}}); err != nil {
		t.Fatal(err)
	}
	r.list(t, "HOME_WRITABLE", ".cache")
}

func TestCheckProject(t *testing.T) {
	h := newHome(t)
	os.Symlink("/opt", filepath.Join(h.dir, "out"))
	os.Mkdir(filepath.Join(h.dir, "real"), 0o755)
	os.Symlink(filepath.Join(h.dir, "real"), filepath.Join(h.dir, "alias"))
	for dir, words := range map[string]string{
		h.dir + "/proj":     "",
		h.dir + "/proj/sub": "",
		"/":                 "project dir",
		h.dir:               "your home",
		filepath.Dir(h.dir): "your home lies below",
		h.dir + "x":         "ALLOWED_PROJECT_PARENTS",
		"/usr":              "ALLOWED_PROJECT_PARENTS",
		h.dir + "/out/x":    "ALLOWED_PROJECT_PARENTS",
	} {
		h.req.ProjectDir = dir
		err := h.load().CheckProject()
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%s: %v, want %q", dir, err, words)
		}
	}
	// The home of the user database and a home that is a link count too.
	h.req.PasswdHome, h.req.Home = h.dir, filepath.Join(h.dir, "alias")
	for _, dir := range []string{h.dir, h.dir + "/real"} {
		h.req.ProjectDir = dir
		h.write("sandbox.conf", "")
		if err := h.load().CheckProject(); err == nil {
			t.Errorf("%s: accepted as the project dir", dir)
		}
	}
}

func TestUnknownAgent(t *testing.T) {
	h := newHome(t)
	h.write("sandbox.conf", "ENABLED_AGENTS+=(nonesuch)\n")
	r := h.load()
	r.warned(t, h.conf("sandbox.conf")+":1", "ENABLED_AGENTS", "nonesuch")
	if len(r.Agents) != 3 {
		t.Errorf("%d agents", len(r.Agents))
	}
}

func FuzzAnswer(f *testing.F) {
	const nonce = "%0123"
	good := func(n int) []byte {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%s\x00begin\x00%d\x00%s\x00end\x00%d\x000\x007\x00", nonce, i, nonce, i)
			for _, v := range Vars {
				fmt.Fprintf(&b, "%s\x00a\x002\x000\x001\x00x\ny\x00\xff\x00", v.Name)
			}
		}
		return []byte(b.String() + nonce + "\x00names\x00PATH\x00" + nonce + "\x00done\x00")
	}
	for n := range 3 {
		g := good(n)
		f.Add(g, n)
		f.Add(g[:len(g)/2], n)
		f.Add(append(g, 'x'), n)
	}
	f.Add([]byte(nonce+"\x00begin\x000\x00"+nonce+"\x00exit\x0012\x00"), 1)
	f.Add([]byte(nonce+"\x00begin\x000\x00"+nonce+"\x00end\x000\x000\x000\x00"+Vars[0].Name+"\x00a\x0099999999\x00"), 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		n = max(0, min(n, 4))
		a, err := parse(data, nonce, n)
		if err != nil && a.complete {
			t.Fatal("an error and a complete answer")
		}
		if len(a.frames) > n || a.file >= n || a.line < 0 {
			t.Fatalf("%d frames of %d files, at file %d", len(a.frames), n, a.file)
		}
		for _, fr := range a.frames {
			if len(fr.vars) != len(Vars) {
				t.Fatal("a frame lacks variables")
			}
			for name, v := range fr.vars {
				if len(v.keys) != len(v.values) {
					t.Fatalf("%s: %d keys, %d values", name, len(v.keys), len(v.values))
				}
			}
		}
		if a.complete != (err == nil && len(a.frames) == n && bytes.HasSuffix(data, []byte(endFrame(nonce))) && a.line == 0) {
			t.Fatalf("complete is %v for %q", a.complete, data)
		}
	})
}
