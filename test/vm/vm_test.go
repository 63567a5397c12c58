// Package vm runs the tests that need a machine of their own: each folder below
// suites is booted once, and each name in its list is a subtest here. Those of long/ have
// higher counts and are run with LONG=1 only.
package vm

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

func TestSuites(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "building the guest needs root")
	for _, tool := range []string{"qemu-system-x86_64", "debootstrap", "debugfs"} {
		_, err := exec.LookPath(tool)
		harness.Need(t, err == nil, tool+" is not installed: run make deps")
	}
	lists, err := filepath.Glob("suites/*/expect")
	if err != nil || len(lists) == 0 {
		t.Fatalf("no suite found: %v", err)
	}
	if os.Getenv("LONG") == "1" {
		long, err := filepath.Glob("long/*/expect")
		if err != nil || len(long) == 0 {
			t.Fatalf("no long suite found: %v", err)
		}
		lists = append(lists, long...)
	}
	for _, list := range lists {
		dir := filepath.Dir(list)
		t.Run(filepath.Base(dir), func(t *testing.T) {
			t.Parallel() // most have one processor, so two fill a small machine
			suite(t, dir)
		})
	}
}

// suite builds, boots and judges one suite.
func suite(t *testing.T, dir string) {
	tmp, err := os.MkdirTemp("", "vm-suite.")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)

	build := exec.Command(filepath.Join("test/vm", dir, "build"), tmp)
	build.Dir = harness.Root()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}

	// What kernel and systemd say is of interest where something fails.
	console := filepath.Join(t.TempDir(), "console")
	defer func() {
		if said, err := os.ReadFile(console); err == nil && t.Failed() {
			t.Logf("the console ended with:\n%s", said[max(0, len(said)-8000):])
		}
	}()
	options, _ := os.ReadFile(filepath.Join(dir, "options"))
	args := append(strings.Fields(string(options)), "--console", console, tmp)
	run := exec.Command("./run", args...)
	out, runErr := run.CombinedOutput()
	t.Logf("run %s\n%s", strings.Join(args, " "), out)

	results := filepath.Join(tmp, "out/results")
	if _, err := os.Stat(results); err != nil {
		t.Fatalf("the machine left no results: %v", runErr)
	}
	judged, err := exec.Command("./expect", filepath.Join(dir, "expect"), results).Output()
	bad := false
	for s := bufio.NewScanner(bytes.NewReader(judged)); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "ok "); ok {
			t.Run(name, func(*testing.T) {})
			continue
		}
		bad = true
		name, why, _ := strings.Cut(strings.TrimPrefix(s.Text(), "not ok "), ": ")
		t.Run(name, func(t *testing.T) { t.Error(why) })
	}
	if err != nil && !bad {
		t.Errorf("expect: %v", err)
	}
	if runErr != nil && !bad {
		t.Errorf("main: %v", runErr)
	}
}

// A judge that lets something through would make every suite worthless.
func TestExpect(t *testing.T) {
	for _, c := range []struct{ name, list, results, want string }{
		{"all ok", "a\nb\n", "ok a\nnoise\nok b\n", ""},
		{"comments", "# x\na # why\n\n", "ok a\n", ""},
		{"missing", "a\nb\n", "ok a\n", "not ok b: no result"},
		{"failed", "a\n", "not ok a: broken: badly\n", "not ok a: broken: badly"},
		{"failed without reason", "a\n", "not ok a\n", "not ok a: "},
		{"ok after failed", "a\n", "not ok a: x\nok a\n", "not ok a: x"},
		{"failed after ok", "a\n", "ok a\nnot ok a: x\n", "not ok a: x"},
		{"unlisted", "a\n", "ok a\nok b\n", "not ok b: not in the list"},
		{"empty list", "", "ok a\n", "not ok list: it names no test"},
		{"no results", "a\n", "", "not ok a: no result"},
	} {
		t.Run(c.name, func(t *testing.T) {
			list, results := filepath.Join(t.TempDir(), "list"), filepath.Join(t.TempDir(), "results")
			if err := os.WriteFile(list, []byte(c.list), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(results, []byte(c.results), 0o644); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command("./expect", list, results).Output()
			if (err == nil) != (c.want == "") {
				t.Errorf("status %v, output %q", err, out)
			}
			if c.want != "" && !strings.Contains(string(out), c.want) {
				t.Errorf("no %q in %q", c.want, out)
			}
		})
	}
}

// The runner itself: status, what comes back after a time limit, and no pass for
// a machine that never reached main.
func TestRunner(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "building the guest needs root")
	for _, c := range []struct {
		name, main, left string
		options          []string
		status           int
	}{
		{"status of main", "echo seen; echo left >out/f; exit 7", "left\n", nil, 7},
		{"time limit", "echo seen; echo left >out/f; sync; sleep 1000", "left\n", []string{"--timeout", "40"}, 125},
		{"crash", "echo seen; echo left >out/f; sync; echo c >/proc/sysrq-trigger", "left\n", nil, 125},
		{"systemd", "systemctl is-system-running --wait >out/f; echo seen", "running\n", []string{"--systemd"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "main"), []byte("#!/bin/sh\n"+c.main+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("./run", append(c.options, dir)...)
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.Output()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("status %d, not %d (%v); stderr %s", got, c.status, err, said.Bytes())
			}
			if string(out) != "seen\n" {
				t.Errorf("standard output %q", out)
			}
			if left, _ := os.ReadFile(filepath.Join(dir, "out/f")); string(left) != c.left {
				t.Errorf("out/f is %q, not %q", left, c.left)
			}
		})
	}
}
