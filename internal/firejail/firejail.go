// Package firejail turns a mount plan into a firejail profile. Firejail starts
// from the whole file system of the host and takes away: what the plan does not
// show is hidden folder by folder from the top, and protections are mounted over
// what stays.
package firejail

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execpath"
	"agent-sandbox/internal/mountplan"
)

// Spec is what a profile is made from.
type Spec struct {
	Plan       *mountplan.Plan
	UID        int
	Home       string // $HOME
	PasswdHome string // home of the user database, which is the one firejail takes
	Init       string // this binary, which runs inside
	PrivateTmp bool
	PrivateIPC bool
	IsolateNet bool
	Nested     bool // user and mount namespaces may be made inside
}

// A Profile is how firejail is to be started.
type Profile struct {
	Options []Option
	Losses  []mountplan.Loss
	// ReadOnly and Hidden are the protections, and Replaced the folders that show
	// only parts of themselves, for a look from inside at whether that is so:
	// firejail passes over lines that it does not understand.
	ReadOnly, Hidden, Replaced []string
}

// An Option is one of firejail(1) and firejail-profile(5).
type Option struct{ Name, Value string }

// Lines is the profile as a file: firejail takes no more than 128 arguments.
func (p *Profile) Lines() string {
	var b strings.Builder
	for _, o := range p.Options {
		b.WriteString(strings.TrimSpace(o.Name+" "+o.Value) + "\n")
	}
	return b.String()
}

// Args is the same as arguments.
func (p *Profile) Args() []string {
	a := []string{"--noprofile"}
	for _, o := range p.Options {
		if o.Value == "" {
			a = append(a, "--"+o.Name)
		} else {
			a = append(a, "--"+o.Name+"="+o.Value)
		}
	}
	return a
}

// Find returns the path of firejail: the first in the absolute folders of PATH that
// is not the caller's own to change.
func Find() (string, error) {
	path, err := execpath.Host("firejail", os.Getenv("PATH"))
	if err != nil {
		return "", cli.WithHint(errors.New("firejail is not installed"), "install it: apt install firejail")
	}
	return path, nil
}

// Host is what is asked of the machine.
type Host interface {
	Lstat(path string) (mountplan.Info, error)
	ReadDir(path string) ([]string, error)
}

// FromPlan makes the profile. It fails with the path that firejail cannot take.
func FromPlan(h Host, s Spec) (*Profile, error) {
	b := &builder{h: h, s: s, home: s.PasswdHome}
	// Firejail's private homes are below /home (and /root) only, and it takes
	// the home from the user database.
	if s.Home != s.PasswdHome || !b.plannedHome() {
		return nil, cli.WithHint(fmt.Errorf("firejail cannot take the home folder %q: it wants that of the user database, as a real folder in /home", s.Home),
			"use another backend: SANDBOX_BACKEND=bwrap or landlock")
	}
	for _, o := range []Option{{"quiet", ""}, {"caps.drop", "all"}, {"nonewprivs", ""}, {"private-dev", ""}, {"dbus-user", "none"}, {"dbus-system", "none"},
		{"deterministic-exit-code", ""}, {"deterministic-shutdown", ""}} {
		b.add(o.Name, o.Value)
	}
	if !s.Nested {
		b.add("seccomp", "") // has the mount calls too
	}
	if s.PrivateIPC {
		b.add("ipc-namespace", "")
	} else {
		b.add("keep-dev-shm", "")
	}
	if s.IsolateNet {
		b.add("net", "none")
	}
	for _, step := range []func() error{b.top, b.homeBase, b.protections} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &b.out, nil
}

type builder struct {
	h    Host
	s    Spec
	home string
	out  Profile
}

func (b *builder) add(name, value string) { b.out.Options = append(b.out.Options, Option{name, value}) }

// path adds an option with a path.
func (b *builder) path(name, path string) error {
	if err := checkPath(path); err != nil {
		return err
	}
	b.add(name, path)
	return nil
}

// checkPath refuses what firejail 0.9.72 refuses or, worse, reads as a pattern, a
// comment or another path: then it would pass over the line without a word.
func checkPath(path string) error {
	bad := ""
	for _, r := range path {
		if r < 0x20 || r == 0x7f || strings.ContainsRune(`\&!"<>%^{};,*?[]#`, r) {
			bad = string(r)
			break
		}
	}
	switch {
	case bad != "":
		return unusable(path, fmt.Sprintf("it has %q in it", bad))
	case strings.HasSuffix(path, " "), strings.Contains(path, "  "):
		return unusable(path, "it has spaces at its end or several together")
	case len(path) > 4000:
		return unusable(path[:100]+"...", "it is too long")
	}
	return nil
}

