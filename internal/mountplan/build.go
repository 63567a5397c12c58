package mountplan

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"strings"

	"agent-sandbox/internal/config"
)

// Input is all a plan is made from, besides the host's file system.
type Input struct {
	Settings    *config.Settings
	UID         int
	Home        string   // $HOME
	PasswdHome  string   // home of the user database
	Project     string   // physical
	RuntimeDir  string   // $XDG_RUNTIME_DIR, empty where there is none
	StateDirs   []string // every agent-sandbox state and runtime folder: masked
	ConfigDir   string   // configuration folder in use
	ConfigFiles []string // files that were sourced for the user, SANDBOX_CONF among them
	Binaries    []string // the suite's own files
	Agents      []Agent  // enabled agents
	Replace     []File   // files of /etc shown with other content (FILTER_PASSWD)
	Keep        []Mount  // protections of a running session that stay whatever the settings say
	Slurm       *Slurm   // the Slurm proxy, nil where none runs
}

// Agent is what an agent's profile means for the mounts, beside its paths, which
// the settings have in HOME_WRITABLE and HOME_READONLY; paths are relative to the home.
type Agent struct {
	Name         string
	Make         []string // folders that are made where they are missing: the agent is about to be used
	Instructions string   // instruction file, empty where the agent has none
	// Note gives the instruction file as the agent sees it, from the user's own text.
	Note func(own []byte) []byte
}

// Slurm is what the Slurm proxy means for the mounts.
type Slurm struct {
	Stub     string   // the client program on the host
	Names    []string // what it is called in the session
	Commands []string // Slurm's own commands on the host, which it covers
}

// File is a file that is shown with a content of the launcher's making.
type File struct {
	Path    string
	Content []byte
}

// Placeholder is an empty file or folder that the host lacks and that a mask
// needs as its mount point; it is removed when the session has ended.
type Placeholder struct {
	Path string
	Dir  bool
}

// Plan is what a session's file system is made of.
type Plan struct {
	Mounts   []Mount       // in the order in which they are mounted
	Make     []Placeholder // to be made on the host first, upper folders first
	Create   []string      // folders that the user asked for and that stay, upper folders first
	Warnings []string
	Causes   map[string]Cause // why a protection is there, by its path
}

// Cause is where a protection comes from, for backends that cannot give every one.
type Cause struct {
	Text   string // the variable and where it was set, or what is protected
	Always bool   // not the user's choice
	Admin  bool   // the admin's file lists it
}

// A Loss is a protection of a plan that a backend cannot give.
type Loss struct {
	Text  string // what it is and where it was configured
	Admin bool   // the admin's file asks for it: there is no session without it
}

// MaxSeed is the size in bytes up to which a file is seeded.
const MaxSeed = 1 << 20

// AlwaysMasked are the folders below every home that are shown empty whatever
// the configuration says (contract 5).
var AlwaysMasked = []string{".ssh", ".aws", ".gnupg"}

// AlwaysReadOnly are the folders below every home that are never writable.
var AlwaysReadOnly = []string{".config/agent-sandbox", ".config/agent-sandbox-exec"}

