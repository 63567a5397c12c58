// Package config loads the configuration of a session: five layers, of which
// three are bash files sourced in a contained child, validated by type and
// narrowed by the admin's rules. See agent-sandbox.conf(5).
package config

// Type of a variable.
type Type int

const (
	Array   Type = iota // list of strings, order kept
	Bool                // "true" or "false" after validation
	Enum                // one of Var.Values
	Integer             // decimal, or empty
)

// Rule is what the admin layer means for later layers.
type Rule int

const (
	Adds       Rule = iota // no rule: later layers add, or set
	Pinned                 // entries of the admin cannot be removed
	HardenOnly             // a scalar can only be made stricter: later in Var.Values is stricter
	Narrows                // ALLOWED_PROJECT_PARENTS: entries must lie below an admin's entry
	AdminOnly              // only the admin layer sets it: DENIED_WRITABLE_PATHS
)

// Reload is what a changed value means for a running session.
type Reload int

const (
	Live      Reload = iota // its mounts are added and revoked
	Launch                  // needs a restart: is a `setting` line of the session record
	Immediate               // read anew by every command, no part of a session
)

// Var describes one variable. The table Vars is the one place where a variable
// is listed: validation, `config`, the record, and the test of the man page read it.
type Var struct {
	Name    string
	Type    Type
	Values  []string // of an Enum, and of a Bool with HardenOnly: loosest first
	Default []string // a scalar has one element
	Rule    Rule
	Reload  Reload
	Env     bool // layer 5: the environment may override the scalar
	Secret  bool // values may hold secrets: a digest is recorded and nothing is printed
	Paths   Base // entries are paths, relative to what
}

// Base says what relative path entries of an array are relative to.
type Base int

const (
	NoPaths  Base = iota
	Absolute      // must be absolute, `~` and variables are expanded by bash
	Home          // relative to $HOME (an absolute path below $HOME is taken too)
	Project       // relative to the project dir
)

// Origin is where a value came from: a file and, where bash can tell, a line.
type Origin struct {
	Layer string // "default", "admin", "user", "project", "environment", "agent"
	File  string
	Line  int // 0: not known
}

// Entry is one value of an array, or the value of a scalar.
type Entry struct {
	Text   string
	Origin Origin
}

// Settings are the validated values of all variables. Use the accessors; a name
// that is not in Vars panics, since it is a mistake in the program.
type Settings struct {
	values map[string][]Entry
}

// Entries returns the elements of an array with their origins.
func (s *Settings) Entries(name string) []Entry {
	mustVar(name)
	return s.values[name]
}

// Strings returns the elements of an array.
func (s *Settings) Strings(name string) []string {
	var out []string
	for _, e := range s.Entries(name) {
		out = append(out, e.Text)
	}
	return out
}

// Scalar returns the value of an Enum or Integer.
func (s *Settings) Scalar(name string) string {
	if e := s.Entries(name); len(e) > 0 {
		return e[0].Text
	}
	return ""
}

// Bool returns the value of a Bool.
func (s *Settings) Bool(name string) bool { return s.Scalar(name) == "true" }

// Set replaces the value of a variable; reload uses it to keep launch-only
// settings as the session's record has them.
func (s *Settings) Set(name string, entries []Entry) {
	mustVar(name)
	if s.values == nil {
		s.values = map[string][]Entry{}
	}
	s.values[name] = entries
}

// Lookup finds a variable by name.
func Lookup(name string) (Var, bool) {
	for _, v := range Vars {
		if v.Name == name {
			return v, true
		}
	}
	return Var{}, false
}

func mustVar(name string) {
	if _, ok := Lookup(name); !ok {
		panic("config: no variable " + name)
	}
}

// Vars lists every variable, in the order in which `agent-sandbox config` and the
// record have them. Filled from config-reference.md.
var Vars []Var
