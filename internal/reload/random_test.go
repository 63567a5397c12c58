package reload

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/internal/config"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
)

// A model is what a session's mounts give access to: kinds by mount point. A
// clone carries along what is mounted below it, so the nearest mount decides, and
// a mask closes all below it.
type model map[string]mountplan.Kind

func modelOf(list []mountplan.Mount) model {
	s := model{}
	for _, m := range list {
		switch {
		case m.Kind == mountplan.Symlink:
		case m.Kind == mountplan.Data && m.Mode != mountplan.DataRO:
			s[m.Path] = "own"
		default:
			s[m.Path] = m.Kind
		}
	}
	return s
}

type access int

const (
	cannot access = iota // nothing of the host, or masked
	mayRead
	mayWrite
)

func (s model) access(p string) access {
	got, found := cannot, false
	for d := p; ; d = filepath.Dir(d) {
		k, ok := s[d]
		if k == mountplan.MaskDir || k == mountplan.MaskFile || k == mountplan.Data {
			return cannot
		}
		if ok && !found {
			found = true
			got = map[mountplan.Kind]access{mountplan.RO: mayRead, mountplan.RW: mayWrite}[k]
		}
		if d == "/" {
			return got
		}
	}
}

// hidden says whether a mask or a file of the launcher's lies over p.
func (s model) hidden(p string) bool {
	for d := p; d != "/"; d = filepath.Dir(d) {
		if k := s[d]; k == mountplan.MaskDir || k == mountplan.MaskFile || k == mountplan.Data {
			return true
		}
	}
	return false
}

// apply does what mount-repair does for a change; kept are the paths that it is
// told to leave.
func (s model) apply(c mountplan.Change, kept map[string]bool) {
	closeBelow := func(p string) {
		for q, k := range s {
			if k == mountplan.RW && q != p && mountplan.Under(q, p) && !underKept(q, p, kept) {
				s[q] = mountplan.RO
			}
		}
	}
	switch {
	case c.Action == mountplan.Revoke:
		s[c.Mount.Path] = mountplan.RO
		closeBelow(c.Mount.Path)
	case c.Action != mountplan.Add || c.Mount.Absent:
	case c.Mount.Kind == mountplan.RO:
		s[c.Mount.Path] = mountplan.RO
		closeBelow(c.Mount.Path)
	case c.Mount.Kind == mountplan.Data && c.Mount.Mode != mountplan.DataRO:
		s[c.Mount.Path] = "own"
	default:
		s[c.Mount.Path] = c.Mount.Kind
	}
}

func underKept(q, top string, kept map[string]bool) bool {
	for ; q != top; q = filepath.Dir(q) {
		if kept[q] {
			return true
		}
	}
	return false
}

func (s model) clone() model {
	c := model{}
	for p, k := range s {
		c[p] = k
	}
	return c
}

// table is the mount table that the model stands for.
func (s model) table() *table {
	var points []string
	for p := range s {
		points = append(points, p)
	}
	slices.SortFunc(points, func(a, b string) int { return len(a) - len(b) })
	ids := map[string]int{}
	ms := []mountinfo.Mount{{ID: 1, Parent: 0, Point: "/", Options: "ro", FSType: "tmpfs", Super: "rw"}}
	ids["/"] = 1
	for i, p := range points {
		if p == "/" {
			continue
		}
		parent := filepath.Dir(p)
		for ids[parent] == 0 {
			parent = filepath.Dir(parent)
		}
		ids[p] = i + 2
		o := "ro"
		if k := s[p]; k == mountplan.RW || k == mountplan.Tmpfs || k == mountplan.DevFS || k == mountplan.Proc || k == "own" {
			o = "rw"
		}
		m := mountinfo.Mount{ID: i + 2, Parent: ids[parent], Major: 8, Root: p, Point: p, Options: o, FSType: "ext4", Super: "rw"}
		if k := s[p]; k != mountplan.RO && k != mountplan.RW {
			m.Major, m.Root = 0, "/"
		}
		ms = append(ms, m)
	}
	return newTable(ms)
}