// Build makes the plan. An error means that no sandbox can be had with these
// settings: what is wrong, and where the setting came from.
func Build(h Host, in Input) (*Plan, error) {
	b := &builder{h: cached(h), in: in, s: in.Settings, writable: map[string]bool{}, prot: map[string]protection{}}
	for _, step := range []func() error{
		b.kernel, b.proxy, b.readOnly, b.home, b.writables, b.closures, b.protections, b.assemble,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return &b.plan, nil
}

type builder struct {
	h    Host
	in   Input
	s    *config.Settings
	plan Plan

	base     []Mount          // kernel file systems, read-only paths, home base
	rw       []Mount          // writable binds
	writable map[string]bool  // paths of rw, and of a writable home
	home_    string           // $HOME with links followed
	denied   []string         // DENIED_WRITABLE_PATHS, literal and resolved
	links    []link           // met on the way to bound paths
	grants   []grant          // what the configuration's entries led to
	at       map[string]Mount // what base and rw mount at a path
	replaced []string         // links in writable folders on the way to what is read-only
	prot     map[string]protection
	common   string // common folder of the project's git worktree, where it has one
	gitdir   string // the worktree's own folder in it
}

type protection struct {
	mount  Mount
	from   string // where it was configured, for messages
	always bool
	admin  bool
}

func (b *builder) warn(format string, args ...any) {
	b.plan.Warnings = append(b.plan.Warnings, fmt.Sprintf(format, args...))
}

func where(e config.Entry, name string) string {
	switch {
	case e.Origin.File != "" && e.Origin.Line > 0:
		return fmt.Sprintf("%s (%s line %d)", name, e.Origin.File, e.Origin.Line)
	case e.Origin.File != "":
		return fmt.Sprintf("%s (%s)", name, e.Origin.File)
	}
	return name
}

func byAdmin(e config.Entry) bool { return e.Origin.Layer == "admin" }

func userSet(e config.Entry) bool { return e.Origin.Layer != "default" && e.Origin.Layer != "agent" }

// kernel: what is fresh in every session.
func (b *builder) kernel() error {
	add := func(k Kind, p, options string) { b.base = append(b.base, Mount{Kind: k, Path: p, Options: options}) }
	add(Proc, "/proc", "")
	add(DevFS, "/dev", "")
	if !b.s.Bool("PRIVATE_IPC") {
		add(RW, "/dev/shm", "")
	}
	if err := b.devices(); err != nil {
		return err
	}
	add(Tmpfs, "/run", "mode=0755")
	if b.in.RuntimeDir != "" && Under(b.in.RuntimeDir, "/run") && b.in.RuntimeDir != "/run" {
		add(Tmpfs, b.in.RuntimeDir, "mode=0700")
	}
	for _, tmp := range []string{"/tmp", "/var/tmp"} {
		if b.s.Bool("PRIVATE_TMP") {
			add(Tmpfs, tmp, "mode=1777")
		} else if r, err := resolve(b.h, tmp); err == nil && r.found {
			b.note(r)
			add(RW, r.path, "")
			b.writable[r.path] = true
			b.sockets(r.path)
		}
	}
	return nil
}

// maxSockets is how many sockets of a shared /tmp a warning names.
const maxSockets = 10

// sockets warns of those in a shared /tmp, and in its folders: an agent can talk to
// what listens there (X11, tmux, an ssh agent).
func (b *builder) sockets(tmp string) {
	var found []string
	look := func(dir string) (folders []string) {
		names, _ := b.h.ReadDir(dir)
		for _, n := range names {
			info, err := b.h.Lstat(join(dir, n))
			switch {
			case err != nil:
			case info.Socket:
				found = append(found, join(dir, n))
			case info.Type == Dir:
				folders = append(folders, join(dir, n))
			}
		}
		return folders
	}
	for _, dir := range look(tmp) {
		look(dir)
	}
	if len(found) == 0 {
		return
	}
	more := ""
	if n := len(found) - maxSockets; n > 0 {
		found, more = found[:maxSockets], fmt.Sprintf(" and %d more", n)
	}
	b.warn("PRIVATE_TMP=false: the sandbox can connect to the sockets in %q: %q%s", tmp, found, more)
}

// devices: nodes that DEVICES names and DEVICES_BLACKLIST does not.
func (b *builder) devices() error {
	black := b.s.Strings("DEVICES_BLACKLIST")
	var nodes []string
	for _, e := range b.s.Entries("DEVICES") {
		found := b.glob(e.Text)
		if len(found) == 0 && userSet(e) {
			b.warn("%s: no device matches %q", where(e, "DEVICES"), e.Text)
		}
		for _, p := range found {
			r, err := resolve(b.h, p)
			if err != nil || !r.found || !r.info.Device {
				continue
			}
			if matchAny(black, p) || matchAny(black, r.path) {
				b.warn("%s: %q is in DEVICES_BLACKLIST and stays out", where(e, "DEVICES"), p)
				continue
			}
			nodes = append(nodes, r.path)
		}
	}
	slices.Sort(nodes)
	for _, p := range slices.Compact(nodes) {
		b.base = append(b.base, Mount{Kind: Dev, Path: p})
	}
	return nil
}

func matchAny(globs []string, p string) bool {
	return slices.ContainsFunc(globs, func(g string) bool {
		// A pattern that names a folder means all below it.
		for d := p; d != "/"; d = parent(d) {
			if ok, _ := path.Match(g, d); ok {
				return true
			}
		}
		return false
	})
}

// glob expands a pattern of path.Match below the host's root.
func (b *builder) glob(pattern string) []string {
	if !CleanAbs(pattern) {
		return nil
	}
	found := []string{"/"}
	for part := range strings.SplitSeq(pattern[1:], "/") {
		var next []string
		for _, dir := range found {
			names := []string{part}
			if strings.ContainsAny(part, `*?[\`) {
				names, _ = b.h.ReadDir(dir)
			}
			for _, n := range names {
				if ok, _ := path.Match(part, n); !ok && n != part {
					continue
				}
				if _, err := b.h.Lstat(join(dir, n)); err == nil {
					next = append(next, join(dir, n))
				}
			}
		}
		found = next
	}
	return found
}

// note keeps the links met on the way to a bound path, so that its literal
// spelling works inside as well.
func (b *builder) note(r resolved) { b.links = append(b.links, r.links...) }

// bind resolves an entry that is to be bound. ok is false where it is left out,
// with a warning where the user named it.
func (b *builder) bind(e config.Entry, name, p string) (r resolved, ok bool, err error) {
	if !CleanAbs(p) {
		return r, false, fmt.Errorf("%s: %q is not a clean absolute path", where(e, name), p)
	}
	r, err = resolve(b.h, p)
	if err != nil {
		b.warn("%s: %q is left out: %v", where(e, name), p, err)
		return r, false, nil
	}
	if r.path == "/" || Under(r.path, "/proc") {
		return r, false, fmt.Errorf("%s: %q would show %q of the host: name the folders that are needed", where(e, name), p, r.path)
	}
	return r, true, nil
}

// A grant is what an entry of the configuration shows, and by which links.
type grant struct {
	kind  Kind
	path  string
	links []link
	entry config.Entry
	name  string // of the variable
}

func (b *builder) grant(r resolved, k Kind, e config.Entry, name string) {
	b.note(r)
	b.grants = append(b.grants, grant{k, r.path, r.links, e, name})
}

// dropForged takes back what only a link in a writable folder leads to: an earlier
// session may have put it there, to be shown what it points to by this one. A link
// to what is granted without it is no harm.
func (b *builder) dropForged() {
	granted := func(g grant) bool { // without the grant itself
		var governs Mount
		for _, m := range slices.Concat(b.base, b.rw) {
			if (m.Path != g.path || m.Kind != g.kind) && Under(g.path, m.Path) && len(m.Path) >= len(governs.Path) {
				governs = m
			}
		}
		ok := governs.Kind == RW || governs.Kind == RO && g.kind == RO
		for _, e := range b.homeReadOnly() {
			// Read-only in a writable home.
			if p := join(b.home_, e.Text); g.kind == RW && Under(g.path, p) && len(p) >= len(governs.Path) {
				ok = false
			}
		}
		return ok || slices.ContainsFunc(b.grants, func(o grant) bool { return o.path == g.path && o.kind == g.kind && len(o.links) == 0 })
	}
	writable := func(p string) (string, bool) {
		for _, m := range slices.Concat(b.base, b.rw) {
			if m.Kind == RW && Under(p, m.Path) {
				return m.Path, true
			}
		}
		return "", false
	}
	drop := func(g grant) bool {
		for _, l := range g.links {
			dir, ok := writable(parent(l.path))
			if !ok || g.path == b.home_ || granted(g) {
				continue
			}
			b.warn("%s: %q is not granted: only the link %q leads to it, and that lies in %q, where a sandbox may have put it; name %q itself to grant it",
				where(g.entry, g.name), g.path, l.path, dir, g.path)
			same := func(m Mount) bool { return m.Path == g.path && m.Kind == g.kind }
			b.base, b.rw = slices.DeleteFunc(b.base, same), slices.DeleteFunc(b.rw, same)
			if g.kind == RW {
				delete(b.writable, g.path)
			}
			return true
		}
		return false
	}
	// What is dropped may have been what made another one harmless.
	for n := -1; n != len(b.grants); {
		n = len(b.grants)
		b.grants = slices.DeleteFunc(b.grants, drop)
	}
}

func (b *builder) readOnly() error {
	for _, e := range b.s.Entries("READONLY_MOUNTS") {
		r, ok, err := b.bind(e, "READONLY_MOUNTS", e.Text)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if !r.found {
			if userSet(e) {
				b.warn("%s: %q does not exist and is skipped", where(e, "READONLY_MOUNTS"), e.Text)
			}
			continue
		}
		b.grant(r, RO, e, "READONLY_MOUNTS")
		b.addRO(r.path)
	}
	// The resolver's configuration often lies in /run, which is fresh inside.
	if r, err := resolve(b.h, "/etc/resolv.conf"); err == nil && r.found && r.info.Type == Regular {
		b.note(r)
		b.addRO(r.path)
	}
	return nil
}

// addRO adds a read-only bind unless one that is there shows the path already.
func (b *builder) addRO(p string) {
	for i := len(b.base) - 1; i >= 0; i-- {
		if m := b.base[i]; Under(p, m.Path) && m.Kind != Symlink {
			if m.Kind == RO {
				return
			}
			break
		}
	}
	// A wider bind makes narrower ones before it pointless.
	b.base = slices.DeleteFunc(b.base, func(m Mount) bool { return m.Kind == RO && Under(m.Path, p) })
	b.base = append(b.base, Mount{Kind: RO, Path: p})
}

// home: the base, then the read-only entries of the home.
func (b *builder) home() error {
	if !CleanAbs(b.in.Home) || b.in.Home == "/" {
		return fmt.Errorf("HOME is %q: it has to be the absolute path of a folder", b.in.Home)
	}
	r, err := resolve(b.h, b.in.Home)
	if err != nil {
		return fmt.Errorf("home folder: %w", err)
	}
	if !r.found || r.info.Type != Dir {
		return fmt.Errorf("home folder %q is not a folder", b.in.Home)
	}
	b.note(r)
	b.home_ = r.path
	switch b.s.Scalar("HOME_ACCESS") {
	case "restricted":
		b.base = append(b.base, Mount{Kind: Tmpfs, Path: r.path, Options: "mode=0700,ro"})
	case "tmpwrite":
		b.base = append(b.base, Mount{Kind: Tmpfs, Path: r.path, Options: "mode=0700"})
	case "read":
		b.addRO(r.path)
	case "write":
		b.base = append(b.base, Mount{Kind: RW, Path: r.path})
		b.writable[r.path] = true
	default:
		return fmt.Errorf("HOME_ACCESS is %q: want restricted, tmpwrite, read or write", b.s.Scalar("HOME_ACCESS"))
	}
	for _, e := range b.homeReadOnly() {
		r, ok, err := b.bind(e, "HOME_READONLY", join(b.in.Home, e.Text))
		if err != nil {
			return err
		}
		if !ok || !r.found {
			continue
		}
		b.grant(r, RO, e, "HOME_READONLY")
		if b.s.Scalar("HOME_ACCESS") != "write" {
			b.addRO(r.path)
		}
	}
	return nil
}

func (b *builder) homeReadOnly() []config.Entry {
	seeded := b.s.Strings("HOME_SEEDED_FILES")
	var out []config.Entry
	for _, e := range b.s.Entries("HOME_READONLY") {
		if !slices.Contains(seeded, e.Text) {
			out = append(out, e)
		}
	}
	return out
}

// writables: home entries, the project, EXTRA_WRITABLE_PATHS, a worktree's common folder.
func (b *builder) writables() error {
	for _, e := range b.s.Entries("DENIED_WRITABLE_PATHS") {
		b.denied = append(b.denied, e.Text)
		if r, err := resolve(b.h, e.Text); err == nil {
			b.denied = append(b.denied, r.path)
		}
	}
	for _, e := range b.s.Entries("HOME_WRITABLE") {
		used := slices.ContainsFunc(b.in.Agents, func(a Agent) bool { return slices.Contains(a.Make, e.Text) })
		if err := b.addRW(e, "HOME_WRITABLE", join(b.in.Home, e.Text), used || userSet(e)); err != nil {
			return err
		}
	}
	r, err := resolve(b.h, b.in.Project)
	if err != nil {
		return fmt.Errorf("project folder: %w", err)
	}
	if !r.found || r.info.Type != Dir {
		return fmt.Errorf("project folder %q is not a folder", b.in.Project)
	}
	if r.path != b.in.Project { // it was found without links right before
		return fmt.Errorf("project folder %q was replaced by a link to %q meanwhile", b.in.Project, r.path)
	}
	if d := b.deniedBy(b.in.Project, r.path); d != "" {
		return fmt.Errorf("project folder %q lies under %q, which DENIED_WRITABLE_PATHS forbids", b.in.Project, d)
	}
	b.note(r)
	b.pushRW(r.path)
	for _, e := range b.s.Entries("EXTRA_WRITABLE_PATHS") {
		if err := b.addRW(e, "EXTRA_WRITABLE_PATHS", e.Text, false); err != nil {
			return err
		}
	}
	b.reindex()
	b.worktree(r.path)
	b.dropForged()
	slices.SortStableFunc(b.rw, byPath)
	b.reindex()
	return nil
}

// addRW adds a writable bind; create says that a missing folder is made.
func (b *builder) addRW(e config.Entry, name, p string, create bool) error {
	r, ok, err := b.bind(e, name, p)
	if err != nil || !ok {
		return err
	}
	if d := b.deniedBy(p, r.path); d != "" {
		b.warn("%s: %q lies under %q, which DENIED_WRITABLE_PATHS forbids, and is left out", where(e, name), p, d)
		return nil
	}
	if !r.found {
		switch {
		case create && Under(r.path, b.home_):
			for _, d := range append(between(r.exists, r.path), r.path) {
				if !slices.Contains(b.plan.Create, d) {
					b.plan.Create = append(b.plan.Create, d)
				}
			}
		case userSet(e):
			b.warn("%s: %q does not exist and is skipped", where(e, name), p)
			return nil
		default:
			return nil
		}
	}
	b.grant(r, RW, e, name)
	b.pushRW(r.path, r.links...)
	return nil
}

func (b *builder) pushRW(p string, via ...link) {
	b.writable[p] = true
	at := slices.IndexFunc(b.rw, func(m Mount) bool { return m.Path == p })
	if at >= 0 && len(via) > 0 {
		return
	}
	m := Mount{Kind: RW, Path: p}
	for _, l := range via {
		m.Via = append(m.Via, l.path)
	}
	if at >= 0 {
		b.rw[at] = m // named without a link as well
		return
	}
	b.rw = append(b.rw, m)
}

func (b *builder) deniedBy(paths ...string) string {
	for _, d := range b.denied {
		for _, p := range paths {
			if Under(p, d) {
				return d
			}
		}
	}
	return ""
}

// byPath orders parents before children.
func byPath(x, y Mount) int { return comparePaths(x.Path, y.Path) }

func comparePaths(x, y string) int {
	return slices.Compare(strings.Split(x, "/"), strings.Split(y, "/"))
}

func (b *builder) reindex() {
	b.at = make(map[string]Mount, len(b.base)+len(b.rw))
	for _, list := range [][]Mount{b.base, b.rw} {
		for _, m := range list {
			b.at[m.Path] = m
		}
	}
}

// governing is the mount that shows what is at p: the nearest one at p or above it.
func (b *builder) governing(p string) (Mount, bool) {
	for d := p; ; d = parent(d) {
		if m, ok := b.at[d]; ok {
			return m, true
		}
		if d == "/" {
			return Mount{}, false
		}
	}
}

// assemble puts everything in order: folders above a protection become mount
// points of their own, links that no bind shows are made, data gets its numbers.
func (b *builder) assemble() error {
	prots := make([]Mount, 0, len(b.prot))
	b.plan.Causes = make(map[string]Cause, len(b.prot))
	for at, p := range b.prot {
		prots = append(prots, p.mount)
		b.plan.Causes[at] = Cause{p.from, p.always, p.admin}
	}
	slices.SortFunc(prots, byPath)

	// A folder above a protection could be renamed away, and another put in its
	// place; a mount point cannot (rename(2), EBUSY). That holds through every
	// writable mount that the protection lies in, not the nearest alone: a project
	// in a writable home moves with the folder that it lies in.
	for _, m := range slices.Concat(b.base, prots) {
		if m.Absent || m.Kind == RW || m.Kind == Data && m.Mode != DataRO || m.Path == "/" {
			continue
		}
		for p := m.Path; ; {
			g, ok := b.governing(parent(p))
			if !ok || g.Kind != RW || !b.pinBetween(g.Path, p) || g.Path == "/" {
				break
			}
			p = g.Path
		}
	}
	b.reindex()

	var links []Mount
	for _, l := range b.links {
		g, ok := b.governing(l.path)
		if ok && (g.Kind == RO || g.Kind == RW) {
			continue // the bind shows the link itself
		}
		m := Mount{Kind: Symlink, Path: l.path, Target: l.target}
		links = append(links, m)
	}
	slices.SortFunc(links, byPath)
	links = slices.CompactFunc(links, func(x, y Mount) bool { return x.Path == y.Path })

	slices.SortStableFunc(b.rw, byPath)
	b.plan.Mounts = append(order(slices.Concat(b.base, links, b.rw)), prots...)
	if len(b.replaced) > 0 {
		slices.Sort(b.replaced)
		b.warn("links in writable folders, which the sandbox can replace, lead to what is read-only: %q", slices.Compact(b.replaced))
	}
	n := 0
	for i := range b.plan.Mounts {
		if m := &b.plan.Mounts[i]; m.Kind == RO || m.Kind == RW || m.Kind == Dev {
			if info, err := b.h.Lstat(m.From()); err == nil {
				m.Dev, m.Ino = info.Dev, info.Ino
			}
		}
		if m := &b.plan.Mounts[i]; m.Kind == Data {
			if m.Content == nil && m.Digest != "" {
				continue // kept from the session, its content is in its folder
			}
			sum := sha256.Sum256(m.Content)
			m.Digest, m.N = hex.EncodeToString(sum[:]), n
			n++
		}
	}
	slices.SortFunc(b.plan.Make, func(x, y Placeholder) int { return comparePaths(x.Path, y.Path) })
	b.plan.Make = slices.Compact(b.plan.Make)
	return nil
}

// pinBetween pins the folders strictly between top and p. It is false where one
// is held by a protection: nothing below that, nor above, is left to pin.
func (b *builder) pinBetween(top, p string) bool {
	for _, d := range between(top, p) {
		if _, held := b.prot[d]; held {
			return false // nothing below a protection can be renamed
		}
		b.pin(d)
	}
	return true
}

// pin binds a folder onto itself.
func (b *builder) pin(p string) {
	if !slices.ContainsFunc(b.rw, func(m Mount) bool { return m.Path == p }) {
		b.rw = append(b.rw, Mount{Kind: RW, Path: p})
	}
}

// order puts what is mounted at or above another mount before it and otherwise
// keeps the order; of two mounts at one path the later one stays.
func order(list []Mount) []Mount {
	last := map[string]int{}
	for i, m := range list {
		last[m.Path] = i
	}
	out := make([]Mount, 0, len(list))
	for i, m := range list {
		if last[m.Path] != i {
			continue
		}
		at := slices.IndexFunc(out, func(o Mount) bool { return Under(o.Path, m.Path) })
		if at < 0 {
			at = len(out)
		}
		out = slices.Insert(out, at, m)
	}
	return out
}
