package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
)

var boolWords = map[string]string{
	"true": "true", "yes": "true", "on": "true", "1": "true",
	"false": "false", "no": "false", "off": "false", "0": "false",
}

// scalar checks the value of a scalar and returns its one spelling.
func (v Var) scalar(raw string) (string, error) {
	switch v.Type {
	case Bool:
		if b, ok := boolWords[strings.ToLower(raw)]; ok {
			return b, nil
		}
		return "", fmt.Errorf("%s is not one of true, false (yes, no, on, off, 1, 0)", cli.Quote(raw))
	case Enum:
		if slices.Contains(v.Values, raw) {
			return raw, nil
		}
		return "", fmt.Errorf("%s is not one of %s", cli.Quote(raw), strings.Join(v.Values, ", "))
	case Integer:
		if raw == "" && len(v.Default) == 0 {
			return "", nil
		}
		// Ten digits are beyond any number of processes or days.
		n, err := strconv.ParseUint(raw, 10, 31)
		if err != nil || n == 0 {
			return "", fmt.Errorf("%s is not a whole number above 0", cli.Quote(raw))
		}
		return strconv.FormatUint(n, 10), nil
	}
	panic("config: scalar of a list " + v.Name)
}

// entry checks an element of an array. It returns the element in its one
// spelling, or why it is to be left out, or why the configuration is refused.
// What is asked for must be clear where it protects: only what cannot protect
// anything is left out.
func (v Var) entry(raw string, homes []string, project string) (text, drop string, err error) {
	if raw == "" {
		return "", "", cli.WithHint(errors.New("empty entry"), "remove it; a variable that is not set expands to nothing")
	}
	switch v.Paths {
	case Absolute:
		text, err = v.absolute(raw)
		return text, "", err
	case Device:
		if !strings.HasPrefix(raw, "/dev/") || hasDotDot(raw) {
			err = fmt.Errorf("%s is not a path below /dev", cli.Quote(raw))
		}
		return raw, "", err
	case Home:
		return relative(raw, homes, "$HOME")
	case Project:
		return relative(raw, spellings(project), "the project")
	}
	switch v.Name {
	case "SANDBOX_ENV":
		// The value may be a secret: never in a message.
		name, _, ok := strings.Cut(raw, "=")
		if !ok || !record.Variable(name) {
			return "", "", cli.WithHint(errors.New("an entry is not of the form NAME=VALUE"), "write SANDBOX_ENV+=(\"NAME=VALUE\")")
		}
	case "BLOCKED_ENV_VARS", "ALLOWED_ENV_VARS", "BLOCKED_ENV_PATTERNS":
		if strings.Contains(raw, "=") {
			return "", "", fmt.Errorf("%s holds `=`, no variable's name does", cli.Quote(raw))
		}
	case "ENABLED_AGENTS", "SUPPRESS_AGENT_WARNINGS":
		if !record.Word(raw, record.Lower+record.Digits+"_-") || strings.HasPrefix(raw, "_") || strings.HasPrefix(raw, "-") {
			return "", "", fmt.Errorf("%s is no name of an agent profile", cli.Quote(raw))
		}
	}
	return raw, "", nil
}

// absolute cleans an absolute path. A path with `..` is refused: with a link
// before it, it means something else to the kernel than to a reader.
func (v Var) absolute(raw string) (string, error) {
	switch {
	case raw[0] == '~':
		return "", cli.WithHint(fmt.Errorf("%s is not absolute", cli.Quote(raw)), "a quoted ~ is not expanded: write \"$HOME/…\"")
	case raw[0] != '/':
		return "", cli.WithHint(fmt.Errorf("%s is not absolute", cli.Quote(raw)), "write the path from / on, or from \"$HOME/\"")
	case hasDotDot(raw):
		return "", cli.WithHint(fmt.Errorf("%s holds `..`", cli.Quote(raw)), "write the path without it")
	}
	text := filepath.Clean(raw)
	if text == "/" && v.Name != "ALLOWED_PROJECT_PARENTS" && v.Name != "DENIED_WRITABLE_PATHS" {
		return "", cli.WithHint(errors.New("/ as a whole cannot be an entry"), "name the folders that are meant")
	}
	return text, nil
}

// relative makes a path relative to the first of dirs that it lies below.
func relative(raw string, dirs []string, what string) (text, drop string, err error) {
	if hasDotDot(raw) {
		return "", "", cli.WithHint(fmt.Errorf("%s holds `..`", cli.Quote(raw)), "write the path without it")
	}
	if raw == "~" || strings.HasPrefix(raw, "~/") {
		return "", "", cli.WithHint(fmt.Errorf("%s begins with ~", cli.Quote(raw)), "entries are relative to %s: leave ~/ out", what)
	}
	text = filepath.Clean(raw)
	if text[0] == '/' {
		in := slices.IndexFunc(dirs, func(d string) bool { return under(text, d) })
		if in < 0 {
			return text, fmt.Sprintf("%s lies outside %s", cli.Quote(raw), what), nil
		}
		text = strings.TrimPrefix(strings.TrimPrefix(text, dirs[in]), "/")
	}
	if text == "" || text == "." {
		return "", "", cli.WithHint(fmt.Errorf("%s is %s itself", cli.Quote(raw), what), "name what lies in it; HOME_ACCESS decides on the home as a whole")
	}
	return text, "", nil
}

func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }

// under says whether p is dir or lies below it, by components.
func under(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}

func below(p string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return under(p, d) })
}

// resolve is the path with every link resolved as far as it exists; what does not
// exist stays as it is written.
func resolve(p string) string {
	p = filepath.Clean(p)
	if r, err := filepath.EvalSymlinks(p); err == nil {
		return r
	}
	// A link whose target is missing leads to where the target would be.
	if to, err := os.Readlink(p); err == nil {
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(p), to)
		}
		if filepath.Clean(to) != p {
			return resolveParent(to)
		}
	}
	return resolveParent(p)
}

func resolveParent(p string) string {
	p = filepath.Clean(p)
	dir := filepath.Dir(p)
	if dir == p {
		return p
	}
	return filepath.Join(resolve(dir), filepath.Base(p))
}
