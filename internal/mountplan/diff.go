package mountplan

import (
	"slices"
	"strings"
)

// Action is what a change of a running session is, the first word of a line of
// agent-sandbox-reload(1).
type Action string

const (
	Add     Action = "ADD"
	Revoke  Action = "REVOKE"
	Keep    Action = "KEEP"
	Restart Action = "RESTART"
)

// Change is one difference between the mounts of a session and those wanted.
type Change struct {
	Action Action
	Mount  Mount
	Detail string // why, for Keep and Restart
}

// Retained gives the protections of old that wanted no longer has: they stay
// until the session ends, since loosening is never done live (user's document,
// "What cannot be reloaded"). A read-only bind counts where it lies in something
// writable; elsewhere it is what makes a path visible.
func Retained(old, wanted []Mount) []Mount {
	now := byPathMap(wanted)
	was := byPathMap(old)
	var out []Mount
	for _, m := range old {
		if !m.Protection() || was[m.Path].Kind != m.Kind {
			continue
		}
		if m.Kind == RO {
			if g, ok := nearest(was, parent(m.Path)); m.Path == "/" || !ok || g.Kind != RW {
				continue
			}
		}
		if n, ok := now[m.Path]; ok && strictness(n) >= strictness(m) {
			continue
		}
		out = append(out, m)
	}
	return out
}

// strictness orders what may be at one path.
func strictness(m Mount) int {
	switch m.Kind {
	case MaskFile, MaskDir:
		return 3
	case Data:
		if m.Mode == DataRO {
			return 2
		}
	case RO:
		return 1
	}
	return 0
}

func byPathMap(list []Mount) map[string]Mount {
	m := make(map[string]Mount, len(list))
	for _, x := range list {
		m[x.Path] = x
	}
	return m
}

func nearest(at map[string]Mount, p string) (Mount, bool) {
	for d := p; ; d = parent(d) {
		if m, ok := at[d]; ok && m.Kind != Symlink {
			return m, true
		}
		if d == "/" {
			return Mount{}, false
		}
	}
}

// Diff compares the mounts of a session with those wanted, in the order in which
// a reload applies the changes: protections on what is visible now; then writable
// binds, parents first, which carry them along; then revocations, children first;
// then what cannot be done. After a reload that did all, the session has Next.
//
// retained are the protections that wanted has only because of Retained.
func Diff(old, wanted, retained []Mount) []Change {
	was, now := byPathMap(old), byPathMap(wanted)
	var protect, add, revoke, keep, restart []Change
	for _, m := range wanted {
		o, there := was[m.Path]
		if there && same(o, m) {
			continue
		}
		g, visible := nearest(was, m.Path)
		visible = visible && (g.Kind == RO || g.Kind == RW || g.Kind == Data)
		late := func(why string) { restart = append(restart, Change{Restart, m, "needs restart: " + why}) }
		switch {
		case m.Kind == RW && there && o.Protection() && o.Kind != RO:
			late("it is masked in the session")
		case m.Kind == RW && visible:
			add = append(add, Change{Add, m, ""})
		case m.Kind == RO && there && o.Kind == RW:
			revoke = append(revoke, Change{Revoke, Mount{Kind: RW, Path: m.Path}, ""})
		case m.Protection() && visible:
			protect = append(protect, Change{Add, m, ""})
		case m.Kind == RW || m.Protection():
			late("it is not visible in the sandbox")
		case there:
			late("it is " + string(o.Kind) + " in the session")
		default:
			late("only a launch can mount it")
		}
	}
	for _, o := range old {
		if _, ok := now[o.Path]; ok || was[o.Path].Kind != o.Kind {
			continue
		}
		switch o.Kind {
		case RW:
			if g, ok := nearest(now, o.Path); ok && g.Kind == RW {
				keep = append(keep, Change{Keep, o, "still under the writable path " + g.Path})
			} else {
				revoke = append(revoke, Change{Revoke, o, ""})
			}
		case Symlink:
			// Not a mount, and it leads only to what the plan shows.
		case RO:
			if g, ok := nearest(now, o.Path); !ok || g.Kind != RO && g.Kind != RW {
				restart = append(restart, Change{Restart, o, "needs restart: it left the configuration and stays visible until then"})
			}
		default:
			restart = append(restart, Change{Restart, o, "needs restart: it left the configuration"})
		}
	}
	for _, m := range retained {
		restart = append(restart, Change{Restart, m, "needs restart: it left the configuration, and a protection stays until then"})
	}
	slices.SortStableFunc(revoke, func(a, b Change) int { return -comparePaths(a.Mount.Path, b.Mount.Path) })
	return slices.Concat(protect, add, revoke, keep, restart)
}

// same says whether two mounts at one path show the same to the session. The
// content of a Data mount is a snapshot of the launch, which no reload renews.
func same(a, b Mount) bool {
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case RO, RW, Dev:
		return a.From() == b.From()
	case Symlink:
		return a.Target == b.Target
	case Tmpfs:
		return a.Options == b.Options
	case Data:
		return a.Mode == b.Mode
	}
	return true
}

// Next is what a session's record says after a reload: the wanted mounts, each
// change in failed as it was before, and what is kept or cannot be taken away.
func Next(old, wanted []Mount, changes []Change, failed func(Change) bool) []Mount {
	was := byPathMap(old)
	undo := map[string]bool{}   // wanted, but not there: what was there stays
	remain := map[string]bool{} // not wanted, but there
	for _, c := range changes {
		_, there := was[c.Mount.Path]
		switch {
		case c.Action == Keep:
			remain[c.Mount.Path] = true
		case c.Action == Restart || failed(c):
			undo[c.Mount.Path] = true
			remain[c.Mount.Path] = there
		}
	}
	var out []Mount
	for _, m := range wanted {
		if undo[m.Path] && !(was[m.Path].Path != "" && same(was[m.Path], m)) {
			continue
		}
		if o, ok := was[m.Path]; ok && m.Kind == Data && o.Kind == Data {
			m.Digest, m.N = o.Digest, o.N
		}
		out = append(out, m)
	}
	have := byPathMap(out)
	split := len(out)
	for split > 0 && (out[split-1].Protection() || out[split-1].Kind == Data) {
		split--
	}
	head, tail := slices.Clone(out[:split]), out[split:]
	for _, o := range old {
		if _, ok := have[o.Path]; !ok && remain[o.Path] && was[o.Path].Kind == o.Kind {
			head = append(head, o)
		}
	}
	return append(order(head), tail...)
}

// Inside gives the mounts of a list strictly below p.
func Inside(list []Mount, p string) []Mount {
	var out []Mount
	for _, m := range list {
		if m.Path != p && Under(m.Path, p) && m.Kind != Symlink {
			out = append(out, m)
		}
	}
	return out
}

// Governing is the mount of a list that shows what is at p.
func Governing(list []Mount, p string) (Mount, bool) { return nearest(byPathMap(list), p) }

// Subject is a change's place in words: the path, with the target of a link.
func (m Mount) Subject() string {
	if m.Kind == Symlink {
		return m.Path + " -> " + strings.TrimSpace(m.Target)
	}
	return m.Path
}