var theHost = newTable([]mountinfo.Mount{{ID: 1, Major: 8, Root: "/", Point: "/"}})

// A world is a small tree and the settings that are drawn from it.
type world struct {
	t        *testing.T
	r        *rand.Rand
	home     string
	dirs     []string // below top
	files    []string
	all      []string
	settings *config.Settings
}

func newWorld(t *testing.T, seed uint64) *world {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), home: top + "/home/u"}
	w.dirs = []string{w.home + "/proj", w.home + "/proj/src", w.home + "/proj/src/in", w.home + "/.cache", w.home + "/.cache/x", w.home + "/.ssh", w.home + "/.config/agent-sandbox",
		w.home + "/work", w.home + "/work/a", w.home + "/work/a/b", top + "/ext", top + "/ext/a", top + "/ext/a/x", top + "/ext/a/x/y", top + "/ext/b", top + "/ext/b/x", top + "/other", top + "/other/a"}
	for _, d := range w.dirs {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
		f := d + "/file"
		if err := os.WriteFile(f, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
		w.files = append(w.files, f)
	}
	os.Symlink(top+"/ext/a", w.home+"/proj/link")
	os.Symlink(w.home+"/work", top+"/ext/b/link")
	w.all = slices.Concat(w.dirs, w.files, []string{w.home, top, w.home + "/.config", w.home + "/.local/state/agent-sandbox/sessions"})
	w.settings = &config.Settings{}
	for _, v := range config.Vars {
		w.set(v.Name, v.Default...)
	}
	w.set("READONLY_MOUNTS", "/usr")
	w.set("ENABLED_AGENTS")
	w.set("HOME_ACCESS", w.pick("restricted", "tmpwrite", "read", "write"))
	for range 6 {
		w.edit()
	}
	return w
}

func (w *world) set(name string, values ...string) {
	var e []config.Entry
	for _, v := range values {
		e = append(e, config.Entry{Text: v, Origin: config.Origin{Layer: "user", File: "sandbox.conf", Line: 3}})
	}
	w.settings.Set(name, e)
}

func (w *world) pick(from ...string) string { return from[w.r.IntN(len(from))] }

// edit changes one setting.
func (w *world) edit() {
	absolute := slices.Concat(w.dirs, w.files, []string{w.home + "/proj/link", w.home + "/proj/link/x", filepath.Dir(w.home) + "/../ext/b/link", w.home + "/proj/none", w.dirs[11] + "/none/deep"})
	for i, p := range absolute {
		absolute[i] = filepath.Clean(p)
	}
	relative := []string{".cache", ".cache/x", "work", "work/a", "work/a/b", ".bashrc", "new", "proj/src", "work/file"}
	toggle := func(name string, from []string) {
		have := w.settings.Strings(name)
		v := w.pick(from...)
		if i := slices.Index(have, v); i >= 0 {
			have = slices.Delete(slices.Clone(have), i, i+1)
		} else {
			have = append(slices.Clone(have), v)
		}
		w.set(name, have...)
	}
	switch w.r.IntN(12) {
	case 0, 1, 2:
		toggle("EXTRA_WRITABLE_PATHS", absolute)
	case 3, 4:
		toggle("READONLY_MOUNTS", absolute)
	case 5:
		toggle("BLOCKED_FILES", absolute)
	case 6:
		toggle("EXTRA_BLOCKED_PATHS", absolute)
	case 7:
		toggle("HOME_WRITABLE", relative)
	case 8:
		toggle("HOME_READONLY", relative)
	case 9:
		toggle("PROJECT_READONLY", []string{"src", "src/in", "file", "none"})
	case 10:
		toggle("DENIED_WRITABLE_PATHS", absolute)
	case 11:
		if w.r.IntN(3) == 0 {
			w.set("HOME_ACCESS", w.pick("restricted", "tmpwrite", "read", "write"))
		}
	}
}

