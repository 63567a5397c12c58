// Package agents runs the real claude, codex and gemini of the npm registry in
// the sandbox, in every HOME_ACCESS mode, and reads on the host what they saved.
package agents

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) {
	harness.Main(m, func() {
		if programs.dir != "" {
			os.RemoveAll(programs.dir)
		}
	})
}

var programs struct {
	sync.Once
	dir string
	err error
	out []byte
}

// install gives the folder of the agents' programs: below /opt, which every user
// reaches and every session shows, hard links to what test/agents-install keeps
// in .cache/npm (AGENTS_NPM names another folder).
func install(t *testing.T) string {
	t.Helper()
	programs.Do(func() {
		cache := os.Getenv("AGENTS_NPM")
		if cache == "" {
			cache = filepath.Join(harness.Root(), ".cache/npm")
		}
		if programs.out, programs.err = exec.Command(filepath.Join(harness.Root(), "test/agents-install"), cache).CombinedOutput(); programs.err != nil {
			return
		}
		if programs.dir, programs.err = os.MkdirTemp("/opt", "asb-agents."); programs.err != nil {
			return
		}
		os.Chmod(programs.dir, 0o755)
		src := filepath.Join(cache, "node_modules")
		if programs.out, programs.err = exec.Command("cp", "-al", src, programs.dir).CombinedOutput(); programs.err != nil {
			programs.out, programs.err = exec.Command("cp", "-a", src, programs.dir).CombinedOutput()
		}
	})
	harness.Need(t, programs.err == nil, "the agents cannot be installed from the npm registry: "+string(programs.out))
	return filepath.Join(programs.dir, "node_modules/.bin")
}

type user struct{ *harness.User }

func newUser(t *testing.T) user {
	bin := install(t)
	u := harness.NewUser(t)
	// Of a name that comes twice the last counts in exec.Cmd.
	u.Env = append(u.Env, "NO_COLOR=1", "PATH="+filepath.Dir(harness.Bin(t, "agent-sandbox"))+":"+bin+":/usr/local/bin:/usr/bin:/bin")
	return user{u}
}