func unusable(path, why string) error {
	return cli.WithHint(fmt.Errorf("firejail cannot take the path %q: %s", path, why), "rename it, or use another backend: SANDBOX_BACKEND=bwrap or landlock")
}

// exists says whether there is, or will be at the start, something at path.
func (b *builder) exists(path string) bool {
	_, err := b.h.Lstat(path)
	return err == nil || b.planned(path)
}

// planned says whether the launch makes path.
func (b *builder) planned(path string) bool {
	return slices.Contains(b.s.Plan.Create, path) ||
		slices.ContainsFunc(b.s.Plan.Make, func(p mountplan.Placeholder) bool { return p.Path == path })
}

func topOf(path string) string {
	name, _, _ := strings.Cut(path[1:], "/")
	return "/" + name
}

// plannedHome says whether the plan has the user's home where firejail does.
func (b *builder) plannedHome() bool {
	want := "/home/"
	if b.s.UID == 0 {
		want = "/root"
	}
	return strings.HasPrefix(b.home, want) && slices.ContainsFunc(b.s.Plan.Mounts, func(m mountplan.Mount) bool { return m.Path == b.home })
}

// shows says whether a mount shows something of the host.
func shows(m mountplan.Mount) bool {
	return m.Kind == mountplan.RO || m.Kind == mountplan.RW || m.Kind == mountplan.Data && m.Mode != mountplan.DataRO
}

// top hides what lies at the root of the file system and is in no mount, and
// shows single entries of the rest on a file system of its own.
func (b *builder) top() error {
	whole := map[string]bool{}
	parts := map[string][]string{}
	for _, m := range b.s.Plan.Mounts {
		switch t := topOf(m.Path); {
		case !shows(m) || mountplan.Under(m.Path, b.home) || t == "/proc" || t == "/dev":
		case m.Path == t:
			whole[t] = true
		default:
			parts[t] = append(parts[t], m.Path)
		}
	}
	if whole[topOf(b.home)] || len(parts[topOf(b.home)]) > 0 {
		return cli.WithHint(fmt.Errorf("firejail cannot show %q: it hides the homes of other users", append(parts[topOf(b.home)], topOf(b.home))[0]),
			"take it out of the configuration, or use another backend: SANDBOX_BACKEND=bwrap or landlock")
	}
	if t := topOf(b.s.Init); !mountplan.Under(b.s.Init, b.home) && !whole[t] {
		parts[t] = append(parts[t], b.s.Init)
	}
	// Hidden by an empty file system, on which firejail has what it needs.
	if b.s.PrivateTmp {
		parts["/var"] = append(parts["/var"], "/var/tmp")
		if len(parts["/tmp"]) == 0 {
			b.add("private-tmp", "")
			whole["/tmp"] = true
		}
	} else {
		b.add("keep-var-tmp", "")
	}
	parts["/run"] = append(parts["/run"], "/run/agent-sandbox")
	names, err := b.h.ReadDir("/")
	if err != nil {
		return fmt.Errorf("cannot hide what the plan does not show: %w", err)
	}
	for _, name := range names {
		t := "/" + name
		info, err := b.h.Lstat(t)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot hide what the plan does not show: %w", err)
		}
		if err != nil || info.Type == mountplan.Link || t == "/proc" || t == "/dev" || t == topOf(b.home) || whole[t] {
			continue
		}
		if len(parts[t]) == 0 {
			if err := b.path("blacklist", t); err != nil {
				return err
			}
			b.out.Hidden = append(b.out.Hidden, t)
			continue
		}
		if err := b.whitelist(parts[t]); err != nil {
			return err
		}
		b.out.Replaced = append(b.out.Replaced, t)
	}
	if run := fmt.Sprintf("/run/user/%d", b.s.UID); b.exists(run) {
		b.add("blacklist", run)
		b.out.Hidden = append(b.out.Hidden, run)
	}
	return nil
}

// whitelist shows paths, those above others first and the others not again.
func (b *builder) whitelist(paths []string) error {
	slices.Sort(paths)
	shown := ""
	for _, p := range paths {
		if shown != "" && mountplan.Under(p, shown) {
			continue
		}
		shown = p
		if err := b.path("whitelist", p); err != nil {
			return err
		}
	}
	return nil
}

