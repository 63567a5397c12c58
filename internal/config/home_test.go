package config

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// home is the configuration folder of a test, and what the load is asked with.
type home struct {
	t       testing.TB
	dir     string
	project string
	env     map[string]string
	req     Request
}

func newHome(t testing.TB) *home {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &home{t: t, dir: dir, project: filepath.Join(dir, "proj"), env: map[string]string{}}
	if err := os.Mkdir(h.project, 0o755); err != nil {
		t.Fatal(err)
	}
	h.req = Request{Home: dir, PasswdHome: dir, User: "tester", UID: os.Getuid(), ProjectDir: h.project, WorkDir: dir,
		Getenv: func(n string) string { return h.env[n] }, AgentsDir: "../../share/agents"}
	return h
}

func (h *home) request() Request { return h.req }

// conf is the path of a file in the configuration folder.
func (h *home) conf(name string) string {
	return filepath.Join(h.dir, ".config", "agent-sandbox", name)
}

func (h *home) write(name, text string) {
	h.t.Helper()
	writeFile(h.t, h.conf(name), text)
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// admin makes an admin layer for this test. The folder lies where every folder
// above belongs to root.
func (h *home) admin(text string) string {
	h.t.Helper()
	dir := adminDir(h.t)
	writeFile(h.t, filepath.Join(dir, "sandbox.conf"), text)
	return filepath.Join(dir, "sandbox.conf")
}

func adminDir(t testing.TB) string {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("/opt", "asb-admin.")
	if err != nil {
		t.Fatal(err)
	}
	os.Chmod(dir, 0o755)
	was := AdminDir
	AdminDir = dir
	t.Cleanup(func() { AdminDir = was; os.RemoveAll(dir) })
	return dir
}

func (h *home) load() *Result {
	h.t.Helper()
	r, err := Load(context.Background(), h.req)
	if err != nil {
		h.t.Fatalf("Load: %v", err)
	}
	return r
}

// fails loads and wants an error that holds every word.
func (h *home) fails(words ...string) error {
	h.t.Helper()
	_, err := Load(context.Background(), h.req)
	if err == nil {
		h.t.Fatalf("Load succeeded, want an error with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			h.t.Errorf("Load: %v, want %q in it", err, w)
		}
	}
	return err
}

// warned wants one warning that holds every word.
func (r *Result) warned(t testing.TB, words ...string) {
	t.Helper()
	if !slices.ContainsFunc(r.Warnings, func(w string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(w, word) })
	}) {
		t.Errorf("no warning with %q in %q", words, r.Warnings)
	}
}

func (r *Result) list(t testing.TB, name string, want ...string) {
	t.Helper()
	if got := r.Settings.Strings(name); !slices.Equal(got, want) {
		t.Errorf("%s = %q, want %q", name, got, want)
	}
}

func (r *Result) quiet(t testing.TB) {
	t.Helper()
	if len(r.Warnings) > 0 {
		t.Errorf("warnings: %q", r.Warnings)
	}
}