func (w *world) build(keep []mountplan.Mount) (*mountplan.Plan, error) {
	fs, err := host.NewFS()
	if err != nil {
		w.t.Fatal(err)
	}
	return mountplan.Build(fs, mountplan.Input{Settings: w.settings, UID: os.Getuid(), Home: w.home, PasswdHome: w.home, Project: w.home + "/proj",
		StateDirs: []string{w.home + "/.local/state/agent-sandbox"}, ConfigDir: w.home + "/.config/agent-sandbox", Keep: keep})
}

// plans are the plan of a launch, and that of a reload of a session that has had.
func (w *world) plans(had []mountplan.Mount) (fresh, wanted *mountplan.Plan, retained []mountplan.Mount, err error) {
	if fresh, err = w.build(nil); err != nil {
		return
	}
	wanted = fresh
	if retained = mountplan.Retained(had, fresh.Mounts); len(retained) > 0 {
		wanted, err = w.build(retained)
	}
	return
}

// steps are the changes of one reload of the session s with a record.
func steps(record []mountplan.Mount, s model, wanted *mountplan.Plan, retained []mountplan.Mount) (had []mountplan.Mount, changes []mountplan.Change, kept map[string]bool) {
	t := s.table()
	had = present(record, t, theHost)
	r := &reloader{had: had}
	r.changes = mountplan.Diff(had, wanted.Mounts, retained, shown(had, t, theHost))
	r.changes = slices.Concat(r.changes, strays(mountplan.Next(had, wanted.Mounts, r.changes, func(mountplan.Change) bool { return false }), r.changes, t))
	kept = map[string]bool{}
	for _, p := range keeps(wanted.Mounts, r.changes) {
		kept[p] = true
	}
	return had, r.changes, kept
}

