package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"agent-sandbox/internal/agents"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
)

// messageMax is how many lines of what files wrote to standard error become warnings.
const messageMax = 20

// AdminDir is the folder of the admin's sandbox.conf. It is fixed at build time
// (a build may set it with -X); nothing in the environment moves it.
var AdminDir = "/etc/agent-sandbox"

// Request says whose configuration is loaded and for which project.
type Request struct {
	Home       string // $HOME, absolute
	PasswdHome string // home in the user database, empty where it is not known
	User       string // login name in the user database, empty where it is not known
	UID        int
	ProjectDir string              // physical; empty: no project (check)
	WorkDir    string              // what a relative SANDBOX_CONF is relative to
	Getenv     func(string) string // layer 5, SANDBOX_CONF, XDG_CONFIG_HOME

	// Reload of a running session: ConfigDir is the folder its record names, and
	// the file named by SANDBOX_CONF is refused unless it is a regular file of UID.
	Reload    bool
	ConfigDir string

	AgentsDir string // folder of the agent profiles; empty: agents.Dir()
}

// Result is a loaded configuration.
type Result struct {
	Settings   *Settings
	Warnings   []string          // for cli.Printer.Warn, in order
	ConfigDir  string            // configuration folder in use, whether it exists or not
	ConfFile   string            // the file SANDBOX_CONF names, absolute; empty where it is not set
	HomeAccess string            // HOME_ACCESS of the environment, empty where it is not set
	Files      []string          // configuration files that were read, in order
	Agents     []*agents.Profile // profiles of ENABLED_AGENTS, in that order

	req     Request
	homes   []string  // the home in all its spellings
	base    *Settings // before finish
	loading []string  // warnings before finish
}

// Load runs the layers. An error names file, line and variable and says how to
// mend it (cli.WithHint); nothing of a failed load is to be used.
func Load(ctx context.Context, req Request) (*Result, error) {
	r := &Result{req: req, homes: spellings(req.Home, req.PasswdHome)}
	st := newState(r)

	// The admin's values are complete on this side before a user's file is opened.
	admin, err := openAdmin()
	if err != nil {
		return nil, err
	}
	if admin != nil {
		r.Files = append(r.Files, admin.path)
		if err := st.runAdmin(ctx, admin); err != nil {
			return nil, err
		}
	}
	st.admin = maps.Clone(st.values)

	files, err := r.userFiles()
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		r.Files = append(r.Files, f.path)
	}
	if len(files) > 0 {
		if err := st.run(ctx, files, req.Home); err != nil {
			return nil, err
		}
	}
	if err := st.environment(); err != nil {
		return nil, err
	}
	st.restoreAdmin()
	r.base = st.settings()
	r.loading = st.warnings
	return r, r.finish()
}

