// Package backends runs the same attacks on every backend and compares what comes
// of them with the table of docs/backends.md, which it reads.
package backends

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"agent-sandbox/internal/landlock"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// A cell says whether an attack fails, on kernels that have landlock version abi.
type cell struct {
	holds bool
	abi   int
}

type table struct {
	keys     []string
	cells    map[string]map[string]cell   // key, backend
	warnings map[string]map[string]string // key, backend
}

var columns = []string{"bwrap", "firejail", "landlock"}

// backends are those that are tried: all, or those of the variable, for machines that
// lack one.
var backends = columns

func init() {
	if v := os.Getenv("ASB_BACKENDS"); v != "" {
		backends = strings.Fields(v)
	}
}

var yes = regexp.MustCompile(`^yes(?: \((\d+)\))?$`)

// readTable takes both tables of the document apart.
func readTable(t *testing.T) table {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(harness.Root(), "docs/backends.md"))
	if err != nil {
		t.Fatal(err)
	}
	tab := table{cells: map[string]map[string]cell{}, warnings: map[string]map[string]string{}}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---") || strings.HasPrefix(line, "| key ") {
			continue
		}
		f := strings.Split(strings.Trim(line, "| "), " | ")
		switch len(f) {
		case 5:
			row := map[string]cell{}
			for i, b := range columns {
				c := cell{}
				if m := yes.FindStringSubmatch(f[2+i]); m != nil {
					c.holds = true
					c.abi, _ = strconv.Atoi(m[1])
				} else if f[2+i] != "no" {
					t.Fatalf("cell %q of %s", f[2+i], f[0])
				}
				row[b] = c
			}
			tab.keys = append(tab.keys, f[0])
			tab.cells[f[0]] = row
		case 3:
			if tab.warnings[f[0]] == nil {
				tab.warnings[f[0]] = map[string]string{}
			}
			tab.warnings[f[0]][f[1]] = strings.Trim(f[2], "`")
		default:
			t.Fatalf("row %q", line)
		}
	}
	return tab
}

// TestTableIsWhole: each row has an attack and each attack a row; a warning belongs
// to a cell that can be `no`, and such a cell has one.
func TestTableIsWhole(t *testing.T) {
	tab := readTable(t)
	for _, key := range tab.keys {
		if attacks[key] == nil {
			t.Errorf("row %s has no attack", key)
		}
		for b, c := range tab.cells[key] {
			if _, warned := tab.warnings[key][b]; warned != (!c.holds || c.abi > 0) {
				t.Errorf("row %s, %s: warning listed: %t", key, b, warned)
			}
		}
	}
	for key := range attacks {
		if tab.cells[key] == nil {
			t.Errorf("attack %s has no row", key)
		}
	}
}

// TestTable tries every attack on every backend.
func TestTable(t *testing.T) {
	tab := readTable(t)
	abi, err := landlock.ABI()
	harness.Need(t, err == nil, "no landlock here")
	w := newWorld(t)
	for _, key := range tab.keys {
		t.Run(key, func(t *testing.T) {
			for _, b := range backends {
				t.Run(b, func(t *testing.T) {
					c := tab.cells[key][b]
					holds := c.holds && abi >= c.abi
					got, stderr := w.try(t, b, attacks[key])
					if got != holds {
						t.Errorf("the attack fails: %t, the table says %t\n%s", got, holds, stderr)
					}
					if warning := tab.warnings[key][b]; !holds && !strings.Contains(stderr, warning) {
						t.Errorf("no warning with %q:\n%s", warning, stderr)
					}
				})
			}
			w.control(t, attacks[key])
		})
	}
}
