// Package house tests what no compiler does: who imports whom, and that usage, man
// page, completion and README of a program name the same options.
package house

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

type pkg struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./cmd/...", "./internal/...")
	cmd.Dir = harness.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); d.More(); {
		var p pkg
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, "agent-sandbox/")
		for i := range p.Imports {
			p.Imports[i] = strings.TrimPrefix(p.Imports[i], "agent-sandbox/")
		}
		all = append(all, p)
	}
	return all
}

func TestImportsGoDownward(t *testing.T) {
	// What may be imported by whom; everything else of a kind is refused.
	only := map[string][]string{
		"golang.org/x/sys/unix":  {"internal/sys"},
		"unsafe":                 {"internal/sys", "internal/nsjoin", "internal/bpf"},
		"C":                      {"internal/nsjoin"},
		"internal/nsjoin":        {"cmd/mount-repair", "internal/repair"},
		"internal/repair":        {"cmd/mount-repair"},
		"internal/bpf":           {"cmd/agent-sandbox-execd"},
		"github.com/cilium/ebpf": {"internal/bpf"},
	}
	// The bottom of the house imports nothing of it but what stands before it.
	floor := map[string][]string{
		"internal/cli": {}, "internal/sys": {}, "internal/record": {}, "internal/mountinfo": {},
	}
	for _, p := range packages(t) {
		for _, i := range p.Imports {
			if strings.HasPrefix(i, "cmd/") {
				t.Errorf("%s imports the command %s", p.ImportPath, i)
			}
			if may, ok := only[i]; ok && !slices.Contains(may, p.ImportPath) {
				t.Errorf("%s imports %s, which only %v may", p.ImportPath, i, may)
			}
			if may, ok := floor[p.ImportPath]; ok && strings.HasPrefix(i, "internal/") && !slices.Contains(may, i) {
				t.Errorf("%s imports %s: it stands below it", p.ImportPath, i)
			}
		}
	}
}

