package environ

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/internal/config"
	"agent-sandbox/test/harness"
)

// settings are those of the given lists, the defaults for the rest.
func settings(lists map[string]string) *config.Settings {
	s := &config.Settings{}
	for _, v := range config.Vars {
		texts := v.Default
		if l, ok := lists[v.Name]; ok {
			texts = strings.Fields(l)
		}
		var e []config.Entry
		for _, t := range texts {
			e = append(e, config.Entry{Text: t})
		}
		s.Set(v.Name, e)
	}
	return s
}

func TestDefaults(t *testing.T) {
	env := []string{"PATH=/bin", "HOME=/h", "GITHUB_TOKEN=s3cret", "AWS_PROFILE=x", "SSH_AUTH_SOCK=/s", "OPENAI_API_KEY=k", "MISTRAL_API_KEY=k",
		"MyPassWordFile=x", "mypasswd=x", "my_token=x", "KUBECONFIG=x", "KUBECONFIGS=x", "BASH_ENV=x", "ENV=x", "TMUX=x", "LANG=C", "EMPTY=", "DBUS_SESSION_BUS_ADDRESS=x",
		"A/B_TOKEN=x", "_TOKEN=x", "BASH_FUNC_x%%=() { :; }"}
	kept, removed := Filter(env, settings(nil))
	if want := []string{"PATH=/bin", "HOME=/h", "OPENAI_API_KEY=k", "mypasswd=x", "my_token=x", "KUBECONFIGS=x", "LANG=C", "EMPTY=", "BASH_FUNC_x%%=() { :; }"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q", kept)
	}
	if want := strings.Fields("A/B_TOKEN AWS_PROFILE BASH_ENV DBUS_SESSION_BUS_ADDRESS ENV GITHUB_TOKEN KUBECONFIG MISTRAL_API_KEY MyPassWordFile SSH_AUTH_SOCK TMUX _TOKEN"); !slices.Equal(removed, want) {
		t.Errorf("removed %q", removed)
	}
}

func TestSandboxEnvIsSetOnTop(t *testing.T) {
	s := settings(map[string]string{"SANDBOX_ENV": "PATH=/mine A=1 A=2 X_TOKEN=given"})
	kept, removed := Filter([]string{"PATH=/bin", "X_TOKEN=hers", "B=3"}, s)
	if want := []string{"B=3", "PATH=/mine", "A=2", "X_TOKEN=given"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q", kept)
	}
	if !slices.Equal(removed, []string{"X_TOKEN"}) {
		t.Errorf("removed %q", removed)
	}
}

// A blocked name must not come through as a duplicate or an odd entry, and of
// duplicates the program sees what getenv(3) showed before.
func TestOddEnvironments(t *testing.T) {
	env := []string{"A=1", "A=2", "NOVALUE", "=x", "", "GITHUB_PAT=1", "GITHUB_PAT=2", "GITHUB_PAT", "=GITHUB_PAT=3", "N\xffL=\xfe\n"}
	kept, removed := Filter(env, settings(nil))
	if want := []string{"A=1", "N\xffL=\xfe\n"}; !slices.Equal(kept, want) {
		t.Errorf("kept %q", kept)
	}
	if !slices.Equal(removed, []string{"GITHUB_PAT"}) {
		t.Errorf("removed %q", removed)
	}
}

func TestTheLaunchersOwnVariables(t *testing.T) {
	kept, removed := Filter([]string{"SANDBOX_SESSION=outer", "SANDBOX_QUIET=1", "SANDBOX_ACTIVE=1"}, settings(map[string]string{"SANDBOX_ENV": "SANDBOX_PROJECT_DIR=/x A=1"}))
	if !slices.Equal(kept, []string{"SANDBOX_QUIET=1", "A=1"}) || len(removed) > 0 {
		t.Errorf("kept %q, removed %q", kept, removed)
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"AWS_*", "AWS_", true}, {"AWS_*", "AWS", false}, {"AWS_*", "XAWS_A", false}, {"*", "", true}, {"*_KEY", "A_KEY_KEY", true}, {"*_KEY", "A_KEYS", false},
		{"a*b*c", "aXbYbZc", true}, {"a*b*c", "acb", false}, {"**", "x", true}, {"?", "", false}, {"?", "x", true}, {"A?C", "ABC", true},
		{"[AB]X", "AX", true}, {"[AB]X", "CX", false}, {"[A-C]", "B", true}, {"[!A-C]", "B", false}, {"[^A-C]", "D", true}, {"[]]", "]", true}, {"[!]]", "]", false},
		{"[A-]", "-", true}, {"[A", "[A", true}, {"[A", "A", false}, {`\*`, "*", true}, {`\*`, "x", false}, {`\`, `\`, true},
		{"*pass*/i", "MyPASSword", true}, {"*pass*", "MyPASSword", false}, {"X/i", "x", true}, {"/i", "", true}, {"*é*/i", "xéx", true}, {"*\xff*/i", "A\xffB", true},
		{"", "", true}, {"", "x", false}, {"x", "", false},
	} {
		if got := Match(c.pattern, c.name); got != c.want {
			t.Errorf("Match(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
	// A name is the user's, a pattern too: no pattern takes exponential time.
	if Match(strings.Repeat("*a", 5000)+"b", strings.Repeat("a", 20000)) {
		t.Error("matched")
	}
}

func FuzzMatch(f *testing.F) {
	for _, p := range []string{"AWS_*", "[a-z]*/i", "[!]]", `\`, "[", "*?*"} {
		f.Add(p, "AWS_X")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := Match(pattern, name)
		if !strings.ContainsAny(pattern, `*?[\`) && !strings.HasSuffix(pattern, "/i") && got != (pattern == name) {
			t.Fatalf("Match(%q, %q) = %v", pattern, name, got)
		}
		if !Match("*"+pattern, name) && got {
			t.Fatalf("%q matches %q, but not with a star before it", pattern, name)
		}
	})
}

// What the admin blocks is removed although a user allows it; a default that the
// user allows is kept.
func TestAdminsBlocksBeatAllowed(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "an admin layer belongs to root")
	dir, err := os.MkdirTemp("/opt", "asb-admin.")
	if err != nil {
		t.Fatal(err)
	}
	was := config.AdminDir
	config.AdminDir = dir
	t.Cleanup(func() { config.AdminDir = was; os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	home := t.TempDir()
	conf := filepath.Join(home, ".config/agent-sandbox/sandbox.conf")
	os.MkdirAll(filepath.Dir(conf), 0o755)
	os.WriteFile(filepath.Join(dir, "sandbox.conf"), []byte("BLOCKED_ENV_VARS+=(CORP_ID)\nBLOCKED_ENV_PATTERNS+=('CORP_K*')\n"), 0o644)
	os.WriteFile(conf, []byte("ALLOWED_ENV_VARS+=(CORP_ID CORP_KEY GITHUB_TOKEN)\n"), 0o644)
	r, err := config.Load(t.Context(), config.Request{Home: home, PasswdHome: home, UID: os.Getuid(), ProjectDir: home + "/p",
		Getenv: func(string) string { return "" }, AgentsDir: "../../share/agents"})
	if err != nil {
		t.Fatal(err)
	}
	kept, removed := Filter([]string{"CORP_ID=1", "CORP_KEY=2", "GITHUB_TOKEN=3"}, r.Settings)
	if !slices.Equal(kept, []string{"GITHUB_TOKEN=3"}) || !slices.Equal(removed, []string{"CORP_ID", "CORP_KEY"}) {
		t.Errorf("kept %q, removed %q", kept, removed)
	}
}
