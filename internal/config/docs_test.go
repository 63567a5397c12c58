package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// facts is the line that the man page has below the name of a variable.
func (v Var) facts() string {
	var f []string
	switch v.Type {
	case Array:
		f = append(f, "list"+map[Base]string{Absolute: " of absolute paths", Home: " of paths below $HOME", Project: " of paths below the project",
			Device: " of globs below /dev"}[v.Paths])
	case Bool:
		f = append(f, "boolean")
	case Enum:
		f = append(f, "one of "+strings.Join(v.Values, ", "))
	case Integer:
		f = append(f, "whole number")
		if len(v.Default) == 0 {
			f[0] += " or empty"
		}
	}
	if v.Type != Array {
		f = append(f, "default "+strings.Join(append(v.Default, "empty")[:1], ""))
	}
	switch {
	case v.Name == "HOME_READONLY":
		f = append(f, "the administrator's entries stay")
	case v.Name == "NETWORK_BLOCKLIST_EXCEPT":
		f = append(f, "no exceptions to the administrator's blocks")
	case v.Rule == Adds && v.Type == Array:
		f = append(f, "adds")
	case v.Rule != Adds:
		f = append(f, map[Rule]string{Pinned: "pinned", HardenOnly: "harden-only", Narrows: "narrows only", AdminOnly: "administrator only"}[v.Rule])
	}
	if v.Env {
		f = append(f, "environment")
	}
	f = append(f, map[Reload]string{Live: "live", Launch: "launch", Immediate: "every command"}[v.Reload])
	return strings.Join(f, "; ")
}

// The man page has every variable, in order, with type, default, rule and reload
// as the table has them, a text, and every element of a default.
func TestManPageHasEveryVariable(t *testing.T) {
	_, section, ok := strings.Cut(read(t, "../../man/agent-sandbox.conf.5"), "\n.Sh VARIABLES\n")
	section, _, _ = strings.Cut(section, "\n.Sh ")
	items := strings.Split(section, "\n.It Ev ")[1:]
	if !ok || len(items) != len(Vars) {
		t.Fatalf("%d variables in the man page, %d in the table", len(items), len(Vars))
	}
	for i, v := range Vars {
		lines := strings.Split(items[i], "\n")
		if lines[0] != v.Name {
			t.Fatalf("item %d is %s, want %s", i, lines[0], v.Name)
		}
		if want := ".Em " + v.facts(); lines[1] != want {
			t.Errorf("%s:\n have %s\n want %s", v.Name, lines[1], want)
		}
		if len(lines) < 4 {
			t.Errorf("%s: no text", v.Name)
		}
		if v.Type == Array {
			words := strings.Fields(strings.ReplaceAll(items[i], `\&`, ""))
			for _, d := range v.Default {
				if !slices.Contains(words, d) {
					t.Errorf("%s: the default %s is not in the man page", v.Name, d)
				}
			}
		}
	}
}

var example = regexp.MustCompile(`(?m)^#([A-Z_]+)\+?=.*$`)

// The example has every variable that a user may set. With every # taken away it
// loads without a warning, and its scalars are the defaults.
func TestExample(t *testing.T) {
	text := read(t, "../../share/sandbox.conf.example")
	var have []string
	for _, m := range example.FindAllStringSubmatch(text, -1) {
		have = append(have, m[1])
	}
	for _, v := range Vars {
		n := len(slices.DeleteFunc(slices.Clone(have), func(h string) bool { return h != v.Name }))
		if want := map[bool]int{true: 0, false: 1}[v.Rule == AdminOnly]; n != want {
			t.Errorf("%s: %d times in the example, want %d", v.Name, n, want)
		}
	}
	h := newHome(t)
	h.write("sandbox.conf", text)
	h.load().quiet(t)
	h.write("sandbox.conf", example.ReplaceAllStringFunc(text, func(l string) string { return l[1:] }))
	r := h.load()
	r.quiet(t)
	for _, v := range Vars {
		if v.Type != Array && v.Name != "SANDBOX_NPROC_LIMIT" && r.Settings.Scalar(v.Name) != v.Default[0] {
			t.Errorf("%s is %s in the example, the default is %s", v.Name, r.Settings.Scalar(v.Name), v.Default[0])
		}
		if v.Type == Array && v.Rule != AdminOnly && len(r.Settings.Strings(v.Name)) <= len(v.Default) {
			t.Errorf("%s: the example adds nothing", v.Name)
		}
	}
}

// The skeleton for administrators has every variable that has a rule for them.
func TestAdminExample(t *testing.T) {
	text := read(t, "../../share/admin.conf.example")
	for _, v := range Vars {
		if v.Rule != Adds && !strings.Contains(text, "\n#"+v.Name) {
			t.Errorf("%s is missing", v.Name)
		}
	}
	h := newHome(t)
	h.admin(text)
	h.load().quiet(t)
	h.admin(example.ReplaceAllStringFunc(text, func(l string) string { return l[1:] }))
	r := h.load()
	r.quiet(t)
	for _, v := range Vars {
		if v.Rule != Adds && len(r.Settings.Pinned(v.Name)) == 0 && v.Rule != Narrows {
			t.Errorf("%s: nothing is pinned", v.Name)
		}
	}
}