// sandbox runs a command in the sandbox and wants it to succeed.
func (u user) sandbox(t *testing.T, args ...string) string {
	t.Helper()
	c := u.Command("agent-sandbox", append([]string{"--"}, args...)...)
	r := harness.Finish(t, c)
	if r.Code != 0 {
		t.Fatalf("%q: exit %d\n%s%s", args, r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

func modes(t *testing.T, f func(t *testing.T, u user)) {
	for _, mode := range []string{"restricted", "tmpwrite", "read", "write"} {
		t.Run(mode, func(t *testing.T) {
			u := newUser(t)
			u.Config("HOME_ACCESS=" + mode + "\n")
			f(t, u)
		})
	}
}

func TestAgentsStart(t *testing.T) {
	modes(t, func(t *testing.T, u user) {
		for _, agent := range []string{"claude", "codex", "gemini"} {
			if out := u.sandbox(t, agent, "--version"); !strings.ContainsAny(out, "0123456789") {
				t.Errorf("%s --version: %q", agent, out)
			}
			if !strings.HasSuffix(t.Name(), "/tmpwrite") {
				continue
			}
			if out := u.sandbox(t, agent, "--help"); !strings.Contains(strings.ToLower(out), agent) {
				t.Errorf("%s --help: %q", agent, out)
			}
		}
	})
}

// What an agent is told to keep is on the host after the session, and again
// inside in the next one.
func TestAgentsSaveTheirState(t *testing.T) {
	modes(t, func(t *testing.T, u user) {
		for _, c := range []struct{ file, add, list string }{
			{".claude/.claude.json", "claude mcp add keepme -s user -- /bin/true", "claude mcp list"},
			{".codex/config.toml", "codex mcp add keepme -- /bin/true", "codex mcp list"},
			{".gemini/settings.json", "gemini mcp add keepme /bin/true -s user", ""},
		} {
			u.sandbox(t, strings.Fields(c.add)...)
			data, err := os.ReadFile(filepath.Join(u.Home, c.file))
			if err != nil || !strings.Contains(string(data), "keepme") {
				t.Errorf("%s: on the host: %v, %q", c.add, err, data)
			}
			if c.list != "" && !strings.Contains(u.sandbox(t, strings.Fields(c.list)...), "keepme") {
				t.Errorf("%s does not list what was added", c.list)
			}
		}
	})
}

// Claude's ~/.claude.json is carried over once, also where the agent is started
// by another command; what it saves is on the host, and the user's own file stays
// as it was.
func TestClaudeStateIsCarriedOver(t *testing.T) {
	modes(t, func(t *testing.T, u user) {
		const own = `{"mcpServers":{"mine":{"type":"stdio","command":"/bin/true","args":[],"env":{}}}}`
		u.Write(".claude.json", own)
		if out := u.sandbox(t, "bash", "-c", "claude mcp list && claude mcp add more -s user -- /bin/true"); !strings.Contains(out, "mine") {
			t.Errorf("the user's server is not known inside: %q", out)
		}
		carried := filepath.Join(u.Home, ".claude/.claude.json")
		var state struct{ McpServers map[string]any }
		data, err := os.ReadFile(carried)
		if err == nil {
			err = json.Unmarshal(data, &state)
		}
		if err != nil || state.McpServers["mine"] == nil || state.McpServers["more"] == nil {
			t.Errorf("%s: %v, %q", carried, err, data)
		}
		if st, err := os.Stat(carried); err != nil || int(st.Sys().(*syscall.Stat_t).Uid) != u.UID || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", carried, st, err)
		}
		if data, _ := os.ReadFile(filepath.Join(u.Home, ".claude.json")); string(data) != own {
			t.Errorf("the user's own file is now %q", data)
		}
	})
}

// The instruction file shows the user's text and the note, is read-only, and is
// untouched on the host.
func TestInstructionFile(t *testing.T) {
	modes(t, func(t *testing.T, u user) {
		for _, f := range []string{".claude/CLAUDE.md", ".codex/AGENTS.md", ".gemini/GEMINI.md"} {
			u.Write(f, "be kind\n")
			out := u.sandbox(t, "bash", "-c", `cat ~/"$1"; echo more >>~/"$1" && echo WRITTEN; rm -f ~/"$1" && echo REMOVED; mv ~/"$1" ~/"$1".x && echo MOVED; true`, "x", f)
			for _, want := range []string{"be kind\n", "agent-sandbox", u.Project, "EXTRA_WRITABLE_PATHS"} {
				if !strings.Contains(out, want) {
					t.Errorf("%s lacks %q: %q", f, want, out)
				}
			}
			for _, bad := range []string{"WRITTEN", "REMOVED", "MOVED"} {
				if strings.Contains(out, bad) {
					t.Errorf("%s: %s", f, bad)
				}
			}
			if data, _ := os.ReadFile(filepath.Join(u.Home, f)); string(data) != "be kind\n" {
				t.Errorf("%s on the host: %q", f, data)
			}
		}
	})
}

// A warning where the agent that is started loses its credentials and is not
// logged in; none otherwise.
func TestCredentialWarning(t *testing.T) {
	u := newUser(t)
	run := func(agent string) string {
		r := harness.Finish(t, u.Command("agent-sandbox", "--", agent, "--version"))
		if r.Code != 0 {
			t.Fatalf("exit %d: %s", r.Code, r.Stderr)
		}
		return r.Stderr
	}
	u.Env = append(u.Env, "ANTHROPIC_AUTH_TOKEN=hunter2", "OPENAI_API_KEY=hunter2")
	if e := run("claude"); !strings.Contains(e, "ANTHROPIC_AUTH_TOKEN") || strings.Contains(e, "hunter2") {
		t.Errorf("%q", e)
	}
	if e := run("codex"); strings.Contains(e, "may not be logged in") {
		t.Errorf("OPENAI_API_KEY is allowed: %q", e)
	}
	u.Config("SUPPRESS_AGENT_WARNINGS=(claude)\n")
	if e := run("claude"); strings.Contains(e, "may not be logged in") {
		t.Errorf("suppressed: %q", e)
	}
	u.Config("")
	u.Write(".claude/.credentials.json", "{}")
	if e := run("claude"); strings.Contains(e, "may not be logged in") {
		t.Errorf("logged in: %q", e)
	}
}
