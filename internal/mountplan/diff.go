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

// Retained gives the protections of old that wanted would loosen: they stay
// until the session ends, since loosening is never done live (user's document,
// "What cannot be reloaded"). A read-only bind counts where it lies in something
// writable; elsewhere it is what makes a path visible.
func Retained(old, wanted []Mount) []Mount {
	was, now := byPathMap(old), byPathMap(wanted)
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
		if closed(now, m.Path) < strictness(m) {
			out = append(out, m)
		}
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

// closed says how strictly a list closes the host's object at p: as a mask where
// nothing of it shows.
func closed(at map[string]Mount, p string) int {
	g, ok := nearest(at, p)
	if !ok || !g.shows() || masked(at, p) {
		return strictness(Mount{Kind: MaskDir})
	}
	return strictness(g)
}

// masked says whether a mask lies at p or above it.
func masked(at map[string]Mount, p string) bool {
	for d := p; ; d = parent(d) {
		if k := at[d].Kind; k == MaskFile || k == MaskDir {
			return true
		}
		if d == "/" {
			return false
		}
	}
}

// shows says whether the mount shows the host's objects below its path.
func (m Mount) shows() bool { return m.Kind == RO || m.Kind == RW || m.Kind == Data }

func byPathMap(list []Mount) map[string]Mount {
	m := make(map[string]Mount, len(list))
	for _, x := range list {
		m[x.Path] = x
	}
	return m
}

// nearest is the mount at p or above it; a link is none.
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
// a reload applies the changes. First what a new mask would put out of reach is
// revoked. Then protections come, on what is visible now; then writable binds,
// which carry them along: folders above a protection before the writable tree
// that they hold in place, otherwise parents first; then the other revocations,
// children first; then what cannot be done. After a reload that did all, the
// session has Next.
//
// retained are the protections that wanted has only because of Retained; shown
// are mounts that the session has beside old: a revocation leaves a path visible,
// and read-only.
func Diff(old, wanted, retained, shown []Mount) []Change {
	d := diff{was: byPathMap(old), now: byPathMap(wanted), visible: byPathMap(append(slices.Clone(shown), old...)), late: map[string]bool{}, stays: map[string]bool{}}
	for _, m := range wanted {
		if o, there := d.was[m.Path]; !there || !same(o, m) {
			d.wanted(m, o, there)
		}
	}
	for _, o := range old {
		if _, ok := d.now[o.Path]; !ok && d.was[o.Path].Kind == o.Kind {
			d.left(o)
		}
	}
	for _, m := range shown {
		// A folder that was revoked on its own, and now lies in a writable one.
		if _, ok := d.now[m.Path]; !ok && m.Kind == RO && closed(d.now, m.Path) == 0 {
			if g, _ := nearest(d.now, m.Path); !d.late[g.Path] {
				d.add = append(d.add, Change{Add, Mount{Kind: RW, Path: m.Path}, ""})
			}
		}
	}
	for _, m := range retained {
		d.restart = append(d.restart, Change{Restart, m, "needs restart: it left the configuration, and a protection stays until then"})
	}
	slices.SortStableFunc(d.revoke, func(a, b Change) int { return -comparePaths(a.Mount.Path, b.Mount.Path) })
	var first, last []Change
	for _, c := range d.revoke {
		if masked(d.now, c.Mount.Path) || d.now[c.Mount.Path].Kind == Data {
			first = append(first, c)
		} else {
			last = append(last, c)
		}
	}
	return slices.Concat(first, d.protect, d.adds(), last, d.keep, d.restart)
}

type diff struct {
	was, now, visible                   map[string]Mount
	late                                map[string]bool // wanted, and only a launch can mount it
	stays                               map[string]bool // not wanted, and only a launch takes it away
	protect, add, revoke, keep, restart []Change
}

// wanted finds what is to be done for m, where the session has o or nothing.
func (d *diff) wanted(m, o Mount, there bool) {
	g, ok := nearest(d.visible, m.Path)
	visible := ok && g.shows() && !masked(d.visible, m.Path)
	switch {
	case m.Kind == RO && there && o.Kind == RW:
		d.revoke = append(d.revoke, Change{Revoke, Mount{Kind: RW, Path: m.Path}, ""})
		return
	case m.Kind == RW && visible && (o.Kind != Data || o.Mode != DataRO):
		d.add = append(d.add, Change{Add, m, ""})
		return
	case d.comesWithParent(m, g):
		d.late[m.Path] = true
		return
	case m.Protection() && visible:
		if o.Kind == RW {
			// Under the mask it would stay writable for who is in there.
			d.revoke = append(d.revoke, Change{Revoke, o, ""})
		}
		d.protect = append(d.protect, Change{Add, m, ""})
		return
	}
	why := "only a launch can mount it"
	switch {
	case there && o.Protection() && o.Kind != RO:
		why = "it is masked in the session"
	case there:
		why = "it is " + string(o.Kind) + " in the session"
	case m.Kind == RW || m.Protection():
		why = "it is not visible in the sandbox"
	}
	d.late[m.Path] = true
	d.restart = append(d.restart, Change{Restart, m, "needs restart: " + why})
}

// comesWithParent says whether m needs no word of its own: what it lies in is
// mounted only by a launch, and it is a folder of that, or a protection in a
// session that, where g is nearest, shows nothing there to be closed.
func (d *diff) comesWithParent(m, g Mount) bool {
	if m.Path == "/" {
		return false
	}
	above, ok := nearest(d.now, parent(m.Path))
	if !ok || !d.late[above.Path] {
		return false
	}
	switch {
	case m.Kind == RW:
		return above.Kind == RW
	case m.Kind == RO:
		return g.Kind != RW
	}
	return m.Kind == Symlink || m.Protection() && !g.shows()
}

// left finds what is to be done about o, which is no longer wanted.
func (d *diff) left(o Mount) {
	g, ok := nearest(d.now, o.Path)
	switch {
	case o.Kind == RW && ok && g.Kind == RW:
		d.keep = append(d.keep, Change{Keep, o, "still under the writable path " + g.Path})
	case o.Kind == RW && ok && d.late[g.Path] && d.inWritable(o):
		// As writable as the session's mount around it, which only a launch
		// replaces.
		d.stays[o.Path] = true
	case o.Kind == RW:
		d.revoke = append(d.revoke, Change{Revoke, o, ""})
	case o.Kind == Symlink:
		// Not a mount, and it leads only to what the plan shows.
	case o.Protection() && ok && closed(d.now, o.Path) >= strictness(o) && (g.shows() || g.Protection() || d.late[g.Path]):
		// Nothing is loosened, and what lies above says what is to be said.
	case o.Kind == RO:
		d.restart = append(d.restart, Change{Restart, o, "needs restart: it left the configuration and stays visible until then"})
	default:
		d.restart = append(d.restart, Change{Restart, o, "needs restart: it left the configuration"})
	}
}

// inWritable says whether o lies in something writable that stays.
func (d *diff) inWritable(o Mount) bool {
	g, ok := nearest(d.was, parent(o.Path))
	return ok && g.Kind == RW && (d.late[g.Path] || d.stays[g.Path])
}

// adds orders the writable binds. A folder above a protection is mounted before
// the tree it lies in becomes writable: in between it could be renamed.
func (d *diff) adds() []Change {
	above := map[string]bool{}
	for _, m := range d.now {
		for p := m.Path; m.Protection() && p != "/"; p = parent(p) {
			above[parent(p)] = true
		}
	}
	added := map[string]bool{}
	for _, c := range d.add {
		added[c.Mount.Path] = true
	}
	inAdded := func(p string) bool {
		for p != "/" {
			if p = parent(p); added[p] {
				return true
			}
		}
		return false
	}
	var pins, trees []Change
	for _, c := range d.add {
		if p := c.Mount.Path; above[p] && inAdded(p) {
			pins = append(pins, c)
		} else {
			trees = append(trees, c)
		}
	}
	slices.SortStableFunc(pins, func(a, b Change) int { return -comparePaths(a.Mount.Path, b.Mount.Path) })
	return append(pins, trees...)
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

// Next is what a session's record says after a reload: the wanted mounts, for
// each change in failed what was there before, what is kept, and of what left the
// configuration all that still closes something.
func Next(old, wanted []Mount, changes []Change, failed func(Change) bool) []Mount {
	was := byPathMap(old)
	added, revoked := map[string]bool{}, map[string]bool{}
	for _, c := range changes {
		switch {
		case c.Action == Add && !failed(c):
			added[c.Mount.Path] = true
		case c.Action == Revoke && !failed(c):
			revoked[c.Mount.Path] = true
		}
	}
	var out []Mount
	have := map[string]Mount{}
	for _, m := range wanted {
		o, there := was[m.Path]
		switch {
		case there && same(o, m):
			if m.Kind == Data {
				m.Digest, m.N = o.Digest, o.N
			}
		case m.Kind == RO && there && o.Kind == RW && revoked[m.Path]:
		case !added[m.Path]:
			continue
		}
		out = append(out, m)
		have[m.Path] = m
	}
	split := len(out)
	for split > 0 && (out[split-1].Protection() || out[split-1].Kind == Data) {
		split--
	}
	head, tail := slices.Clone(out[:split]), out[split:]
	for _, o := range old {
		_, taken := have[o.Path]
		switch {
		case taken || was[o.Path].Kind != o.Kind || o.Kind == Symlink:
			continue
		case o.Kind == RW && revoked[o.Path]:
			if g, ok := nearest(have, o.Path); !ok || g.Kind != RW {
				continue
			}
			// What was to close more around it or over it was not done.
			o = Mount{Kind: RO, Path: o.Path}
		case o.Protection():
			if g, ok := nearest(have, o.Path); ok && (g.shows() || g.Protection()) && closed(have, o.Path) >= strictness(o) {
				continue
			}
		}
		head = append(head, o)
		have[o.Path] = o
	}
	return append(order(head), tail...)
}

// Strict is the record to be written before a reload applies its changes, so that
// one that is killed leaves a record that is true or stricter: what is revoked
// counts as revoked, and what is protected as protected, before it is.
func Strict(old, wanted []Mount, changes []Change) []Mount {
	return Next(old, wanted, changes, func(c Change) bool { return c.Action == Add && !c.Mount.Protection() })
}

// Planted gives a symbolic link on the way to m that stands where a session with
// the mounts old can put links: what it leads to was then not chosen by the user.
func Planted(old []Mount, m Mount) (link string, ok bool) {
	at := byPathMap(old)
	for _, l := range m.Via {
		if closed(at, l) == 0 {
			return l, true
		}
	}
	return "", false
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

// Governor gives the mount of a list that shows what is at a path.
func Governor(list []Mount) func(p string) (Mount, bool) {
	at := byPathMap(list)
	return func(p string) (Mount, bool) { return nearest(at, p) }
}

// Subject is a change's place in words: the path, with the target of a link.
func (m Mount) Subject() string {
	if m.Kind == Symlink {
		return m.Path + " -> " + strings.TrimSpace(m.Target)
	}
	return m.Path
}
