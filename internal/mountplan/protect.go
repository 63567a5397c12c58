package mountplan

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"agent-sandbox/internal/config"
)

// closures leaves out binds that lie inside what is to be masked, and writable ones
// inside what is never writable, also where the outer folder does not show and so
// needs no mount: an entry that contradicts a protection does not uncover it.
func (b *builder) closures() error {
	masked, readOnly := map[string]string{}, map[string]string{}
	add := func(to map[string]string, from, p string) {
		if r, err := resolve(b.h, p); err == nil {
			to[r.path] = from
		}
	}
	for _, home := range b.homes() {
		for _, p := range AlwaysMasked {
			add(masked, "always masked", join(home, p))
		}
		for _, p := range AlwaysReadOnly {
			add(readOnly, "the configuration", join(home, p))
		}
	}
	for _, d := range b.in.StateDirs {
		add(masked, "the registry of sessions", d)
	}
	for _, name := range []string{"EXTRA_BLOCKED_PATHS", "BLOCKED_FILES"} {
		for _, e := range b.s.Entries(name) {
			if CleanAbs(e.Text) {
				add(masked, where(e, name), e.Text)
			}
		}
	}
	if b.in.ConfigDir != "" {
		for _, p := range []string{b.in.ConfigDir, join(b.in.ConfigDir, "conf.d")} {
			add(readOnly, "the configuration", p)
		}
	}
	inside := func(closed map[string]string, p string) string {
		for d := parent(p); d != "/"; d = parent(d) {
			if _, ok := closed[d]; ok {
				return d
			}
		}
		return ""
	}
	drop := func(m Mount) bool {
		if m.Kind != RO && m.Kind != RW {
			return false
		}
		d := inside(masked, m.Path)
		from := masked[d]
		if d == "" && m.Kind == RW {
			d = inside(readOnly, m.Path)
			from = readOnly[d]
		}
		if d != "" {
			b.warn("%q stays closed: it lies in %q, which is protected (%s)", m.Path, d, from)
		}
		return d != ""
	}
	b.base = slices.DeleteFunc(b.base, drop)
	b.rw = slices.DeleteFunc(b.rw, drop)
	if !slices.ContainsFunc(b.rw, func(m Mount) bool { return m.Path == b.in.Project }) {
		return fmt.Errorf("project folder %q lies in what is protected: %s", b.in.Project, b.plan.Warnings[len(b.plan.Warnings)-1])
	}
	b.reindex()
	return nil
}

