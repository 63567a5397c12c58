package slurm

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// An arity says whether a flag takes a value.
type arity int

const (
	none      arity = iota
	required        // --x=v, --x v, -xv, -x v
	optional        // --x, --x=v, -x, -xv
	following       // optional, or the next word where that is no flag, as squeue has it
)

// A flag is one that a Slurm command knows. What is in no table is refused like
// what is in one with a reason: tables name refused flags for the message only.
type flag struct {
	long  string
	short byte
	arg   arity
	// check says what is wrong with a value; nil only where none is taken.
	check func(value string) error
	// raw: the value is text of many lines, not a word.
	raw bool
	// refused is why the flag is never passed on, empty for an allowed one.
	refused string
	// as is the flag that this one is another name of.
	as string
}

// A table holds the flags of one command. Names are exact: the abbreviations
// that getopt_long(3) completes are refused, since what they stand for changes
// with the version of Slurm.
type table []flag

func (t table) byLong(name string) *flag {
	i := slices.IndexFunc(t, func(f flag) bool { return f.long == name })
	if i < 0 {
		return nil
	}
	return &t[i]
}

func (t table) byShort(c byte) *flag {
	i := slices.IndexFunc(t, func(f flag) bool { return f.short == c && c != 0 })
	if i < 0 {
		return nil
	}
	return &t[i]
}

// A set is what was given on one command line: flags by their canonical long
// name, the last of a name counting, in the order they first came.
type set struct {
	names  []string
	values map[string]*string // nil: given without a value
}

func (s *set) put(name string, value *string) {
	if s.values == nil {
		s.values = map[string]*string{}
	}
	if _, ok := s.values[name]; !ok {
		s.names = append(s.names, name)
	}
	s.values[name] = value
}

func (s *set) has(name string) bool { _, ok := s.values[name]; return ok }

// get is a flag's value, empty where it was not given or has none.
func (s *set) get(name string) string {
	if v := s.values[name]; v != nil {
		return *v
	}
	return ""
}

// take is get, and the flag is not passed on.
func (s *set) take(name string) (value string, given bool) {
	value, given = s.get(name), s.has(name)
	s.drop(name)
	return value, given
}

func (s *set) drop(name string) {
	delete(s.values, name)
	s.names = slices.DeleteFunc(s.names, func(n string) bool { return n == name })
}

// merge adds what is not given in s.
func (s *set) merge(less *set) {
	for _, n := range less.names {
		if !s.has(n) {
			s.put(n, less.values[n])
		}
	}
}

// args are the flags as the real command gets them: never the client's spelling.
func (s *set) args() []string {
	var out []string
	for _, n := range s.names {
		if v := s.values[n]; v != nil {
			out = append(out, "--"+n+"="+*v)
		} else {
			out = append(out, "--"+n)
		}
	}
	return out
}

// A refusal is a client's error, with a hint how to mend it.
type refusal struct{ text, hint string }

func (r *refusal) Error() string { return r.text }

func refuse(hint, format string, args ...any) error {
	return &refusal{fmt.Sprintf(format, args...), hint}
}

// quotedText is what quote makes of a client's text.
var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// reason is an error for the log, without the client's text, which the log has with
// the request, or which is a line of a script: flags of the command are left in it.
func (c *call) reason(err error) string {
	return quotedText.ReplaceAllStringFunc(err.Error(), func(q string) string {
		long, dashed := strings.CutPrefix(q[1:len(q)-1], "--")
		if dashed && tables[c.r.Command].byLong(long) != nil || len(q) == 4 && q[1] == '-' && tables[c.r.Command].byShort(q[2]) != nil {
			return q
		}
		return `"…"`
	})
}

// parse reads args as getopt_long(3) does, strictly. What is no flag is returned
// as rest; stop says that the first such word ends the flags, as in sbatch and
// srun, whose words are a command's.
func (t table) parse(args []string, stop bool) (*set, []string, error) {
	s := &set{}
	var rest []string
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		switch {
		case a == "--":
			return s, append(rest, args...), nil
		case strings.HasPrefix(a, "--"):
			name, value, inline := strings.Cut(a[2:], "=")
			f := t.byLong(name)
			shown := "--" + name
			if f == nil {
				return nil, nil, t.unknown(name)
			}
			var v *string
			if inline {
				v = &value
			}
			var err error
			if v == nil {
				if v, args, err = f.next(shown, args); err != nil {
					return nil, nil, err
				}
			}
			if err := t.add(s, f, shown, v); err != nil {
				return nil, nil, err
			}
		case len(a) > 1 && a[0] == '-':
			for i := 1; i < len(a); i++ {
				f := t.byShort(a[i])
				shown := "-" + a[i:i+1]
				if f == nil {
					return nil, nil, refuse("write flags with their long names, as the command's man page has them", "there is no option %s in the sandbox", quote(shown))
				}
				var v *string
				if tail := a[i+1:]; tail != "" && f.arg != none {
					v = &tail
					i = len(a)
				} else if tail == "" {
					var err error
					if v, args, err = f.next(shown, args); err != nil {
						return nil, nil, err
					}
				}
				if err := t.add(s, f, shown, v); err != nil {
					return nil, nil, err
				}
			}
		default:
			rest = append(rest, a)
			if stop {
				return s, append(rest, args...), nil
			}
		}
	}
	return s, rest, nil
}

// next takes the value of a flag from the words after it, where it has one there.
func (f *flag) next(shown string, args []string) (v *string, rest []string, err error) {
	switch {
	case f.refused != "" || f.arg == none || f.arg == optional:
		return nil, args, nil
	case f.arg == required && len(args) == 0:
		return nil, nil, refuse("", "option %s needs a value", quote(shown))
	case f.arg == following && (len(args) == 0 || strings.HasPrefix(args[0], "-")):
		return nil, args, nil
	}
	return &args[0], args[1:], nil
}

func (t table) add(s *set, f *flag, shown string, v *string) error {
	switch {
	case f.refused != "":
		return refuse("leave it out", "option %s is not allowed in the sandbox: %s", quote(shown), f.refused)
	case f.arg == none && v != nil:
		return refuse("", "option %s takes no value", quote(shown))
	case v != nil && !f.raw:
		if err := plain(*v); err != nil {
			return refuse("", "option %s: %v", quote(shown), err)
		}
		if err := f.check(*v); err != nil {
			return refuse("", "option %s: %v", quote(shown), err)
		}
	}
	name := f.long
	if f.as != "" {
		name = f.as
	}
	s.put(name, v)
	return nil
}

// unknown names the flag that was meant, where only one begins like this.
func (t table) unknown(name string) error {
	var full []string
	for _, f := range t {
		if name != "" && strings.HasPrefix(f.long, name) {
			full = append(full, "--"+f.long)
		}
	}
	hint := "the flags that work in the sandbox are in the manual page chaperon(8)"
	if len(full) > 0 {
		hint = "write the flag in full: " + strings.Join(full, ", ")
	}
	return refuse(hint, "there is no option %s in the sandbox", quote("--"+name))
}
