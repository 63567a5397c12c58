package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"agent-sandbox/internal/agents"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
)

// finish makes Settings from the values of the layers: the agents' paths are
// added, contradictions resolved, and writable entries that the admin denies are
// dropped. It runs again after ApplyLaunch.
func (r *Result) finish() error {
	s := &Settings{values: maps.Clone(r.base.values), pinned: r.base.pinned}
	r.Settings, r.Agents = s, nil
	r.Warnings = slices.Clone(r.loading)
	dir := r.req.AgentsDir
	if dir == "" {
		dir = agents.Dir()
	}
	for _, e := range s.Entries("ENABLED_AGENTS") {
		p, err := agents.Load(dir, e.Text)
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrNotExist):
			r.warn(e.Origin, "ENABLED_AGENTS", "there is no profile %s in %s: ignored", cli.Quote(e.Text), record.Escape(dir))
			continue
		default:
			return err
		}
		r.Agents = append(r.Agents, p)
		s.add("HOME_WRITABLE", p.Writable, Origin{Layer: "agent", File: p.File})
		s.add("HOME_READONLY", p.Readonly, Origin{Layer: "agent", File: p.File})
	}
	r.contradictions()
	r.wholeHome()
	r.denied()
	return nil
}

func (r *Result) warn(o Origin, name, format string, args ...any) {
	r.Warnings = append(r.Warnings, place(o, name)+": "+fmt.Sprintf(format, args...))
}

// add appends entries that are not there yet.
func (s *Settings) add(name string, texts []string, o Origin) {
	list := slices.Clone(s.values[name])
	for _, t := range texts {
		if !slices.ContainsFunc(list, func(e Entry) bool { return e.Text == t }) {
			list = append(list, Entry{t, o})
		}
	}
	s.values[name] = list
}

// rank orders layers for entries that contradict each other: the later one says
// what holds.
func (o Origin) rank() int {
	return slices.Index([]string{"default", "agent", "admin", "user", "project", "environment"}, o.Layer)
}

// contradictions keeps an entry that is in HOME_READONLY and in HOME_WRITABLE only
// where the later layer has it; in one layer, and against the admin, read-only
// wins.
func (r *Result) contradictions() {
	s := r.Settings
	for _, w := range slices.Clone(s.values["HOME_WRITABLE"]) {
		i := slices.IndexFunc(s.values["HOME_READONLY"], func(e Entry) bool { return e.Text == w.Text })
		if i < 0 {
			continue
		}
		ro := s.values["HOME_READONLY"][i]
		drop := "HOME_READONLY"
		pinned := slices.Contains(s.Pinned("HOME_READONLY"), w.Text)
		switch {
		case pinned:
			continue // denied says so
		case w.Origin.rank() <= ro.Origin.rank():
			drop = "HOME_WRITABLE"
			if w.Origin.Layer == ro.Origin.Layer {
				r.warn(w.Origin, "HOME_WRITABLE", "%s is in HOME_READONLY too: it stays read-only", cli.Quote(w.Text))
			}
		}
		s.values[drop] = slices.DeleteFunc(slices.Clone(s.values[drop]), func(e Entry) bool { return e.Text == w.Text })
	}
}

// wholeHome warns of a home that is writable as a whole: what is not on the list of
// protected files is the agent's then.
func (r *Result) wholeHome() {
	for _, e := range r.Settings.values["EXTRA_WRITABLE_PATHS"] {
		for _, h := range r.homes {
			if p := resolve(e.Text); p == h || under(h, p) {
				r.warn(e.Origin, "EXTRA_WRITABLE_PATHS", "%s makes all of your home writable, but for what is always protected; name single folders", cli.Quote(e.Text))
			}
		}
	}
}

// denied drops writable entries that are, lie below, or resolve below what the
// admin denies: DENIED_WRITABLE_PATHS and the admin's HOME_READONLY.
func (r *Result) denied() {
	lists := r.forbidden()
	if len(lists) == 0 {
		return
	}
	s := r.Settings
	filter := func(name string, path func(string) []string) {
		s.values[name] = slices.DeleteFunc(slices.Clone(s.values[name]), func(e Entry) bool {
			for _, p := range path(e.Text) {
				for _, f := range lists {
					if below(p, f.paths) {
						r.warn(e.Origin, name, "%s: the administrator keeps %s read-only (%s): ignored", cli.Quote(e.Text), cli.Quote(f.entry.Text), f.name)
						return true
					}
				}
			}
			return false
		})
	}
	filter("EXTRA_WRITABLE_PATHS", func(t string) []string { return spellings(t) })
	filter("HOME_WRITABLE", r.inHome)
}

// inHome are all spellings of a path relative to the home.
func (r *Result) inHome(rel string) []string {
	var abs []string
	for _, h := range r.homes {
		abs = append(abs, filepath.Join(h, rel))
	}
	return spellings(abs...)
}

// forbidden is an entry of the admin that nothing writable may lie below.
type forbidden struct {
	name  string
	entry Entry
	paths []string // all its spellings
}

func (r *Result) forbidden() []forbidden {
	var out []forbidden
	for _, e := range r.Settings.Entries("DENIED_WRITABLE_PATHS") {
		out = append(out, forbidden{"DENIED_WRITABLE_PATHS", e, spellings(e.Text)})
	}
	for _, t := range r.Settings.Pinned("HOME_READONLY") {
		out = append(out, forbidden{"HOME_READONLY", Entry{Text: t}, r.inHome(t)})
	}
	return out
}

