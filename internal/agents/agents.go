// Package agents reads the profiles of AI agents: data files that say which
// paths of the home an agent needs, how it logs in, and where its instruction
// file lies. A profile has one `KEY VALUE` a line; `#` begins a comment line:
//
//	command claude                         base name of a program that starts the agent
//	writable .claude                       folder of its state, relative to the home
//	readonly .aider.conf.yml               file or folder that it reads
//	credential ANTHROPIC_API_KEY           variable it logs in with
//	login .claude/.credentials.json        file that shows that it is logged in
//	instructions .claude/CLAUDE.md         its instruction file
//	env CLAUDE_CONFIG_DIR .claude          variable set to a path of the home
//	carry .claude.json .claude/.claude.json    file copied once, where the second is missing
//	hint run `claude` …                    how to log in
package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// Profile is one agent. Paths are relative to the home, clean, without `..`.
type Profile struct {
	Name         string   // name of the file without .conf
	File         string   // where it was read from
	Commands     []string // base names of the programs that start it
	Writable     []string // folders it keeps state in
	Readonly     []string // files and folders it reads
	Credentials  []string // environment variables it logs in with
	Logins       []string // files that show that it is logged in
	Instructions string   // its instruction file, empty where it has none
	Env          []EnvVar // set in the sandbox
	Carry        []Carry  // state to copy once before a launch
	Hint         string   // how to log in
}

// EnvVar is a variable that a profile sets to a path below the home.
type EnvVar struct{ Name, Path string }

// Carry is a file to be copied once, when To does not exist.
type Carry struct{ From, To string }

const (
	profileLimit = 64 << 10 // bytes of a profile
	carryLimit   = 64 << 20 // bytes of a carried file
)

// Dir is the folder of the profiles.
func Dir() string { return cli.Data("agents") }

// Load reads the profile of one agent from dir; it fails with fs.ErrNotExist
// where there is none of that name. The name is one that ENABLED_AGENTS may have.
func Load(dir, name string) (*Profile, error) {
	path := filepath.Join(dir, name+".conf")
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the agent profile %s: %w", cli.Quote(path), err)
	}
	defer f.Close()
	data, err := sys.ReadLimited(f, profileLimit)
	if err != nil {
		return nil, fmt.Errorf("cannot read the agent profile %s: %w", cli.Quote(path), err)
	}
	p, err := Parse(path, string(data))
	if err != nil {
		return nil, err
	}
	p.Name = name
	return p, nil
}

// Parse reads the text of a profile; path is for the messages.
func Parse(path, text string) (*Profile, error) {
	p := &Profile{File: path}
	for i, line := range strings.Split(text, "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.line(line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", record.Escape(path), i+1, err)
		}
	}
	if len(p.Commands) == 0 {
		return nil, fmt.Errorf("%s: no `command` line", record.Escape(path))
	}
	return p, nil
}

func (p *Profile) line(line string) error {
	key, value, _ := strings.Cut(line, " ")
	first, second, two := strings.Cut(value, " ")
	paths := func(list ...string) error {
		for _, s := range list {
			if s == "." || !filepath.IsLocal(s) || filepath.Clean(s) != s {
				return fmt.Errorf("%s: %s is not a clean path below the home", key, cli.Quote(s))
			}
		}
		return nil
	}
	var err error
	switch key {
	case "command":
		if !record.Word(value, record.Upper+record.Lower+record.Digits+"._+-") {
			return fmt.Errorf("command: %s is not the base name of a program", cli.Quote(value))
		}
		p.Commands = append(p.Commands, value)
	case "writable":
		err = paths(value)
		p.Writable = append(p.Writable, value)
	case "readonly":
		err = paths(value)
		p.Readonly = append(p.Readonly, value)
	case "credential":
		if !record.Variable(value) {
			return fmt.Errorf("credential: %s is not the name of a variable", cli.Quote(value))
		}
		p.Credentials = append(p.Credentials, value)
	case "login":
		err = paths(value)
		p.Logins = append(p.Logins, value)
	case "instructions":
		if p.Instructions != "" {
			return errors.New("instructions: given twice")
		}
		err = paths(value)
		p.Instructions = value
	case "env":
		if !two || !record.Variable(first) {
			return errors.New("env: want a variable and a path")
		}
		err = paths(second)
		p.Env = append(p.Env, EnvVar{first, second})
	case "carry":
		if !two {
			return errors.New("carry: want two paths")
		}
		err = paths(first, second)
		p.Carry = append(p.Carry, Carry{first, second})
	case "hint":
		if value == "" || p.Hint != "" {
			return errors.New("hint: want one line of text")
		}
		p.Hint = value
	default:
		return fmt.Errorf("%s is not a key of a profile", cli.Quote(key))
	}
	return err
}

