package landlock

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"agent-sandbox/internal/config"
	"agent-sandbox/internal/mountplan"
)

// Access is what a rule grants on an object and on all that lies below it.
type Access uint8

const (
	Read  Access = 1 << iota // open files for reading, execute them
	List                     // read folders
	Write                    // change files and folders, make and remove entries
	Ioctl                    // device specific ioctl(2)
)

const (
	readOnly  = Read | List
	readWrite = Read | List | Write
	device    = Read | Write | Ioctl
)

// String has a letter for each right: r, l, w, i.
func (a Access) String() string {
	s := ""
	for i, c := range "rlwi" {
		if a&(1<<i) != 0 {
			s += string(c)
		}
	}
	return s
}

// A Rule is one grant. No component of Path is a symlink.
type Rule struct {
	Path   string
	Access Access
}

// Rules is a mount plan as far as Landlock can give it.
type Rules struct {
	Rules  []Rule
	Hidden []string // objects that no rule may grant under another name
	Closed []string // folders granted entry by entry: nothing can be made directly in them
	Losses []mountplan.Loss
}

// Share sets what a plan for Landlock is made with: the protections that need a
// file system of the session's own off, so that what lies in those of the host is
// planned for.
func Share(s *config.Settings) {
	for _, name := range []string{"PRIVATE_TMP", "PRIVATE_IPC", "FILTER_PASSWD"} {
		s.Set(name, []config.Entry{{Text: "false"}})
	}
}

// Lister reads folders of the host.
type Lister interface {
	Lstat(path string) (mountplan.Info, error)
	ReadDir(path string) ([]string, error)
}

// FromPlan turns a plan into rules. Rights add up along a path and nothing takes
// them away further down, so a folder with a protection inside is granted entry
// by entry, leaving out the protected one:
//
//   - where the folder is read-only, always. It cannot be listed if a folder
//     inside is hidden, since the right to list would reach into that;
//   - where the folder is writable, only for what is protected whatever the
//     configuration says (keys, the registry, the configuration): no new entry
//     can be made in a folder granted this way, which for a project would be
//     worse than no session. Other protections in it are lost.
//
// The plan is made with settings after Share: there is no /tmp but the host's.
func FromPlan(h Lister, p *mountplan.Plan) (*Rules, error) {
	b := &rules{h: h, causes: p.Causes}
	root := &node{path: "/"}
	for _, m := range p.Mounts {
		root.add(m)
		if m.Kind == mountplan.Data && m.Mode != mountplan.DataRO {
			cause := p.Causes[m.Path]
			b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: fmt.Sprintf("%s: no private copy of %q, the host's file is shown read-only", cause.Text, m.Path), Admin: cause.Admin})
		}
	}
	if err := b.visit(root, hidden); err != nil {
		return nil, err
	}
	slices.SortFunc(b.out.Rules, func(x, y Rule) int { return strings.Compare(x.Path, y.Path) })
	return &b.out, nil
}

// A mode is what a mount makes of what is at its path, weakest first.
type mode int

const (
	inherit mode = iota
	hidden
	visible  // read-only
	writable // and readable
	special  // a device
)

func modeOf(m mountplan.Mount) mode {
	switch m.Kind {
	case mountplan.RO, mountplan.Data, mountplan.Proc:
		return visible
	case mountplan.RW:
		return writable
	case mountplan.Dev:
		return special
	}
	return hidden
}

// A node is a path that the plan names, or a folder above one.
type node struct {
	path  string
	mode  mode
	mount mountplan.Mount
	below map[string]*node
}

func (n *node) add(m mountplan.Mount) {
	if m.Kind == mountplan.Symlink {
		return // the host has it
	}
	for name := range strings.SplitSeq(strings.Trim(m.Path, "/"), "/") {
		next := n.below[name]
		if next == nil {
			if n.below == nil {
				n.below = map[string]*node{}
			}
			next = &node{path: join(n.path, name)}
			n.below[name] = next
		}
		n = next
	}
	// What was mounted below before is covered.
	n.mode, n.mount, n.below = modeOf(m), m, nil
	if m.Kind == mountplan.DevFS {
		for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
			n.add(mountplan.Mount{Kind: mountplan.Dev, Path: "/" + name})
		}
	}
}

