// Package backend runs sessions where bwrap cannot: it starts the landlock and
// firejail backends, says which protections they lack, and chooses between the
// three. Package bwrap has the first one.
package backend

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/firejail"
	"agent-sandbox/internal/landlock"
	"agent-sandbox/internal/quickstart"
	"agent-sandbox/internal/sandboxinit"
	"agent-sandbox/internal/seccomp"
	"agent-sandbox/internal/sys"
)

// Supervise is the first argument by which agent-sandbox runs as the sandbox-init
// of a session that has no place to bind it to. It is no command's name.
const Supervise = "--supervise"

// Session is what both backends start from.
type Session struct {
	Init     string // path of the agent-sandbox binary
	Env      []string
	Dir      string // working directory
	Command  []string
	NProc    string
	Nested   bool
	Isolated bool
	// Private is a folder of the session that nothing shows inside.
	Private string
}

func (s Session) program(path string, args ...string) bwrap.Program {
	return bwrap.Program{Path: path, Args: args, Env: s.Env, Dir: s.Dir,
		Command: sandboxinit.Command{NProc: s.NProc, Start: quickstart.Changed(), Env: s.Env, Args: s.Command}}
}

// fdAfter is the first descriptor after those of sandbox-init.
const fdAfter = sandboxinit.First + sandboxinit.Descriptors

func (s Session) landlock() []string {
	return []string{Supervise, "landlock", strconv.FormatBool(s.Nested), strconv.FormatBool(s.Isolated), s.Private}
}

func (s Session) firejail() []string {
	return []string{"--", s.Init, Supervise, "firejail", strconv.FormatBool(s.Nested)}
}

// LandlockLine is the command line of a landlock session, for --dry-run.
func LandlockLine(s Session) string {
	s.Private = "SESSION.d"
	return bwrap.ShellLine(append(append([]string{s.Init}, s.landlock()...), s.Command...))
}

// FirejailLine is the same for firejail.
func FirejailLine(s Session, path string, profile *firejail.Profile) string {
	return bwrap.ShellLine(slices.Concat([]string{path}, profile.Args(), []string{keepFDs()}, s.firejail(), s.Command))
}

// keepFDs is the option for what sandbox-init is handed.
func keepFDs() string {
	keep := "--keep-fd="
	for fd := sandboxinit.First; fd <= fdAfter; fd++ {
		keep += strconv.Itoa(fd) + ","
	}
	return strings.TrimSuffix(keep, ",")
}

// Landlock starts a session under rules.
func Landlock(s Session, rules *landlock.Rules) (*bwrap.Session, error) {
	rules.Rules = append(rules.Rules, landlock.Rule{Path: s.Init, Access: landlock.Read}) // for the step that sets limits
	set, err := rules.Ruleset(os.Stdin, os.Stdout, os.Stderr)
	if err != nil {
		return nil, err
	}
	defer set.Close()
	p := s.program(s.Init, s.landlock()...)
	p.After = []*os.File{set}
	return bwrap.StartProgram(p)
}

// attempts is how often a start in firejail is tried that the host disturbs.
const attempts = 3

// transient says whether err may come of a file that the host replaces while firejail
// starts, as every useradd does with the user database: a masked one shows, and
// firejail's own copies (restrict_users.c) cannot be mounted.
func transient(err error) bool {
	return strings.Contains(err.Error(), notHeld) || strings.Contains(err.Error(), "restrict_users.c")
}

// notHeld is what the supervisor says then.
const notHeld = "firejail does not hold what it was asked for"

// Firejail starts a session in firejail at path.
func Firejail(s Session, path string, profile *firejail.Profile) (*bwrap.Session, error) {
	file := s.Private + "/firejail.profile"
	if err := os.WriteFile(file, []byte(profile.Lines()), 0o600); err != nil {
		return nil, fmt.Errorf("cannot write the profile: %w", err)
	}
	protections, err := sys.Memfd("protections", expected(profile, s.Private))
	if err != nil {
		return nil, err
	}
	defer protections.Close()
	p := s.program(path, append([]string{"--profile=" + file, keepFDs()}, s.firejail()...)...)
	p.After = []*os.File{protections}
	for try := 1; ; try++ {
		running, err := bwrap.StartProgram(p)
		if err == nil || try == attempts || !transient(err) {
			return running, err
		}
	}
}