func TestOnlyAgreedDependencies(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(harness.Root(), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:require )?\s*([a-z][\w./-]+\.[\w./-]+) v\S+$`).FindAllStringSubmatch(string(data), -1) {
		if m[1] != "golang.org/x/sys" && m[1] != "github.com/cilium/ebpf" {
			t.Errorf("go.mod requires %s", m[1])
		}
	}
}

var option = regexp.MustCompile(`(^|[\s\[(|/'"])(--[a-z][a-z-]+)`)

func options(text string) []string {
	var out []string
	for _, m := range option.FindAllStringSubmatch(text, -1) {
		out = append(out, m[2])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// manOptions reads the options of a man page: .Fl -name.
func manOptions(t *testing.T, page string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(harness.Root(), "man", page))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(`Fl (?:[a-z] )?(?:, Fl )?-([a-z][a-z-]+)`).FindAllStringSubmatch(string(data), -1) {
		out = append(out, "--"+m[1])
	}
	for _, m := range regexp.MustCompile(`\| -([a-z][a-z-]+)`).FindAllStringSubmatch(string(data), -1) {
		out = append(out, "--"+m[1])
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// usage of a built program.
func usage(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command(harness.Bin(t, name), "--help").Output()
	if err != nil {
		t.Fatalf("%s --help: %v", name, err)
	}
	return string(out)
}

func TestUsageManPageAndCompletionAgree(t *testing.T) {
	for _, p := range []struct {
		name, page, completion string
		alsoInPage             []string // options of other programs that the page mentions
	}{
		{"agent-sandbox", "agent-sandbox.1", "agent-sandbox", nil},
		{"agent-sandbox-reload", "agent-sandbox-reload.1", "agent-sandbox", nil},
		{"agent-sandbox-exec", "agent-sandbox-exec.1", "", nil},
		{"agent-sandbox-execd", "agent-sandbox-execd.8", "", nil},
		{"mount-repair", "mount-repair.8", "", nil},
		{"mount-guard", "mount-guard.8", "", nil},
		{"chaperon", "chaperon.8", "", nil},
		{"chaperon-stub", "chaperon-stub.8", "", nil},
	} {
		// The example may run other programs.
		text, _, _ := strings.Cut(usage(t, p.name), "\nExample")
		want := options(text)
		page := manOptions(t, p.page)
		for _, o := range want {
			if o != "--version" && o != "--help" && !slices.Contains(page, o) {
				t.Errorf("%s --help has %s, %s has not", p.name, o, p.page)
			}
		}
		for _, o := range page {
			if o != "--version" && o != "--help" && !slices.Contains(want, o) && !slices.Contains(p.alsoInPage, o) {
				t.Errorf("%s has %s, %s --help has not", p.page, o, p.name)
			}
		}
		if p.completion != "" {
			data, err := os.ReadFile(filepath.Join(harness.Root(), "completions", p.completion))
			if err != nil {
				t.Fatal(err)
			}
			have := options(string(data))
			for _, o := range want {
				if !slices.Contains(have, o) {
					t.Errorf("%s --help has %s, its completion has not", p.name, o)
				}
			}
		}
	}
}

func TestCompletionOffersOnlyWhatExists(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(harness.Root(), "completions", "agent-sandbox"))
	if err != nil {
		t.Fatal(err)
	}
	known := append(options(usage(t, "agent-sandbox")), options(usage(t, "agent-sandbox-reload"))...)
	for _, o := range options(string(data)) {
		if !slices.Contains(known, o) {
			t.Errorf("the completion offers %s, which no program takes", o)
		}
	}
	script := `. completions/agent-sandbox
COMP_WORDS=(agent-sandbox --b); COMP_CWORD=1; _agent_sandbox; echo "${COMPREPLY[*]}"
COMP_WORDS=(agent-sandbox --backend l); COMP_CWORD=2; _agent_sandbox; echo "${COMPREPLY[*]}"
COMP_WORDS=(agent-sandbox reload --f); COMP_CWORD=2; _agent_sandbox; echo "${COMPREPLY[*]}"
COMP_WORDS=(agent-sandbox sessi); COMP_CWORD=1; _agent_sandbox; echo "${COMPREPLY[*]}"`
	cmd := exec.Command("bash", "--norc", "-c", script)
	cmd.Dir = harness.Root()
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "--backend\nlandlock\n--force-detach\nsessions\n" {
		t.Errorf("%v: %q", err, out)
	}
}

// README and docs name only options that some program has.
func TestDocumentsNameOnlyOptionsThatExist(t *testing.T) {
	var known []string
	for _, p := range []string{"agent-sandbox", "agent-sandbox-reload", "agent-sandbox-exec", "agent-sandbox-execd", "mount-repair", "mount-guard"} {
		known = append(known, options(usage(t, p))...)
	}
	// Options of others that the text speaks of.
	known = append(known, "--as-pid-1", "--new-session", "--args", "--user", "--die-with-parent", "--block-fd", "--fail-on", "--dev")
	text, err := os.ReadFile(filepath.Join(harness.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options(string(text)) {
		if !slices.Contains(known, o) {
			t.Errorf("README.md names %s, which no program takes", o)
		}
	}
}

func TestEveryProgramAnswersHelpAndVersion(t *testing.T) {
	version, err := os.ReadFile(filepath.Join(harness.Root(), "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(filepath.Join(harness.Root(), "cmd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		bin := harness.Bin(t, e.Name())
		if u := usage(t, e.Name()); !strings.HasPrefix(u, "usage: ") || !strings.Contains(u, "\nExample") {
			t.Errorf("%s --help: %q", e.Name(), u)
		}
		out, err := exec.Command(bin, "--version").Output()
		if err != nil || string(out) != "agent-sandbox "+strings.TrimSpace(string(version))+"\n" {
			t.Errorf("%s --version: %v, %q", e.Name(), err, out)
		}
		out, err = exec.Command("file", "-b", bin).Output()
		if err == nil && !strings.Contains(string(out), "statically linked") {
			t.Errorf("%s is not static: %s", e.Name(), out)
		}
	}
}

func TestExitStatusesAreDocumented(t *testing.T) {
	entries, _ := os.ReadDir(filepath.Join(harness.Root(), "cmd"))
	table, err := os.ReadFile(filepath.Join(harness.Root(), "docs", "exit-status.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.Contains(string(table), "`"+e.Name()+"`") {
			t.Errorf("docs/exit-status.md does not have %s", e.Name())
		}
		for _, section := range []string{"1", "8"} {
			page, err := os.ReadFile(filepath.Join(harness.Root(), "man", e.Name()+"."+section))
			if err == nil && !strings.Contains(string(page), ".Sh EXIT STATUS") {
				t.Errorf("%s.%s has no EXIT STATUS", e.Name(), section)
			}
		}
	}
}

func TestMain(m *testing.M) { harness.Main(m) }