// spellings are the given folders, as they are and with links resolved.
func spellings(dirs ...string) []string {
	var out []string
	for _, d := range dirs {
		if d == "" {
			continue
		}
		for _, s := range []string{filepath.Clean(d), resolve(d)} {
			if !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// userFiles opens the files of layers 3 and 4.
func (r *Result) userFiles() ([]*file, error) {
	r.ConfigDir = r.req.ConfigDir
	if r.ConfigDir == "" {
		base := r.req.Getenv("XDG_CONFIG_HOME")
		// The XDG base directory specification: a relative path is to be ignored.
		if !filepath.IsAbs(base) {
			base = filepath.Join(r.req.Home, ".config")
		}
		r.ConfigDir = filepath.Join(base, "agent-sandbox")
	}
	var files []*file
	own := false
	main := filepath.Join(r.ConfigDir, "sandbox.conf")
	if named := r.req.Getenv("SANDBOX_CONF"); named != "" {
		if !filepath.IsAbs(named) {
			named = filepath.Join(r.req.WorkDir, named)
		}
		main, own = filepath.Clean(named), r.req.Reload
		r.ConfFile = main
	}
	f, err := openUser("user", main, r.req.UID, own)
	switch {
	case err == nil:
		files = append(files, f)
	case errors.Is(err, fs.ErrNotExist) && r.ConfFile == "":
		// The default file need not be there.
	case errors.As(err, new(*fs.PathError)):
		err = fmt.Errorf("cannot read the configuration %s: %w", record.Escape(main), cause(err))
		if r.ConfFile != "" {
			err = cli.WithHint(err, "SANDBOX_CONF names it: unset SANDBOX_CONF, or name a file that exists")
		}
		return nil, err
	default:
		return nil, err
	}
	parts, err := confd(filepath.Join(r.ConfigDir, "conf.d"))
	if err != nil {
		return nil, err
	}
	for _, path := range parts {
		f, err := openUser("project", path, r.req.UID, false)
		if errors.As(err, new(*fs.PathError)) {
			err = fmt.Errorf("cannot read the configuration %s: %w", record.Escape(path), cause(err))
		}
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// state is the configuration while the layers run.
type state struct {
	r        *Result
	values   map[string][]elem
	pinned   map[string][]string
	admin    map[string][]elem // values after the admin layer
	warnings []string
}

// elem is an entry with the text that bash has for it.
type elem struct {
	Entry
	raw     string
	dropped bool // said so in a warning, takes no part
}

func newState(r *Result) *state {
	st := &state{r: r, values: make(map[string][]elem, len(Vars)), pinned: map[string][]string{}}
	for _, v := range Vars {
		for _, d := range v.Default {
			st.values[v.Name] = append(st.values[v.Name], elem{Entry: Entry{d, Origin{Layer: "default"}}, raw: d})
		}
	}
	st.values["ALLOWED_PROJECT_PARENTS"] = defaultParent(r.req.Home)
	return st
}

func defaultParent(home string) []elem {
	home = filepath.Clean(home)
	return []elem{{Entry: Entry{home, Origin{Layer: "default"}}, raw: home}}
}

// runAdmin runs the admin's file. HOME is the user's to set: what the admin says
// of homes is meant of the one in the user database, the default that it may add
// to included.
func (st *state) runAdmin(ctx context.Context, f *file) error {
	const parents = "ALLOWED_PROJECT_PARENTS"
	home := cmp.Or(st.r.req.PasswdHome, st.r.req.Home)
	st.values[parents] = defaultParent(home)
	if err := st.run(ctx, []*file{f}, home); err != nil {
		return err
	}
	if len(st.pinned[parents]) == 0 {
		st.values[parents] = defaultParent(st.r.req.Home)
	}
	return nil
}

func (st *state) warn(o Origin, name, format string, args ...any) {
	st.warnings = append(st.warnings, place(o, name)+": "+fmt.Sprintf(format, args...))
}

// place is where a value stands, for a message: FILE:LINE: NAME.
func place(o Origin, name string) string {
	if o.File == "" {
		return name
	}
	return o.String() + ": " + name
}

// String is FILE:LINE, or FILE where the line is not known, or the layer.
func (o Origin) String() string {
	switch {
	case o.File == "":
		return o.Layer
	case o.Line == 0:
		return record.Escape(o.File)
	}
	return fmt.Sprintf("%s:%d", record.Escape(o.File), o.Line)
}

// run sources files and takes their values over. In the admin's own bash the
// scalars are not set, so that one that it sets to the default is seen to be set.
func (st *state) run(ctx context.Context, files []*file, home string) error {
	start := make(map[string][]string, len(Vars))
	for _, v := range Vars {
		if files[0].layer == "admin" && v.Type != Array {
			continue
		}
		for _, e := range st.values[v.Name] {
			start[v.Name] = append(start[v.Name], e.raw)
		}
	}
	req := st.r.req
	env := []string{"HOME=" + home, "LC_ALL=C", "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"}
	if req.User != "" {
		env = append(env, "USER="+req.User, "LOGNAME="+req.User)
	}
	a, messages, err := source(ctx, files, start, env, req.ProjectDir)
	if err != nil {
		return err
	}
	for i, fr := range a.frames {
		if err := st.take(files[i], fr, messages); err != nil {
			return err
		}
	}
	for _, name := range a.names {
		st.unknown(files, name)
	}
	if more := len(messages) - messageMax; more > 0 {
		messages = append(messages[:messageMax], fmt.Sprintf("%s: %d more lines of output", files[0], more))
	}
	st.warnings = append(st.warnings, messages...)
	return nil
}

// take takes over the values after one file.
func (st *state) take(f *file, fr frame, messages []string) error {
	if fr.status != 0 {
		return failed(f, fr, messages)
	}
	for _, v := range Vars {
		var err error
		if v.Type == Array {
			err = st.takeArray(f, v, fr.vars[v.Name])
		} else {
			err = st.takeScalar(f, v, fr.vars[v.Name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// failed is the error for a file that returned a status: what bash said of that
// line, where it said something.
func failed(f *file, fr frame, messages []string) error {
	if m := said(messages, f.String()+":", "syntax error", "unexpected EOF", "conditional expression", "conditional binary operator"); m != "" {
		return cli.WithHint(errors.New(m), "mend it; `bash -n %s` checks the syntax of the file", shellWord(f.path))
	}
	at := Origin{File: f.path, Line: fr.line}
	if m := said(messages, at.String()+": ", ": command not found"); m != "" {
		name := strings.TrimSuffix(strings.TrimPrefix(m, at.String()+": "), ": command not found")
		if _, ok := Lookup(name); ok {
			return cli.WithHint(errors.New(m), "write %s=VALUE, without blanks around the =", name)
		}
	}
	if m := said(messages, at.String()+":", ""); m != "" {
		return cli.WithHint(errors.New(m), "the file failed with status %d", fr.status)
	}
	return cli.WithHint(fmt.Errorf("%s: the file returned %d", at, fr.status),
		"a file has the status of its last command: end it with `return 0`, or write `if … fi` in place of `… && …`")
}

// said is the first message that begins with prefix and holds one of words.
func said(messages []string, prefix string, words ...string) string {
	for _, m := range messages {
		if strings.HasPrefix(m, prefix) && slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m, w) }) {
			return m
		}
	}
	return ""
}

// unknown warns of a variable in capitals that a file made and nothing reads: of
// the first file whose text assigns it, else of the last.
func (st *state) unknown(files []*file, name string) {
	if _, ok := Lookup(name); ok || shellVariable(name) || strings.ToUpper(name) != name {
		return
	}
	text := "no such setting"
	if near := cli.Nearest(name, varNames()); near != "" {
		text += ": did you mean " + near
	}
	var o Origin
	for _, f := range files {
		if o = f.origin(name, ""); o.Line > 0 {
			break
		}
	}
	st.warn(o, name, "%s", text)
}

// shellVariable says whether bash itself, or a program of the environment, reads
// or sets a variable.
func shellVariable(name string) bool {
	for _, p := range []string{"BASH", "LC_", "PS", "COMP_", "OPT", "HIST", "READLINE_", "MAIL"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return slices.Contains(strings.Fields("REPLY MAPFILE COPROC PIPESTATUS FUNCNAME FUNCNEST RANDOM SRANDOM SECONDS LINENO IFS PATH HOME"+
		" LANG LANGUAGE TZ TMOUT TMPDIR USER LOGNAME SHELL CDPATH DIRSTACK EPOCHSECONDS EPOCHREALTIME EUID UID PPID GROUPS GLOBIGNORE"+
		" HOSTNAME HOSTTYPE MACHTYPE OSTYPE OLDPWD PWD SHELLOPTS SHLVL TERM TIMEFORMAT POSIXLY_CORRECT INPUTRC IGNOREEOF FIGNORE"+
		" EXECIGNORE EMACS ENV FCEDIT COLUMNS LINES COMPREPLY PROMPT_COMMAND PROMPT_DIRTRIM CHILD_MAX INSIDE_EMACS"), name)
}

func (st *state) takeScalar(f *file, v Var, val value) error {
	if len(val.values) == 0 {
		return nil
	}
	if val.kind != isScalar {
		st.warn(f.origin(v.Name, ""), v.Name, "is one value, not a list: ignored; write %s=VALUE", v.Name)
		return nil
	}
	o := f.origin(v.Name, val.values[0])
	text, err := v.scalar(val.values[0])
	if err != nil {
		return cli.WithHint(fmt.Errorf("%s: %w", place(o, v.Name), err), "see agent-sandbox.conf(5)")
	}
	if old := st.values[v.Name]; len(old) == 0 || old[0].Text != text || f.layer == "admin" {
		st.values[v.Name] = []elem{{Entry: Entry{text, o}, raw: text}}
	}
	if f.layer == "admin" {
		st.pinned[v.Name] = []string{text}
	}
	return nil
}

// takeArray compares what bash has with what it had before the file; see restart
// for the meaning of the indices.
func (st *state) takeArray(f *file, v Var, val value) error {
	old := st.values[v.Name]
	const wrong = "is a list, not one value: ignored; write %s+=( … )"
	if len(val.values) > 0 && val.kind != isList {
		st.warn(f.origin(v.Name, val.values[0]), v.Name, wrong, v.Name)
		return nil
	}
	has := func(key string) bool { return slices.Contains(val.keys[:min(3, len(val.keys))], key) }
	if has("0") && has("2") && !has("1") {
		st.warn(f.origin(v.Name, val.values[0]), v.Name, wrong, v.Name)
		val.keys, val.values = val.keys[1:], val.values[1:]
	}
	anew := has("0")
	known := make(map[string]elem, len(old))
	for _, e := range old {
		known[e.raw] = e
	}
	var out []elem
	for i, raw := range val.values {
		listed := anew || i >= len(old) || old[i].raw != raw
		e, ok := known[raw]
		if !ok {
			var err error
			if e, err = st.element(f, v, raw); err != nil {
				return err
			}
		}
		if f.layer == "admin" && listed && !e.dropped {
			st.pinned[v.Name] = append(st.pinned[v.Name], e.Text)
		}
		out = append(out, e)
	}
	switch {
	case f.layer == "admin":
	case v.pins():
		st.missing(f, v, old, out)
	case v.Rule == AdminOnly && !slices.EqualFunc(old, out, func(a, b elem) bool { return a.raw == b.raw }):
		st.warn(f.origin(v.Name, ""), v.Name, "only the administrator sets it: ignored")
	}
	st.values[v.Name] = out
	return nil
}

// pins says whether what the admin lists stays in the list.
func (v Var) pins() bool { return v.Rule == Pinned || v.Name == "HOME_READONLY" }

// missing warns of the admin's entries that a file took away. They come back in
// restoreAdmin.
func (st *state) missing(f *file, v Var, old, now []elem) {
	for _, text := range st.pinned[v.Name] {
		in := func(e elem) bool { return e.Text == text && !e.dropped }
		if slices.ContainsFunc(old, in) && !slices.ContainsFunc(now, in) {
			st.warn(f.origin(v.Name, ""), v.Name, "%s is set by the administrator and stays", cli.Quote(text))
		}
	}
}

// element checks one new element of an array.
func (st *state) element(f *file, v Var, raw string) (elem, error) {
	o := f.origin(v.Name, raw)
	e := elem{Entry: Entry{raw, o}, raw: raw}
	text, drop, err := v.entry(raw, st.r.homes, st.r.req.ProjectDir)
	switch {
	case err != nil:
		return e, fmt.Errorf("%s: %w", place(o, v.Name), err)
	case drop != "":
		st.warn(o, v.Name, "%s: ignored", drop)
		e.dropped = true
	}
	e.Text = text
	return e, nil
}

// environment is layer 5. An empty variable counts as not set.
func (st *state) environment() error {
	for _, v := range Vars {
		if !v.Env {
			continue
		}
		raw := st.r.req.Getenv(v.Name)
		if raw == "" {
			continue
		}
		text, err := v.scalar(raw)
		if err != nil {
			return cli.WithHint(fmt.Errorf("environment variable %s: %w", v.Name, err), "unset %s, or set it to one of these", v.Name)
		}
		st.values[v.Name] = []elem{{Entry: Entry{text, Origin{Layer: "environment"}}, raw: text}}
		if v.Name == "HOME_ACCESS" {
			st.r.HomeAccess = text
		}
	}
	return nil
}

// restoreAdmin holds the admin's rules against what the later layers made.
func (st *state) restoreAdmin() {
	for _, v := range Vars {
		switch {
		case v.Rule == AdminOnly:
			st.values[v.Name] = st.admin[v.Name]
		case v.Rule == HardenOnly:
			st.harden(v)
		case v.Rule == Narrows:
			st.narrow(v)
		case v.pins():
			st.restorePinned(v)
		case v.Name == "NETWORK_BLOCKLIST_EXCEPT":
			st.except(v)
		}
	}
}

func (st *state) harden(v Var) {
	pin := st.pinned[v.Name]
	if len(pin) == 0 {
		return
	}
	e := st.values[v.Name][0]
	if slices.Index(v.Values, e.Text) < slices.Index(v.Values, pin[0]) {
		st.warn(e.Origin, v.Name, "%s is weaker than what the administrator set: %s is used", e.Text, pin[0])
		st.values[v.Name] = st.admin[v.Name]
	}
}

// restorePinned puts missing entries of the admin first.
func (st *state) restorePinned(v Var) {
	var back []elem
	for _, e := range st.admin[v.Name] {
		same := func(o elem) bool { return o.Text == e.Text && !o.dropped }
		if slices.Contains(st.pinned[v.Name], e.Text) && !slices.ContainsFunc(st.values[v.Name], same) {
			back = append(back, e)
		}
	}
	st.values[v.Name] = append(back, st.values[v.Name]...)
}

// narrow keeps the entries that lie below one of the admin's, by component and on
// resolved paths.
func (st *state) narrow(v Var) {
	if len(st.pinned[v.Name]) == 0 {
		return
	}
	var parents []string
	for _, e := range st.admin[v.Name] {
		parents = append(parents, resolve(e.Text))
	}
	var kept []elem
	for _, e := range st.values[v.Name] {
		if below(resolve(e.Text), parents) {
			kept = append(kept, e)
			continue
		}
		st.warn(e.Origin, v.Name, "%s lies outside what the administrator allows: ignored", cli.Quote(e.Text))
	}
	if len(kept) == 0 {
		if len(st.values[v.Name]) == 0 {
			st.warn(Origin{}, v.Name, "is empty: what the administrator allows is used")
		}
		kept = st.admin[v.Name]
	}
	st.values[v.Name] = kept
}

// except drops exceptions to what the admin blocks.
func (st *state) except(v Var) {
	blocked := st.pinned["NETWORK_BLOCKLIST"]
	st.values[v.Name] = slices.DeleteFunc(slices.Clone(st.values[v.Name]), func(e elem) bool {
		if e.Origin.Layer == "admin" {
			return false
		}
		for _, b := range blocked {
			if covers(b, e.Text) || covers(e.Text, b) {
				st.warn(e.Origin, v.Name, "%s: the administrator blocks %s: ignored", cli.Quote(e.Text), cli.Quote(b))
				return true
			}
		}
		return false
	})
}

// covers says whether entry a of the network list contains entry b. A host
// contains its subdomains; `*.` before it says the same.
func covers(a, b string) bool {
	a, b = strings.ToLower(strings.TrimPrefix(a, "*.")), strings.ToLower(strings.TrimPrefix(b, "*."))
	return a == "*" || a == b || strings.HasSuffix(b, "."+a)
}

// settings are the values without what was dropped and without duplicates.
func (st *state) settings() *Settings {
	s := &Settings{values: make(map[string][]Entry, len(Vars)), pinned: st.pinned}
	for _, v := range Vars {
		seen := map[string]bool{}
		for _, e := range st.values[v.Name] {
			if !e.dropped && !seen[e.Text] {
				seen[e.Text] = true
				s.values[v.Name] = append(s.values[v.Name], e.Entry)
			}
		}
	}
	return s
}