func join(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

type rules struct {
	h      Lister
	causes map[string]mountplan.Cause
	out    Rules
}

func (b *rules) grant(path string, a Access) { b.out.Rules = append(b.out.Rules, Rule{path, a}) }

// visit makes the rules for n and what is below it; m is how the nearest mount
// above shows it.
func (b *rules) visit(n *node, m mode) error {
	if n.mode != inherit {
		m = n.mode
	}
	switch m {
	case hidden:
		if n.mount.Protection() {
			b.out.Hidden = append(b.out.Hidden, n.path)
		}
	case special:
		b.grant(n.path, device)
		return nil
	default:
		weaker := n.weaker(m)
		if len(weaker) == 0 || m == writable && !slices.ContainsFunc(weaker, b.always) {
			b.grant(n.path, access(m))
			for _, w := range weaker {
				b.lost(w)
			}
			return b.stronger(n, m)
		}
		return b.split(n, m)
	}
	return b.stronger(n, m)
}

func access(m mode) Access {
	if m == writable {
		return readWrite
	}
	return readOnly
}

// stronger visits what is mounted below n and shows more than m, or is a
// protection that a rule above has not taken account of.
func (b *rules) stronger(n *node, m mode) error {
	for _, c := range sorted(n.below) {
		var err error
		switch {
		case c.mode > m || m == hidden && c.mode != inherit:
			err = b.visit(c, m)
		default:
			err = b.stronger(c, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// weaker are the mounts below n that show less than m; those below a lost
// protection are among them.
func (n *node) weaker(m mode) []*node {
	var out []*node
	for _, c := range sorted(n.below) {
		if c.mode != inherit && c.mode < m {
			out = append(out, c)
		}
		out = append(out, c.weaker(m)...)
	}
	return out
}

// split grants the entries of n one by one, but those that a mount below n is at
// or under.
func (b *rules) split(n *node, m mode) error {
	names, err := b.h.ReadDir(n.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // and cannot be made, in a folder that is split as well
	}
	if err != nil {
		return fmt.Errorf("cannot leave %q out of %q: %w", n.weaker(m)[0].path, n.path, err)
	}
	b.out.Closed = append(b.out.Closed, n.path)
	if !n.hidesFolder() {
		b.grant(n.path, List)
	}
	for _, name := range names {
		if n.below[name] != nil {
			continue
		}
		path := join(n.path, name)
		info, err := b.h.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, mountplan.ErrNoAnswer):
		case err != nil:
			return fmt.Errorf("cannot leave %q out of %q: %w", n.weaker(m)[0].path, n.path, err)
		case info.Type != mountplan.Link: // a link shows what its target shows
			b.grant(path, access(m))
		}
	}
	for _, c := range sorted(n.below) {
		if err := b.visit(c, m); err != nil {
			return err
		}
	}
	return nil
}

// hidesFolder says whether anything below n that is hidden is a folder.
func (n *node) hidesFolder() bool {
	for _, c := range n.below {
		if c.mode == hidden && c.mount.Kind != mountplan.MaskFile || c.hidesFolder() {
			return true
		}
	}
	return false
}

// always says whether there is no session without the protection: it is none of
// the configuration's, or hides a folder that something wider would show.
func (b *rules) always(n *node) bool {
	cause, ok := b.causes[n.path]
	return !ok || cause.Always
}

// lost notes a protection inside a writable folder.
func (b *rules) lost(n *node) {
	cause := b.causes[n.path]
	what := "can be changed"
	if n.mode == hidden {
		what = "can be seen and changed"
	}
	b.out.Losses = append(b.out.Losses, mountplan.Loss{Text: fmt.Sprintf("%s: %q %s, it lies in a writable folder", cause.Text, n.path, what), Admin: cause.Admin})
}

func sorted(m map[string]*node) []*node {
	out := make([]*node, 0, len(m))
	for _, n := range m {
		out = append(out, n)
	}
	slices.SortFunc(out, func(x, y *node) int { return strings.Compare(x.path, y.path) })
	return out
}