// homeBase is the home without what is mounted in it.
func (b *builder) homeBase() error {
	var base mountplan.Mount
	var inside []string
	for _, m := range b.s.Plan.Mounts {
		switch {
		case m.Path == b.home:
			base, inside = m, nil
		case (shows(m) || m.Kind == mountplan.Symlink) && mountplan.Under(m.Path, b.home) && b.exists(m.Path):
			inside = append(inside, m.Path)
		}
	}
	if base.Kind == mountplan.Tmpfs {
		if mountplan.Under(b.s.Init, b.home) {
			inside = append(inside, b.s.Init)
		}
		if len(inside) == 0 {
			b.add("private", "")
		}
		if err := b.whitelist(inside); err != nil {
			return err
		}
		b.out.Replaced = append(b.out.Replaced, b.home)
	}
	return nil
}

// byFirejail are the folders that firejail shows read-only by itself.
var byFirejail = []string{"/usr", "/etc", "/var", "/bin", "/sbin", "/lib", "/lib32", "/lib64"}

// protections goes through the plan in its order.
func (b *builder) protections() error {
	as := map[string]mountplan.Kind{} // how a path shows
	for _, t := range byFirejail {
		as[t] = mountplan.RO
	}
	above := func(p string) mountplan.Kind {
		for d := p; d != ""; {
			d = d[:strings.LastIndexByte(d, '/')]
			if k, ok := as[d]; ok {
				return k
			}
		}
		return ""
	}
	for _, m := range b.s.Plan.Mounts {
		if t := topOf(m.Path); t == "/proc" || t == "/dev" && m.Kind != mountplan.Dev {
			continue
		}
		cause := b.s.Plan.Causes[m.Path]
		lose := func(format string, args ...any) {
			b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: cause.Text + ": " + fmt.Sprintf(format, args...), Admin: cause.Admin})
		}
		var err error
		switch m.Kind {
		case mountplan.Tmpfs:
			as[m.Path] = m.Kind
			if m.Path == b.home && strings.HasSuffix(m.Options, ",ro") {
				as[m.Path] = mountplan.RO
				err = b.readOnly(m.Path, false)
			}
		case mountplan.RO:
			err = b.readOnly(m.Path, as[m.Path] == mountplan.RO || above(m.Path) == mountplan.RO)
			as[m.Path] = m.Kind
		case mountplan.RW:
			switch {
			case as[m.Path] == mountplan.RO || above(m.Path) == mountplan.RO:
				err = b.writable(m.Path)
			case above(m.Path) == mountplan.RW && !b.own(m.Path):
				b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: fmt.Sprintf("%q has something protected in it and can be renamed, it belongs to another user", m.Path)})
			case above(m.Path) == mountplan.RW:
				// A folder above a protection: once it is a mount point of
				// its own it cannot be renamed.
				if err = b.path("read-only", m.Path); err == nil {
					err = b.writable(m.Path)
				}
			}
			as[m.Path] = m.Kind
		case mountplan.MaskFile, mountplan.MaskDir:
			if m.Absent {
				lose("%q does not exist and would show if it were made", m.Path)
				continue
			}
			err = b.path("blacklist", m.Path)
			b.out.Hidden = append(b.out.Hidden, m.Path)
		case mountplan.Data:
			switch {
			case cause.Text == "FILTER_PASSWD":
				// Firejail shows a user database of its own making: the
				// accounts of the system and the user.
				continue
			case m.Mode != mountplan.DataRO:
				lose("no private copy of %q, the host's file is shown read-only", m.Path)
			}
			err = b.readOnly(m.Path, above(m.Path) == mountplan.RO)
		case mountplan.Dev:
			b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: fmt.Sprintf("DEVICES: %q is not there, device nodes are for bwrap only", m.Path)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) readOnly(path string, already bool) error {
	b.out.ReadOnly = append(b.out.ReadOnly, path)
	if already {
		return nil
	}
	return b.path("read-only", path)
}

// writable undoes a read-only folder above. Firejail does so for what belongs to
// the user only.
func (b *builder) writable(path string) error {
	if !b.own(path) {
		b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: fmt.Sprintf("%q stays read-only, firejail makes writable only what belongs to you", path)})
		return nil
	}
	return b.path("read-write", path)
}

func (b *builder) own(path string) bool {
	info, err := b.h.Lstat(path)
	return err == nil && int(info.UID) == b.s.UID || b.planned(path)
}
