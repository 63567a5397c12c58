// Package environ decides which environment variables reach the sandbox. The
// launcher applies it before the backend starts, so that no process in the
// sandbox, its pid 1 included, ever had a removed variable.
package environ

import (
	"slices"
	"strings"

	"agent-sandbox/internal/config"
)

// Own are the variables that tell a command of its sandbox (agent-sandbox(1)).
var Own = []string{"SANDBOX_ACTIVE", "SANDBOX_BACKEND", "SANDBOX_PROJECT_DIR", "SANDBOX_SESSION"}

// Filter splits environ ("K=V", as os.Environ has it) into what the sandbox gets
// and the names that were removed, sorted and each once.
//
// A variable is removed when BLOCKED_ENV_VARS or BLOCKED_ENV_PATTERNS has it and
// ALLOWED_ENV_VARS does not; what the admin lists in the first two is removed
// all the same. Of a name that comes twice the first counts, as for getenv(3).
// What is not of the form K=V is removed. SANDBOX_ENV is set on top, the last of
// a name counting. Variables that the launcher sets itself (Own) are left out of
// both: inside another sandbox the environment has that one's.
func Filter(environ []string, s *config.Settings) (kept, removed []string) {
	allowed := set(s.Strings("ALLOWED_ENV_VARS"))
	names, patterns := set(s.Strings("BLOCKED_ENV_VARS")), s.Strings("BLOCKED_ENV_PATTERNS")
	pinnedNames, pinnedPatterns := set(s.Pinned("BLOCKED_ENV_VARS")), s.Pinned("BLOCKED_ENV_PATTERNS")
	blocked := func(name string) bool {
		if pinnedNames[name] || matchAny(pinnedPatterns, name) {
			return true
		}
		return !allowed[name] && (names[name] || matchAny(patterns, name))
	}

	own := map[string]string{}
	var order []string
	for _, e := range s.Strings("SANDBOX_ENV") {
		name, value, _ := strings.Cut(e, "=")
		if slices.Contains(Own, name) {
			continue
		}
		if _, ok := own[name]; !ok {
			order = append(order, name)
		}
		own[name] = value
	}

	seen := map[string]bool{}
	for _, e := range environ {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || seen[name] || slices.Contains(Own, name) {
			continue
		}
		seen[name] = true
		if blocked(name) {
			removed = append(removed, name)
			continue
		}
		if _, ok := own[name]; !ok {
			kept = append(kept, e)
		}
	}
	for _, name := range order {
		kept = append(kept, name+"="+own[name])
	}
	slices.Sort(removed)
	return kept, removed
}

func set(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, e := range list {
		m[e] = true
	}
	return m
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Match(p, name) })
}

// Match says whether a pattern of BLOCKED_ENV_PATTERNS matches a name as a whole:
// `*`, `?`, `[a-z]` and `[!a-z]` as in bash, by bytes; `/i` at the end ignores
// the case of ASCII letters.
func Match(pattern, name string) bool {
	if p, ok := strings.CutSuffix(pattern, "/i"); ok {
		pattern, name = lower(p), lower(name)
	}
	// Where a star was met, the rest is tried from each later byte of the name;
	// only the last star has to be remembered.
	p, n, star, from := 0, 0, -1, 0
	for n < len(name) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, from = p, n
				p++
				continue
			}
			if next, ok := one(pattern, p, name[n]); ok {
				p, n = next, n+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		from++
		p, n = star+1, from
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// lower is s with ASCII letters in lower case; other bytes need not be UTF-8.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// one matches one byte with the pattern at p and returns where the pattern goes
// on. A bracket that is not closed is a plain byte.
func one(pattern string, p int, c byte) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '\\':
		if p+1 < len(pattern) {
			return p + 2, pattern[p+1] == c
		}
	case '[':
		i, not := p+1, false
		if i < len(pattern) && (pattern[i] == '!' || pattern[i] == '^') {
			not, i = true, i+1
		}
		hit := false
		for first := true; i < len(pattern) && (first || pattern[i] != ']'); first = false {
			lo, hi := pattern[i], pattern[i]
			if i+2 < len(pattern) && pattern[i+1] == '-' && pattern[i+2] != ']' {
				hi, i = pattern[i+2], i+2
			}
			hit = hit || lo <= c && c <= hi
			i++
		}
		if i < len(pattern) {
			return i + 1, hit != not
		}
	}
	return p + 1, pattern[p] == c
}
