package agents

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

const shipped = "../../share/agents"

// The shipped profiles hold what config-reference.md says of them.
func TestShippedProfiles(t *testing.T) {
	for name, want := range map[string]struct {
		writable     string
		instructions string
	}{
		"claude":   {".claude .local/state/claude .local/share/claude", ".claude/CLAUDE.md"},
		"codex":    {".codex", ".codex/AGENTS.md"},
		"gemini":   {".gemini", ".gemini/GEMINI.md"},
		"aider":    {"", ""},
		"opencode": {".config/opencode .local/share/opencode .local/state/opencode", ".config/opencode/AGENTS.md"},
		"pi":       {".pi", ".pi/agent/AGENTS.md"},
	} {
		p, err := Load(shipped, name)
		if err != nil {
			t.Error(err)
			continue
		}
		if !slices.Equal(p.Writable, strings.Fields(want.writable)) || p.Instructions != want.instructions {
			t.Errorf("%s: writable %q, instructions %q", name, p.Writable, p.Instructions)
		}
		if p.Name != name || !p.Starts("/usr/bin/"+name) || p.Starts(name+"x") {
			t.Errorf("%s: name %q, commands %q", name, p.Name, p.Commands)
		}
		if len(p.Credentials) == 0 || len(p.Logins) == 0 || p.Hint == "" {
			t.Errorf("%s: no credentials, logins or hint", name)
		}
		// A file that is a mount point cannot be renamed over: state is in folders.
		if slices.ContainsFunc(p.Writable, func(w string) bool { return strings.HasSuffix(w, ".json") }) {
			t.Errorf("%s: binds a single file", name)
		}
	}
	files, err := filepath.Glob(shipped + "/*")
	if err != nil || len(files) != 6 {
		t.Errorf("%q, %v", files, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no `command`",
		"command a\nfoo bar":            "p.conf:2",
		"command a/b":                   "base name",
		"command ":                      "base name",
		"command a\nwritable":           "clean path",
		"command a\nwritable /etc":      "clean path",
		"command a\nwritable ../x":      "clean path",
		"command a\nwritable a/../../x": "clean path",
		"command a\nreadonly .":         "clean path",
		"command a\nlogin a//b":         "clean path",
		"command a\ninstructions x/":    "clean path",
		"command a\ninstructions x\ninstructions y": "twice",
		"command a\ncredential A-B":                 "name of a variable",
		"command a\nenv A":                          "env",
		"command a\nenv A /x":                       "clean path",
		"command a\nenv A=1 x":                      "env",
		"command a\ncarry x":                        "two paths",
		"command a\ncarry x ../y":                   "clean path",
		"command a\nhint":                           "hint",
		" command a":                                "p.conf:1",
		"command a\r":                               "base name",
	} {
		if _, err := Parse("p.conf", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	files, _ := filepath.Glob(shipped + "/*")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse("x", text)
		if err != nil {
			return
		}
		all := slices.Concat(p.Writable, p.Readonly, p.Logins)
		for _, c := range p.Carry {
			all = append(all, c.From, c.To)
		}
		for _, path := range all {
			if !filepath.IsLocal(path) || filepath.Join("/h", path) == "/h" {
				t.Fatalf("%q leads out of the home", path)
			}
		}
	})
}

func claude(t *testing.T) *Profile {
	p, err := Load(shipped, "claude")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestCarryOver(t *testing.T) {
	home := t.TempDir()
	p := claude(t)
	if made, err := p.CarryOver(home); err != nil || len(made) > 0 {
		t.Errorf("nothing to carry: %q, %v", made, err)
	}
	if entries, _ := os.ReadDir(home); len(entries) > 0 {
		t.Errorf("made without need: %v", entries)
	}
	os.WriteFile(filepath.Join(home, ".claude.json"), []byte(`{"a":1}`), 0o644)
	made, err := p.CarryOver(home)
	if err != nil || !slices.Equal(made, []string{".claude/.claude.json"}) {
		t.Fatalf("%q, %v", made, err)
	}
	copied := filepath.Join(home, ".claude/.claude.json")
	if data, _ := os.ReadFile(copied); string(data) != `{"a":1}` {
		t.Errorf("%q", data)
	}
	if st, _ := os.Stat(copied); st.Mode() != 0o600 || st.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("mode %v, links %d", st.Mode(), st.Sys().(*syscall.Stat_t).Nlink)
	}
	// Once: the copy is the agent's from now on.
	os.WriteFile(copied, []byte("mine"), 0o600)
	if made, err = p.CarryOver(home); err != nil || len(made) > 0 {
		t.Errorf("again: %q, %v", made, err)
	}
	if data, _ := os.ReadFile(copied); string(data) != "mine" {
		t.Errorf("overwritten: %q", data)
	}
	if data, _ := os.ReadFile(filepath.Join(home, ".claude.json")); string(data) != `{"a":1}` {
		t.Errorf("the user's file is %q", data)
	}
	if left, _ := os.ReadDir(filepath.Join(home, ".claude")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// An agent of an earlier session may have put links and FIFOs where the copy goes
// or comes from.
func TestCarryOverFollowsNoLink(t *testing.T) {
	for name, plant := range map[string]func(home, outside string){
		"folder of the copy": func(h, o string) { os.Symlink(o, filepath.Join(h, ".claude")) },
		"the copy": func(h, o string) {
			os.Mkdir(filepath.Join(h, ".claude"), 0o755)
			os.Symlink(filepath.Join(o, "new"), filepath.Join(h, ".claude/.claude.json"))
		},
		"the source": func(h, o string) {
			os.Remove(filepath.Join(h, ".claude.json"))
			os.Symlink(filepath.Join(o, "secret"), filepath.Join(h, ".claude.json"))
		},
		"a source that is a FIFO": func(h, o string) {
			os.Remove(filepath.Join(h, ".claude.json"))
			syscall.Mkfifo(filepath.Join(h, ".claude.json"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			home, outside := t.TempDir(), t.TempDir()
			os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644)
			os.WriteFile(filepath.Join(home, ".claude.json"), []byte("{}"), 0o644)
			plant(home, outside)
			claude(t).CarryOver(home)
			if entries, _ := os.ReadDir(outside); len(entries) != 1 {
				t.Errorf("written outside: %v", entries)
			}
			if data, err := os.ReadFile(filepath.Join(home, ".claude/.claude.json")); err == nil && string(data) == "secret" {
				t.Error("read through a link")
			}
		})
	}
}

func TestWarning(t *testing.T) {
	home := t.TempDir()
	p := claude(t)
	for _, removed := range [][]string{nil, {"SSH_AUTH_SOCK", "OPENAI_API_KEY"}} {
		if w := p.Warning(home, removed); w != "" {
			t.Errorf("%q: %s", removed, w)
		}
	}
	w := p.Warning(home, []string{"A", "ANTHROPIC_AUTH_TOKEN"})
	for _, want := range []string{"claude", "ANTHROPIC_AUTH_TOKEN", "ALLOWED_ENV_VARS+=(ANTHROPIC_AUTH_TOKEN)", "/login"} {
		if !strings.Contains(w, want) {
			t.Errorf("%q lacks %q", w, want)
		}
	}
	os.Mkdir(filepath.Join(home, ".claude"), 0o755)
	os.WriteFile(filepath.Join(home, ".claude/.credentials.json"), nil, 0o600)
	if w := p.Warning(home, []string{"ANTHROPIC_AUTH_TOKEN"}); w != "" {
		t.Errorf("logged in: %s", w)
	}
}

func TestSuppressed(t *testing.T) {
	p := claude(t)
	for list, want := range map[string]bool{"": false, "codex": false, "codex claude": true, "all": true} {
		if p.Suppressed(strings.Fields(list)) != want {
			t.Errorf("%q: not %v", list, want)
		}
	}
}

func TestNote(t *testing.T) {
	p := claude(t)
	for own, head := range map[string]string{"": "# You run", "My rules": "My rules\n\n# You run", "My rules\n": "My rules\n\n# You run", "\xff\x00\n": "\xff\x00\n\n# You run"} {
		n := string(Note([]byte(own), "/home/u/p\nq", p))
		if !strings.HasPrefix(n, head) {
			t.Errorf("%q: begins with %.40q", own, n)
		}
		for _, want := range []string{`/home/u/p\nq`, "/tmp", "~/.claude", "EXTRA_WRITABLE_PATHS+=", "agent-sandbox reload"} {
			if !strings.Contains(n, want) {
				t.Errorf("the note lacks %q", want)
			}
		}
	}
}

func TestEnviron(t *testing.T) {
	ps := []*Profile{claude(t)}
	if got := Environ([]string{"A=b"}, ps, "/h"); !slices.Equal(got, []string{"A=b", "CLAUDE_CONFIG_DIR=/h/.claude"}) {
		t.Errorf("%q", got)
	}
	own := []string{"CLAUDE_CONFIG_DIR=/mine"}
	if got := Environ(own, ps, "/h"); !slices.Equal(got, own) {
		t.Errorf("the user's own: %q", got)
	}
}