// Carries says whether CarryOver has something to copy: the agent was used
// outside, and its folders are wanted inside.
func (p *Profile) Carries(home string) bool {
	return slices.ContainsFunc(p.Carry, func(c Carry) bool {
		from, err := os.Lstat(filepath.Join(home, c.From))
		return err == nil && from.Mode().IsRegular() && !exists(filepath.Join(home, c.To))
	})
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// CarryOver copies the state files of p whose copies are missing below home and
// returns the copies that it made, relative to home. Neither side follows a link
// below home: an agent that wrote there before may have planted one. A file that
// is not there, or is no regular file, is left out.
func (p *Profile) CarryOver(home string) ([]string, error) {
	var made []string
	for _, c := range p.Carry {
		ok, err := carry(home, c)
		if err != nil {
			err = fmt.Errorf("cannot copy %s to %s: %w", cli.Quote(filepath.Join(home, c.From)), cli.Quote(filepath.Join(home, c.To)), err)
			return made, cli.WithHint(err, "copy it by hand, once; no link is followed on the way")
		}
		if ok {
			made = append(made, c.To)
		}
	}
	return made, nil
}

func carry(home string, c Carry) (bool, error) {
	src, err := below(home, c.From, false)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer src.dir.Close()
	at, err := sys.OpenPathAt(src.dir, src.name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer at.Close()
	if st, err := sys.Fstat(at); err != nil || !st.IsRegular() {
		return false, err
	}
	in, err := sys.Reopen(at)
	if err != nil {
		return false, err
	}
	defer in.Close()
	data, err := sys.ReadLimited(in, carryLimit)
	if err != nil {
		return false, err
	}
	dst, err := below(home, c.To, true)
	if err != nil {
		return false, err
	}
	defer dst.dir.Close()
	// Written whole under another name and linked: a copy cut short by a crash
	// would never be made again, and a file that came meanwhile is not replaced.
	return place(dst, data)
}

// spot is a name in an open folder.
type spot struct {
	dir  *os.File
	name string
}

// below opens the folder of a path below home, one component at a time, no link
// followed; with create, folders that are missing are made.
func below(home, path string, create bool) (spot, error) {
	dir, err := sys.OpenPath(home)
	if err != nil {
		return spot{}, err
	}
	parts := strings.Split(path, "/")
	for _, name := range parts[:len(parts)-1] {
		if create {
			if err := sys.MkdirAt(dir, name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				dir.Close()
				return spot{}, err
			}
		}
		next, err := sys.OpenAt(dir, name, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
		dir.Close()
		if err != nil {
			return spot{}, err
		}
		dir = next
	}
	return spot{dir, parts[len(parts)-1]}, nil
}

// place makes a file with the given content, unless there is one.
func place(at spot, data []byte) (bool, error) {
	if _, err := sys.StatAt(at.dir, at.name); err == nil {
		return false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	tmp := at.name + "." + sys.RandomHex(8) + ".tmp"
	f, err := sys.OpenAt(at.dir, tmp, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	defer sys.UnlinkAt(at.dir, tmp, false)
	_, err = f.Write(data)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return false, err
	}
	err = sys.LinkAt(at.dir, tmp, at.name)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

// Starts says whether command, the first word of a launch, starts this agent.
func (p *Profile) Starts(command string) bool {
	return slices.Contains(p.Commands, filepath.Base(command))
}

// Suppressed says whether a list of SUPPRESS_AGENT_WARNINGS names this agent or all.
func (p *Profile) Suppressed(list []string) bool {
	return slices.Contains(list, p.Name) || slices.Contains(list, "all")
}

// Warning is the text for an agent that is being started while variables that it
// logs in with are removed (names, as environ.Filter returns them) and no file
// below home shows that it is logged in; empty where there is nothing to say.
func (p *Profile) Warning(home string, removed []string) string {
	var lost []string
	for _, c := range p.Credentials {
		if slices.Contains(removed, c) {
			lost = append(lost, c)
		}
	}
	if len(lost) == 0 {
		return ""
	}
	for _, l := range p.Logins {
		if _, err := os.Stat(filepath.Join(home, l)); err == nil {
			return ""
		}
	}
	text := fmt.Sprintf("%s may not be logged in: the sandbox removes %s (ALLOWED_ENV_VARS+=(%s) keeps it)",
		p.Name, strings.Join(lost, ", "), strings.Join(lost, " "))
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return text
}

// Environ adds the variables of the profiles to environ, for a home. One that is
// there already is the user's own and stays.
func Environ(environ []string, profiles []*Profile, home string) []string {
	for _, p := range profiles {
		for _, e := range p.Env {
			if !slices.ContainsFunc(environ, func(kv string) bool { return strings.HasPrefix(kv, e.Name+"=") }) {
				environ = append(environ, e.Name+"="+filepath.Join(home, e.Path))
			}
		}
	}
	return environ
}

// Note is the instruction file as the agent sees it: the user's own text, then a
// short note on the sandbox. It depends on project and agent alone, and on
// nothing that a reload changes.
func Note(own []byte, project string, p *Profile) []byte {
	var b strings.Builder
	b.Write(own)
	if len(own) > 0 && own[len(own)-1] != '\n' {
		b.WriteByte('\n')
	}
	if len(own) > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "# You run in a sandbox (agent-sandbox)\n\n"+
		"You can write in the project folder `%s`, in /tmp", record.Escape(project))
	for i, w := range p.Writable {
		sep := ", in "
		if i > 0 {
			sep = ", "
		}
		fmt.Fprintf(&b, "%s~/%s", sep, w)
	}
	b.WriteString(".\nOther folders may be hidden or read-only, and what you write there may vanish with the session." +
		"\n`Permission denied`, `Read-only file system` and empty files are usually the sandbox at work: do not try to get around it." +
		"\nWhen you need more, tell the user which path and why. They grant it, from outside and without ending this session, with" +
		"\n`EXTRA_WRITABLE_PATHS+=(/the/path)` in ~/.config/agent-sandbox/sandbox.conf and `agent-sandbox reload`.\n")
	return []byte(b.String())
}