// Supervisor is sandbox-init for these backends; args are those after Supervise.
func Supervisor(args []string) int {
	self, err := os.Executable()
	if err != nil {
		return fail(err)
	}
	sandboxinit.Self = self
	switch {
	case len(args) == 4 && args[0] == "landlock":
		if err := sys.BecomeSubreaper(); err != nil {
			return fail(err)
		}
		sandboxinit.Subreaper = true
		r := landlock.Restriction{
			Ruleset: os.NewFile(fdAfter, "landlock ruleset"),
			Nested:  args[1] == "true", Isolated: args[2] == "true", Probe: args[3],
		}
		sandboxinit.Restrict = r.Apply
	case len(args) == 2 && args[0] == "firejail":
		// Firejail starts programs with no signal blocked; sandbox-init wants
		// all of them to wait, as the launcher has blocked them.
		runtime.LockOSThread()
		sys.SetSigMask(sys.AllSignals())
		return fail(syscall.Exec(self, []string{self, Supervise, "firejail", args[1], "blocked"}, os.Environ()))
	case len(args) == 3 && args[0] == "firejail":
		nested := args[1] == "true"
		if err := verify(os.NewFile(fdAfter, "protections")); err != nil {
			return fail(fmt.Errorf(notHeld+": %w", err))
		}
		sandboxinit.Restrict = func() error {
			if err := landlock.RestrictWhereScoped(); err != nil {
				return err
			}
			return seccomp.Install(seccomp.Options{Nested: nested})
		}
	default:
		cli.Printer{Name: "agent-sandbox", W: os.Stderr}.Errorf("cannot use %s by hand", Supervise)
		return cli.LaunchFailed
	}
	return sandboxinit.Main()
}

func fail(err error) int {
	cli.Printer{Name: "agent-sandbox", W: os.Stderr}.Error(err)
	return cli.LaunchFailed
}

// What is expected of a path: the first letter of an entry that ends in a NUL.
const (
	readOnly = 'r' // it is on a read-only mount
	hidden   = 'h' // it cannot be opened or is empty
	replaced = 'd' // followed by DEVICE:INODE: it is not this object of the host
)

func expected(p *firejail.Profile, private string) []byte {
	var b bytes.Buffer
	for _, path := range p.ReadOnly {
		fmt.Fprintf(&b, "%c:%s\x00", readOnly, path)
	}
	for _, path := range append(p.Hidden, private) {
		fmt.Fprintf(&b, "%c:%s\x00", hidden, path)
	}
	for _, path := range p.Replaced {
		if st, err := sys.Lstat(path); err == nil {
			fmt.Fprintf(&b, "%c%d %d:%s\x00", replaced, st.Dev, st.Ino, path)
		}
	}
	return b.Bytes()
}

// verify looks from inside at whether all is as expected.
func verify(f *os.File) error {
	// From its beginning: another attempt may have read it.
	data, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	f.Close()
	if err != nil {
		return err
	}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(data), "\x00"), "\x00") {
		what, path, ok := strings.Cut(entry, ":")
		if !ok {
			return fmt.Errorf("%q is no entry", entry)
		}
		switch what[0] {
		case readOnly:
			if ro, err := sys.ReadOnlyMount(path); err == nil && !ro {
				return fmt.Errorf("%q can be written", path)
			}
		case hidden:
			if shown, err := showsSomething(path); err == nil && shown {
				return fmt.Errorf("%q can be seen", path)
			}
		case replaced:
			if st, err := sys.Lstat(path); err == nil && what[1:] == fmt.Sprint(st.Dev, st.Ino) {
				return fmt.Errorf("all of %q can be seen", path)
			}
		}
	}
	return nil
}

// showsSomething says whether path can be opened and is not empty.
func showsSomething(path string) (bool, error) {
	f, err := sys.OpenRead(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	st, err := sys.Fstat(f)
	if err != nil || !st.IsDir() {
		return st.Size > 0, err
	}
	names, err := f.Readdirnames(1)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return len(names) > 0, err
}
