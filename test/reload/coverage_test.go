package reload

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// docs/reload-coverage.md names for every promise the tests that try it: each is
// there, and each test here is named.
func TestCoverage(t *testing.T) {
	root := harness.Root()
	page, err := os.ReadFile(root + "/docs/reload-coverage.md")
	if err != nil {
		t.Fatal(err)
	}
	exists := map[string]bool{}
	for _, dir := range []string{"test/reload", "internal/reload"} {
		files, _ := filepath.Glob(root + "/" + dir + "/*_test.go")
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`).FindAllSubmatch(text, -1) {
				exists[string(m[1])] = true
			}
		}
	}
	named := map[string]bool{"TestCoverage": true}
	for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllSubmatch(page, -1) {
		named[string(m[1])] = true
	}
	sentence, tests, seen := "", 1, map[string]bool{}
	for n, line := range strings.Split(string(page), "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			if tests == 0 {
				t.Errorf("no test of %q", sentence)
			}
			sentence, tests = line[2:], 0
			if seen[sentence] {
				t.Errorf("line %d: %q is there twice", n+1, sentence)
			}
			seen[sentence] = true
		case strings.HasPrefix(line, "- "):
			name := line[2:]
			if !exists[name] {
				t.Errorf("line %d: there is no %s", n+1, name)
			}
			if sentence == "" {
				t.Errorf("line %d: %s tests no sentence", n+1, name)
			}
			named[name] = true
			tests++
		}
	}
	if tests == 0 {
		t.Errorf("no test of %q", sentence)
	}
	if len(seen) < 60 {
		t.Errorf("%d sentences", len(seen))
	}
	for name := range exists {
		if !named[name] {
			t.Errorf("%s is not on the page", name)
		}
	}
}