// CheckProject fails unless the project dir of the request may be one: it is
// neither `/` nor a home nor above one, lies below ALLOWED_PROJECT_PARENTS, and
// not below what the admin denies.
func (r *Result) CheckProject() error {
	dir := r.req.ProjectDir
	name := cli.Quote(dir)
	hint := "go into the folder of one project, or name it with --project-dir"
	if dir == "/" {
		return cli.WithHint(errors.New("cannot use / as the project dir: all of the system would be writable"), "%s", hint)
	}
	for _, h := range r.homes {
		switch {
		case dir == h:
			return cli.WithHint(fmt.Errorf("cannot use your home %s as the project dir: all of it would be writable", name), "%s", hint)
		case under(h, dir):
			return cli.WithHint(fmt.Errorf("cannot use %s as the project dir: your home lies below it", name), "%s", hint)
		}
	}
	paths := spellings(dir)
	for _, f := range r.forbidden() {
		for _, p := range paths {
			if below(p, f.paths) {
				return cli.WithHint(fmt.Errorf("cannot use %s as the project dir: the administrator keeps %s read-only (%s)", name, cli.Quote(f.entry.Text), f.name), "%s", hint)
			}
		}
	}
	var parents []string
	for _, e := range r.Settings.Entries("ALLOWED_PROJECT_PARENTS") {
		parents = append(parents, resolve(e.Text))
	}
	if !below(resolve(dir), parents) {
		err := fmt.Errorf("cannot use %s as the project dir: it does not lie below ALLOWED_PROJECT_PARENTS (%s)", name, record.Escape(strings.Join(parents, " ")))
		if len(r.Settings.Pinned("ALLOWED_PROJECT_PARENTS")) > 0 {
			return cli.WithHint(err, "the administrator set these; %s", hint)
		}
		return cli.WithHint(err, "ALLOWED_PROJECT_PARENTS+=(%s) in %s allows it", shellWord(dir), record.Escape(filepath.Join(r.ConfigDir, "sandbox.conf")))
	}
	return nil
}

// Setting is one `setting` line of a session record: a scalar, one element of an
// array, or `sha256:HEX` of a value that may hold a secret. Empty scalars and
// arrays have none.
type Setting struct{ Name, Value string }

// LaunchSettings are the settings that a reload cannot apply, in the order of Vars.
func (s *Settings) LaunchSettings() []Setting {
	var out []Setting
	for _, v := range Vars {
		if v.Reload != Launch {
			continue
		}
		for _, e := range s.values[v.Name] {
			if e.Text != "" {
				out = append(out, Setting{v.Name, v.shown(e.Text)})
			}
		}
	}
	return out
}

// shown is a value as records and `config` show it.
func (v Var) shown(text string) string {
	if !v.Secret {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Print writes one NAME<TAB>VALUE line per scalar and per array element, in the
// order of Vars. Of SANDBOX_ENV, which may hold secrets, the value is the name
// and a digest.
func (s *Settings) Print(w io.Writer) error {
	var b strings.Builder
	for _, v := range Vars {
		entries := s.values[v.Name]
		if len(entries) == 0 && v.Type != Array {
			entries = []Entry{{}}
		}
		for _, e := range entries {
			text := e.Text
			if v.Secret {
				name, _, _ := strings.Cut(text, "=")
				text = name + "=" + v.shown(text)
			}
			fmt.Fprintf(&b, "%s\t%s\n", v.Name, record.Escape(text))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ApplyLaunch puts the settings of a session's record in place of those that a
// reload cannot apply, and returns the names whose loaded values differ, in the
// order of Vars. What may hold a secret is compared by digest and stays as
// loaded. A record with a name or a value that no load would give is an error.
func (r *Result) ApplyLaunch(recorded []Setting) (differ []string, err error) {
	had := map[string][]string{}
	for _, s := range recorded {
		v, ok := Lookup(s.Name)
		if !ok || v.Reload != Launch {
			return nil, fmt.Errorf("setting %s: not one that a record holds", record.Escape(s.Name))
		}
		if err := v.checkRecorded(s.Value, len(had[s.Name])); err != nil {
			return nil, fmt.Errorf("setting %s: %w", s.Name, err)
		}
		had[s.Name] = append(had[s.Name], s.Value)
	}
	has := map[string][]string{}
	for _, s := range r.base.LaunchSettings() {
		has[s.Name] = append(has[s.Name], s.Value)
	}
	base := &Settings{values: maps.Clone(r.base.values), pinned: r.base.pinned}
	for _, v := range Vars {
		if v.Reload != Launch || slices.Equal(had[v.Name], has[v.Name]) {
			continue
		}
		differ = append(differ, v.Name)
		if v.Secret {
			continue
		}
		var entries []Entry
		for _, t := range had[v.Name] {
			entries = append(entries, Entry{t, Origin{Layer: "record"}})
		}
		base.values[v.Name] = entries
	}
	r.base = base
	return differ, r.finish()
}

// checkRecorded holds a recorded value to what a load gives: the one spelling of
// a valid value, and one value of a scalar.
func (v Var) checkRecorded(value string, before int) error {
	var text string
	var err error
	switch {
	case v.Secret:
		sum, ok := strings.CutPrefix(value, "sha256:")
		if raw, e := hex.DecodeString(sum); !ok || e != nil || len(raw) != sha256.Size || strings.ToLower(sum) != sum {
			return errors.New("not a digest")
		}
		return nil
	case v.Type != Array && before > 0:
		return errors.New("more than one value")
	case v.Type != Array:
		text, err = v.scalar(value)
	default:
		text, _, err = v.entry(value, nil, "")
	}
	if err == nil && text != value {
		err = fmt.Errorf("%s is not how it is written", cli.Quote(value))
	}
	return err
}
