// Package agents starts the real agents of the npm registry in sessions: they
// run, and save their own state where their user finds it afterwards.
package agents

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// install puts the agents where every session sees them and returns the folder of
// their programs. They are fetched once, into .cache/npm.
func install(t *testing.T) string {
	t.Helper()
	cache := filepath.Join(harness.Root(), ".cache/npm")
	if out, err := exec.Command(filepath.Join(harness.Root(), "test/agents-install"), cache).CombinedOutput(); err != nil {
		harness.Need(t, false, "the npm registry: "+string(out))
	}
	dir, err := os.MkdirTemp("/opt", "asb-npm.")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	if exec.Command("cp", "-al", cache+"/.", dir).Run() != nil {
		if out, err := exec.Command("cp", "-a", cache+"/.", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir + "/node_modules/.bin"
}

func TestAgents(t *testing.T) {
	path := install(t)
	for _, a := range []struct {
		name  string
		modes string
		save  []string // a command with which it saves state, without a network
		state string   // where
	}{
		{"claude", "restricted tmpwrite read write", []string{"mcp", "add", "x", "--", "true"}, ".claude/.claude.json"},
		{"codex", "restricted tmpwrite read write", []string{"mcp", "add", "x", "--", "true"}, ".codex/config.toml"},
		{"gemini", "tmpwrite", []string{"mcp", "add", "-s", "user", "x", "true"}, ".gemini/settings.json"},
	} {
		for i, mode := range strings.Fields(a.modes) {
			t.Run(a.name+" "+mode, func(t *testing.T) {
				u := harness.NewUser(t)
				u.Write(".claude.json", `{"mine": "kept"}`)
				u.Write(".codex/AGENTS.md", "my own words\n")
				run := func(args ...string) harness.Result {
					c := u.Command("agent-sandbox", append([]string{a.name}, args...)...)
					c.Env = append(c.Env, "HOME_ACCESS="+mode)
					for i, e := range c.Env {
						if p, ok := strings.CutPrefix(e, "PATH="); ok {
							c.Env[i] = "PATH=" + path + ":" + p
						}
					}
					r := harness.Finish(t, c)
					if r.Code != 0 {
						t.Fatalf("%s %q: exit %d\n%s%s", a.name, args, r.Code, r.Stdout, r.Stderr)
					}
					return r
				}
				if i == 0 {
					if r := run("--version"); !strings.ContainsAny(r.Stdout, "0123456789") {
						t.Errorf("--version prints %q", r.Stdout)
					}
					if r := run("--help"); !strings.Contains(strings.ToLower(r.Stdout+r.Stderr), "usage") {
						t.Errorf("--help prints %q", r.Stdout)
					}
				}
				run(a.save...)
				data, err := os.ReadFile(filepath.Join(u.Home, a.state))
				if err != nil || !strings.Contains(string(data), "x") {
					t.Errorf("what it saved is not in ~/%s: %q, %v", a.state, data, err)
				}
				if a.name == "claude" {
					if !strings.Contains(string(data), `"mine"`) {
						t.Errorf("the user's ~/.claude.json was not carried over: %s", data)
					}
					if own, _ := os.ReadFile(u.Home + "/.claude.json"); string(own) != `{"mine": "kept"}` {
						t.Errorf("~/.claude.json was changed: %s", own)
					}
				}
				if own, _ := os.ReadFile(u.Home + "/.codex/AGENTS.md"); string(own) != "my own words\n" {
					t.Errorf("the user's instructions were changed: %q", own)
				}
			})
		}
	}
}