// A reload never gives write access that a launch with the same configuration
// would not give, never uncovers what was hidden, also where it is killed or part
// of it fails, and its record says what is so.
func TestRandomEditsNeverWiden(t *testing.T) {
	rounds := 300
	if testing.Short() {
		rounds = 50
	}
	reloads, applied := 0, 0
	for seed := range uint64(rounds) {
		w := newWorld(t, seed)
		plan, err := w.build(nil)
		if err != nil {
			continue
		}
		record := plan.Mounts
		s := modelOf(record)
		for step := range 10 {
			for range 1 + w.r.IntN(3) {
				w.edit()
			}
			tt := present(record, s.table(), theHost)
			fresh, wanted, retained, err := w.plans(tt)
			if err != nil {
				continue // the session keeps its last good set
			}
			had, changes, kept := steps(record, s, wanted, retained)
			before, launch := s.clone(), modelOf(fresh.Mounts)
			fail := map[int]bool{}
			killed := len(changes)
			switch w.r.IntN(4) {
			case 0: // some are busy or refused
				for i := range changes {
					fail[i] = w.r.IntN(3) == 0
				}
			case 1: // the reloader is killed
				killed = w.r.IntN(len(changes) + 1)
			}
			// mount-repair makes nothing writable around a protection that failed.
			for i, c := range changes {
				for k := range i {
					if c.Action == mountplan.Add && !c.Mount.Protection() && fail[k] && changes[k].Action == mountplan.Add && changes[k].Mount.Protection() && mountplan.Under(changes[k].Mount.Path, c.Mount.Path) {
						fail[i] = true
					}
				}
			}
			for i, c := range changes {
				if fail[i] && c.Action == mountplan.Revoke {
					kept[c.Mount.Path] = true // whoever holds it holds it against its parent as well
				}
			}
			restart, failed := false, false
			for i, c := range changes {
				if c.Action == mountplan.Restart {
					restart = true
				}
				if fail[i] || i >= killed {
					failed = failed || c.Action == mountplan.Add || c.Action == mountplan.Revoke
					continue
				}
				s.apply(c, kept)
				applied++
			}
			reloads++
			where := func() string {
				var b strings.Builder
				fmt.Fprintf(&b, "seed %d step %d killed %d of %d fail %v\n", seed, step, killed, len(changes), fail)
				for _, c := range changes {
					fmt.Fprintf(&b, "  %s %s %s %s\n", c.Action, c.Mount.Kind, c.Mount.Path, c.Detail)
				}
				for _, m := range had {
					fmt.Fprintf(&b, "  had %s\n", m.Marshal())
				}
				for _, m := range fresh.Mounts {
					fmt.Fprintf(&b, "  launch %s\n", m.Marshal())
				}
				return b.String()
			}
			if killed < len(changes) {
				record = mountplan.Strict(had, wanted.Mounts, changes)
			} else {
				byKey := map[string]bool{}
				for i, c := range changes {
					byKey[string(c.Action)+c.Mount.Path] = fail[i]
				}
				record = mountplan.Next(had, wanted.Mounts, changes, func(c mountplan.Change) bool { return byKey[string(c.Action)+c.Mount.Path] })
			}
			told := modelOf(record)
			for _, p := range w.all {
				was, is, would := before.access(p), s.access(p), launch.access(p)
				switch {
				case is == mayWrite && was != mayWrite && would != mayWrite:
					t.Fatalf("%s became writable, a launch would not make it so\n%s", p, where())
				case is == mayWrite && would != mayWrite && !failed && !restart:
					t.Fatalf("%s stays writable, a launch would not make it so\n%s", p, where())
				case before.hidden(p) && !s.hidden(p):
					t.Fatalf("%s was hidden\n%s", p, where())
				case launch.hidden(p) && !s.hidden(p) && s.access(p) != cannot && !failed && !restart:
					t.Fatalf("%s is not hidden, a launch would hide it\n%s", p, where())
				case is != mayWrite && would == mayWrite && !failed && !restart:
					t.Fatalf("%s is not writable, a launch would make it so\n%s", p, where())
				case killed == len(changes) && (told.access(p) == mayWrite && is != mayWrite || is == mayWrite && told.access(p) != mayWrite && !failed):
					t.Fatalf("%s is %d, the record says %d\n%s", p, is, told.access(p), where())
				case killed < len(changes) && told.access(p) == mayWrite && is != mayWrite && before.access(p) != mayWrite:
					t.Fatalf("%s: the record of a killed reload is wider\n%s", p, where())
				case killed == len(changes) && s.hidden(p) && !told.hidden(p):
					t.Fatalf("%s is hidden, and not by the record\n%s", p, where())
				}
			}
			if killed == len(changes) && !failed && !restart && !slices.ContainsFunc(changes, func(c mountplan.Change) bool { return c.Action == mountplan.Keep }) {
				if x, y := lines(record), lines(wanted.Mounts); x != y {
					t.Fatalf("all was applied, and the record is not the plan\nrecord\n%s\nplan\n%s\n%s", x, y, where())
				}
			}
			// A second reload with the same configuration finishes.
			if failed {
				fresh, wanted, retained, err := w.plans(present(record, s.table(), theHost))
				if err != nil {
					t.Fatal(err)
				}
				had, again, kept := steps(record, s, wanted, retained)
				for _, c := range again {
					s.apply(c, kept)
					restart = restart || c.Action == mountplan.Restart
				}
				record = mountplan.Next(had, wanted.Mounts, again, func(mountplan.Change) bool { return false })
				launch := modelOf(fresh.Mounts)
				for _, p := range w.all {
					if s.access(p) == mayWrite && launch.access(p) != mayWrite && !restart {
						t.Fatalf("%s stays writable after a second reload\n%s", p, where())
					}
					if s.access(p) != mayWrite && launch.access(p) == mayWrite && !restart {
						t.Fatalf("%s is not writable after a second reload\n%s", p, where())
					}
				}
			}
		}
	}
	t.Logf("%d reloads, %d changes", reloads, applied)
	if reloads < rounds || applied < rounds {
		t.Errorf("%d reloads, %d changes: the edits do not exercise anything", reloads, applied)
	}
}

func lines(list []mountplan.Mount) string {
	var b strings.Builder
	for _, m := range list {
		b.WriteString(m.Marshal() + "\n")
	}
	return b.String()
}