// protections: what is always on top, in the order of precedence where two name
// the same path: masks, then files with other content, then read-only overlays.
func (b *builder) protections() error {
	for _, m := range b.in.Keep {
		// A protection that the configuration no longer has stays until the
		// session ends: loosening is never done live.
		if _, ok := b.governing(m.Path); ok {
			b.prot[m.Path] = protection{mount: m, from: "the running session"}
		}
	}
	for _, step := range []func() error{b.masks, b.slurm, b.contents, b.overlays, b.contradictions} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// request is one protection asked for.
type request struct {
	kind   Kind // MaskDir stands for either mask: the object decides
	path   string
	dir    bool // what a missing one becomes
	always bool // not the user's choice: also where it does not exist, and links to it are held
	exists bool // only where it exists
	denied bool // also where the path itself is a writable entry
	from   string
	admin  bool // the admin's file lists it
	data   []byte
}

func (b *builder) masks() error {
	for _, home := range b.homes() {
		for _, p := range AlwaysMasked {
			if err := b.protect(request{kind: MaskDir, path: join(home, p), dir: true, always: true, from: "always masked"}); err != nil {
				return err
			}
		}
	}
	for _, d := range b.in.StateDirs {
		if err := b.protect(request{kind: MaskDir, path: d, dir: true, always: true, from: "the registry of sessions"}); err != nil {
			return err
		}
	}
	if b.in.UID == 0 && b.s.Bool("FILTER_PASSWD") {
		// Root reads these in a user namespace too.
		for _, p := range []string{"/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-"} {
			if err := b.protect(request{kind: MaskDir, path: p, exists: true, from: "FILTER_PASSWD"}); err != nil {
				return err
			}
		}
	}
	for _, list := range []struct {
		name string
		dir  bool
	}{{"EXTRA_BLOCKED_PATHS", true}, {"BLOCKED_FILES", false}} {
		for _, e := range b.s.Entries(list.name) {
			if !CleanAbs(e.Text) || e.Text == "/" {
				return fmt.Errorf("%s: %q is not a path that can be masked", where(e, list.name), e.Text)
			}
			if err := b.protect(request{kind: MaskDir, path: e.Text, dir: list.dir, from: where(e, list.name), admin: byAdmin(e)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// homes are the home of the environment and that of the user database.
func (b *builder) homes() []string {
	out := []string{b.in.Home}
	if h := b.in.PasswdHome; h != b.in.Home && CleanAbs(h) && h != "/" {
		out = append(out, h)
	}
	return out
}

// contents: files shown with a content of our own.
func (b *builder) contents() error {
	for _, f := range b.in.Replace {
		if err := b.protect(request{kind: Data, path: f.Path, exists: true, data: f.Content, from: "FILTER_PASSWD"}); err != nil {
			return err
		}
	}
	for _, a := range b.in.Agents {
		if a.Instructions == "" {
			continue
		}
		p := join(b.in.Home, a.Instructions)
		r, err := resolve(b.h, p)
		if err != nil || r.found && r.info.Type != Regular {
			continue
		}
		// Only where the agent's folder is there, or is made for this launch.
		if !r.found && r.exists != parent(r.path) && !slices.Contains(b.plan.Create, parent(r.path)) {
			continue
		}
		var own []byte
		if r.found {
			if own, err = b.h.ReadFile(r.path, MaxSeed); err != nil {
				b.warn("%q keeps its own text: %v", p, err)
				continue
			}
		}
		if err := b.protect(request{kind: Data, path: p, data: a.Note(own), from: "agent " + a.Name}); err != nil {
			return err
		}
	}
	return b.seeds()
}

// seeds: private writable copies of files of the home.
func (b *builder) seeds() error {
	for _, e := range b.s.Entries("HOME_SEEDED_FILES") {
		p := join(b.in.Home, e.Text)
		r, err := resolve(b.h, p)
		if err != nil || !r.found || r.info.Type != Regular {
			if userSet(e) {
				b.warn("%s: %q is not a file and is skipped", where(e, "HOME_SEEDED_FILES"), p)
			}
			continue
		}
		content, err := b.h.ReadFile(r.path, MaxSeed)
		if err != nil {
			b.warn("%s: %q is skipped: %v", where(e, "HOME_SEEDED_FILES"), p, err)
			continue
		}
		m := Mount{Kind: Data, Path: r.path, Mode: DataRW, Content: content}
		at := join(b.home_, e.Text)
		if g, ok := b.governing(at); ok && g.Kind == Tmpfs && !strings.HasSuffix(g.Options, ",ro") {
			// A plain file there: programs that save by renaming work.
			m.Path, m.Mode = at, DataCopy
			b.links = slices.DeleteFunc(b.links, func(l link) bool { return l.path == at })
		}
		if held := b.coveredBy(m.Path); held != "" {
			b.warn("%s: %q lies in %q, which is masked", where(e, "HOME_SEEDED_FILES"), p, held)
			continue
		}
		if _, taken := b.prot[m.Path]; !taken {
			b.prot[m.Path] = protection{mount: m, from: where(e, "HOME_SEEDED_FILES"), admin: byAdmin(e)}
		}
	}
	return nil
}

// overlays: read-only inside what is writable.
func (b *builder) overlays() error {
	overlay := func(q request) error { q.kind = RO; return b.protect(q) }
	for _, e := range b.s.Entries("DENIED_WRITABLE_PATHS") {
		if err := overlay(request{path: e.Text, dir: true, denied: true, from: where(e, "DENIED_WRITABLE_PATHS"), admin: byAdmin(e)}); err != nil {
			return err
		}
	}
	always := func(p string, dir bool, from string) error {
		return overlay(request{path: p, dir: dir, always: true, denied: true, from: from})
	}
	for _, home := range b.homes() {
		for _, p := range AlwaysReadOnly {
			if err := always(join(home, p), true, "the configuration"); err != nil {
				return err
			}
		}
	}
	if b.in.ConfigDir != "" {
		// The names in it too: each may be a link to elsewhere, which may not
		// exist yet, and what comes to be there is sourced by the next launch.
		for _, d := range []struct {
			name string
			dir  bool
		}{{b.in.ConfigDir, true}, {join(b.in.ConfigDir, "sandbox.conf"), false}, {join(b.in.ConfigDir, "conf.d"), true}} {
			if err := always(d.name, d.dir, "the configuration"); err != nil {
				return err
			}
		}
	}
	for _, f := range b.in.ConfigFiles {
		if err := always(f, false, "the configuration"); err != nil {
			return err
		}
	}
	for _, f := range b.binaries() {
		if err := overlay(request{path: f, always: true, denied: true, exists: true, from: "the suite's own files"}); err != nil {
			return err
		}
	}
	for _, e := range b.s.Entries("PROJECT_READONLY") {
		for _, q := range b.projectReadOnly(e) {
			if err := overlay(q); err != nil {
				return err
			}
		}
	}
	if b.common != "" {
		// What git runs or obeys outside the sandbox: the link to the folder,
		// the hooks and the configuration.
		for _, p := range []string{join(b.in.Project, ".git"), join(b.common, "hooks"), join(b.common, "config"),
			join(b.common, "config.worktree"), join(b.gitdir, "config.worktree")} {
			if err := overlay(request{path: p, exists: true, denied: true, from: "the git worktree"}); err != nil {
				return err
			}
		}
	}
	for _, e := range b.s.Entries("READONLY_MOUNTS") {
		if err := overlay(request{path: e.Text, exists: true, from: where(e, "READONLY_MOUNTS"), admin: byAdmin(e)}); err != nil {
			return err
		}
	}
	for _, e := range b.homeReadOnly() {
		if err := overlay(request{path: join(b.in.Home, e.Text), exists: true, from: where(e, "HOME_READONLY"), admin: byAdmin(e)}); err != nil {
			return err
		}
	}
	return nil
}

// binaries are the folders of the suite's files, since a helper that is missing
// there must not be planted; the files alone where something in the folder is to
// be writable.
func (b *builder) binaries() []string {
	var out []string
	for _, f := range b.in.Binaries {
		dir := parent(f)
		if r, err := resolve(b.h, dir); err == nil && !slices.ContainsFunc(b.rw, func(m Mount) bool { return Under(m.Path, r.path) }) {
			f = dir
		}
		if !slices.Contains(out, f) {
			out = append(out, f)
		}
	}
	return out
}

// projectReadOnly are the overlays of one entry: where it exists. Of a git
// repository the hooks are held also where they are missing, since an agent that
// makes them has git run them outside, and with the configuration the second file
// that git reads beside it (git-worktree(1), CONFIGURATION FILE).
func (b *builder) projectReadOnly(e config.Entry) []request {
	at := func(name string, exists bool) request {
		return request{path: join(b.in.Project, name), exists: exists, denied: true, from: where(e, "PROJECT_READONLY"), admin: byAdmin(e)}
	}
	head, err := b.h.Lstat(join(b.in.Project, ".git/HEAD"))
	repository := err == nil && head.Type == Regular
	q := at(e.Text, true)
	switch {
	case e.Text == ".git/hooks" && repository:
		q.exists, q.dir = false, true
	case e.Text == ".git/config" && repository:
		text, err := b.h.ReadFile(join(b.in.Project, ".git/config"), MaxSeed)
		used := err != nil || strings.Contains(strings.ToLower(string(text)), "worktreeconfig")
		return []request{q, at(".git/config.worktree", !used)}
	}
	return []request{q}
}

// coveredBy is the mask that hides p, if any.
func (b *builder) coveredBy(p string) string {
	for d := p; d != "/"; d = parent(d) {
		if q, ok := b.prot[d]; ok && (q.mount.Kind == MaskDir || q.mount.Kind == MaskFile) {
			return d
		}
	}
	return ""
}

// protect adds one protection where the object is visible, and with a read-only
// overlay writable.
func (b *builder) protect(q request) error {
	r, err := resolve(b.h, q.path)
	if errors.Is(err, fs.ErrPermission) {
		// Neither we nor anyone in the session can look there.
		return nil
	}
	if err != nil {
		b.warn("%s: %q: %v", q.from, q.path, err)
		return nil
	}
	if q.kind == RO || q.kind == MaskDir && q.always {
		// Also where what they lead to does not show: another link, or a folder,
		// could be put in their place.
		if err := b.holdLinks(q, r); err != nil {
			return err
		}
	}
	if q.kind == MaskDir && !q.always && len(r.links) > 0 {
		b.maskLink(q)
	}
	g, ok := b.governing(r.path)
	if !ok || g.Kind != RO && g.Kind != RW {
		return nil // not visible
	}
	if q.kind == RO && b.heldReadOnly(r.path) {
		return nil // the overlay above it covers it
	}
	if q.kind == RO && g.Kind != RW {
		return nil // read-only already
	}
	if q.kind == RO && b.writable[r.path] && !q.denied {
		return nil // this very path is asked for as writable
	}
	if held := b.coveredBy(r.path); held != "" {
		if q.kind == RO && !q.always && !q.exists {
			b.warn("%s: %q lies in %q, which is masked: the mask stays", q.from, q.path, held)
		}
		return nil
	}
	if _, taken := b.prot[r.path]; taken {
		return nil
	}
	m := Mount{Kind: q.kind, Path: r.path, Content: q.data}
	if q.kind == MaskDir && (r.found && r.info.Type != Dir || !r.found && !q.dir) {
		m.Kind = MaskFile
	}
	if !r.found {
		if q.exists {
			return nil
		}
		if b.replaceable(r) {
			// A link that the sandbox, or whoever made the project, can point
			// anywhere: nothing is made where it leads.
			m.Absent = true
		} else if !b.placeholders(&m, r, q.dir) {
			return nil
		}
		for _, l := range r.links {
			m.Via = append(m.Via, l.path)
		}
	}
	if m.Kind == MaskFile && r.found && r.info.Type == Regular && r.info.Nlink > 1 {
		b.warn("%s: %q has %d names (hard links): only this one is masked", q.from, q.path, r.info.Nlink)
	}
	if m.Kind == MaskFile || m.Kind == MaskDir {
		b.aliases(q, r.path)
	}
	b.prot[r.path] = protection{m, q.from, q.always, q.admin}
	return nil
}

// replaceable says whether a link on the way lies where the sandbox can write.
func (b *builder) replaceable(r resolved) bool {
	return slices.ContainsFunc(r.links, func(l link) bool {
		g, ok := b.governing(l.path)
		return ok && g.Kind == RW && !b.heldReadOnly(l.path)
	})
}

// maskLink adds a line for a configured path that is a link itself. A link cannot
// be a mount point, so nothing is mounted at the start; the guard masks what comes
// to be there, or where the link leads later.
func (b *builder) maskLink(q request) {
	up, err := resolve(b.h, parent(q.path))
	if err != nil || !up.found {
		return
	}
	at := join(up.path, path.Base(q.path))
	info, err := b.h.Lstat(at)
	g, ok := b.governing(at)
	if _, taken := b.prot[at]; taken || err != nil || info.Type != Link || !ok || g.Kind != RO && g.Kind != RW {
		return
	}
	kind := MaskFile
	if q.dir {
		kind = MaskDir
	}
	b.prot[at] = protection{Mount{Kind: kind, Path: at, Absent: true}, q.from, q.always, q.admin}
}

// placeholders plans the mount point of a protection for something that does not
// exist. It is false where it can never exist.
func (b *builder) placeholders(m *Mount, r resolved, dir bool) bool {
	info, err := b.h.Lstat(r.exists)
	if err != nil {
		return false
	}
	if info.Type != Dir {
		// A file where a folder would have to be, and whoever may write there
		// can put one in its place.
		m.Absent = true
		return true
	}
	var missing []Placeholder
	for _, d := range between(r.exists, r.path) {
		missing = append(missing, Placeholder{d, true})
	}
	missing = append(missing, Placeholder{r.path, dir && m.Kind != MaskFile && m.Kind != Data})
	if !b.h.MayCreate(r.exists) {
		m.Absent = true
		return true
	}
	for _, p := range missing {
		if !slices.Contains(b.plan.Create, p.Path) {
			b.plan.Make = append(b.plan.Make, p)
		}
	}
	return true
}

// holdLinks sees to it that a link on the way to what must not be replaced cannot
// itself be replaced: the folder that holds it is made read-only. Where that
// folder is itself what was asked for as writable, there is no way to keep both.
func (b *builder) holdLinks(q request, r resolved) error {
	for _, l := range r.links {
		dir := parent(l.path)
		g, ok := b.governing(l.path)
		if !ok || g.Kind != RW || b.heldReadOnly(l.path) {
			continue
		}
		if !q.always {
			b.replaced = append(b.replaced, l.path)
			continue
		}
		if b.writable[dir] {
			return fmt.Errorf("%s: %q is a link in the writable folder %q, where the sandbox could replace it: make it a real folder, or make %q read-only (HOME_ACCESS=read)", q.from, l.path, dir, dir)
		}
		b.warn("%q is read-only in the sandbox, since it holds the link %q to %s", dir, l.path, q.from)
		b.prot[dir] = protection{Mount{Kind: RO, Path: dir}, q.from, q.always, q.admin}
	}
	return nil
}

func (b *builder) heldReadOnly(p string) bool {
	for d := parent(p); d != "/"; d = parent(d) {
		if _, ok := b.prot[d]; ok {
			return true
		}
	}
	return false
}

// aliases warns where the file system that holds a masked object is mounted a
// second time where the sandbox sees it: there the object has another name.
func (b *builder) aliases(q request, p string) {
	mounts, err := b.h.Mounts()
	if err != nil {
		return
	}
	own := -1
	for i, m := range mounts {
		if Under(p, m.Point) && (own < 0 || len(m.Point) >= len(mounts[own].Point)) {
			own = i
		}
	}
	if own < 0 {
		return
	}
	inFS := rebase(p, mounts[own].Point, mounts[own].Root)
	for i, m := range mounts {
		if i == own || m.Major != mounts[own].Major || m.Minor != mounts[own].Minor || !Under(inFS, m.Root) {
			continue
		}
		other := rebase(inFS, m.Root, m.Point)
		if g, ok := b.governing(other); ok && other != p && (g.Kind == RO || g.Kind == RW) {
			b.warn("%s: %q shows also as %q, where it is not masked", q.from, p, other)
		}
	}
}

// rebase moves a path from below one folder to below another.
func rebase(p, from, to string) string {
	rest := strings.TrimPrefix(strings.TrimPrefix(p, from), "/")
	if rest == "" {
		return to
	}
	return join(to, rest)
}

// contradictions: a writable entry inside a protection is not uncovered.
func (b *builder) contradictions() error {
	for p := range b.prot {
		// Named before the mask around it; inside that it has no mount point.
		if p != "/" && b.coveredBy(parent(p)) != "" {
			delete(b.prot, p)
		}
	}
	for _, m := range b.rw {
		for d := m.Path; d != "/"; d = parent(d) {
			q, ok := b.prot[d]
			if !ok {
				continue
			}
			if m.Path == b.in.Project {
				return fmt.Errorf("project folder %q lies in %q, which is protected (%s)", b.in.Project, d, q.from)
			}
			b.warn("%q stays closed to writing: it lies in %q, which is protected (%s)", m.Path, d, q.from)
			break
		}
	}
	b.rw = slices.DeleteFunc(b.rw, func(m Mount) bool { _, held := b.prot[m.Path]; return held || b.heldReadOnly(m.Path) })
	b.reindex()
	return nil
}
