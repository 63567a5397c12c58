package session

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountplan"
)

// testUser is this process's user with folders of its own.
func testUser(t *testing.T) host.User {
	t.Helper()
	top := t.TempDir()
	u := host.User{UID: os.Getuid(), Name: "u", Home: top, StateHome: top + "/state", RuntimeDir: top + "/run"}
	for _, d := range []string{u.StateHome, u.RuntimeDir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return u
}

func primary(t *testing.T, u host.User) *Registry {
	t.Helper()
	g, err := Primary(u)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.Close)
	return g
}

// process is a child that lives until the test ends or calls stop.
func process(t *testing.T) (p Proc, stop func()) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := ProcOf(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	stop = func() { cmd.Process.Kill(); cmd.Wait() }
	t.Cleanup(stop)
	return p, stop
}

// newRecord is a valid record of a session on this host, with its folder.
func newRecord(t *testing.T, g *Registry, launcher, sandbox Proc) Record {
	t.Helper()
	here, err := Place()
	if err != nil {
		t.Fatal(err)
	}
	id, err := g.Begin(here)
	if err != nil {
		t.Fatal(err)
	}
	r := sample()
	r.ID, r.UID, r.Host, r.Boot, r.PIDNS = id, os.Getuid(), here.Host, here.Boot, here.PIDNS
	r.Launcher, r.Sandbox, r.Guard, r.Made = launcher, sandbox, Proc{}, nil
	return r
}

func TestSweepKeepsTheLivingAndTakesTheDead(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	alive, _ := process(t)
	gone, stop := process(t)
	live, dead := newRecord(t, g, alive, alive), newRecord(t, g, gone, gone)
	reused := newRecord(t, g, Proc{alive.PID, alive.Start + 1}, Proc{alive.PID, alive.Start + 1})
	booted := newRecord(t, g, alive, alive)
	booted.Boot = "another-boot"
	elsewhere := newRecord(t, g, gone, gone)
	elsewhere.Host = "another-host"
	container := newRecord(t, g, gone, gone)
	container.PIDNS++
	for _, r := range []Record{live, dead, reused, booted, elsewhere, container} {
		if err := g.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	found, errs := Sweep(u)
	defer CloseAll(found)
	if len(errs) > 0 || len(found) != 1 || found[0].ID != live.ID {
		t.Errorf("found %v, %v", found, errs)
	}
	for _, r := range []Record{live, elsewhere, container} {
		if _, err := g.Read(r.ID); err != nil {
			t.Errorf("record of %s: %v", r.Host, err)
		}
	}
	for _, r := range []Record{dead, reused, booted} {
		if !g.Gone(r.ID) {
			t.Errorf("record %s is still there", r.ID)
		}
		if _, err := os.Stat(g.DataDir(r.ID)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("folder of %s: %v", r.ID, err)
		}
	}
}

func TestALiveLaunchWithoutRecordIsLeftAlone(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	id, err := g.Begin(here)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Claim(nil, id, here, &mountplan.Plan{}); err != nil {
		t.Fatal(err)
	}
	if _, errs := Sweep(u); len(errs) > 0 {
		t.Fatal(errs)
	}
	if _, err := os.Stat(g.DataDir(id)); err != nil {
		t.Error(err)
	}
}

func TestAFolderThatNobodyOwnsIsSwept(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	id, err := g.newSession() // killed right after
	if err != nil {
		t.Fatal(err)
	}
	if _, errs := Sweep(u); len(errs) > 0 {
		t.Fatal(errs)
	}
	if _, err := os.Stat(g.DataDir(id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

func TestPlaceholdersGoWhenTheLastSessionEnds(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	dir, file, used := u.Home+"/masked/deep", u.Home+"/file", u.Home+"/used"
	plan := &mountplan.Plan{
		Make:   []mountplan.Placeholder{{Path: u.Home + "/masked", Dir: true}, {Path: dir, Dir: true}, {Path: file}, {Path: used}},
		Mounts: []mountplan.Mount{{Kind: mountplan.MaskDir, Path: dir}, {Kind: mountplan.MaskFile, Path: file}, {Kind: mountplan.MaskFile, Path: used}},
	}
	first, err := g.Begin(here)
	if err != nil {
		t.Fatal(err)
	}
	made, err := g.Claim(nil, first, here, plan)
	if err != nil || len(made) != 4 {
		t.Fatal(made, err)
	}
	// The second session finds them there and plans none.
	second, _ := g.Begin(here)
	made, err = g.Claim(nil, second, here, &mountplan.Plan{Mounts: plan.Mounts})
	if err != nil || len(made) != 4 {
		t.Fatalf("the second session claims %v, %v", made, err)
	}
	if err := g.End(nil, first); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, file, used} {
		if _, err := os.Lstat(p); err != nil {
			t.Errorf("gone while a session masks it: %v", err)
		}
	}
	// The user may put one to use while it is masked inside.
	if st, err := os.Stat(used); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if err := os.WriteFile(used, []byte("the user's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.End(nil, second); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, u.Home + "/masked", file} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
	if data, _ := os.ReadFile(used); string(data) != "the user's" {
		t.Error("a file that was put to use is gone")
	}
}

func TestPlaceholdersOfAKilledLaunchAreSwept(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	id, _ := g.Begin(here)
	if _, err := g.Claim(nil, id, here, &mountplan.Plan{Make: []mountplan.Placeholder{{Path: u.Home + "/m"}}}); err != nil {
		t.Fatal(err)
	}
	// As if the launcher had been killed between journal and record.
	journalFile := g.DataDir(id) + "/made"
	data, _ := os.ReadFile(journalFile)
	gone, stop := process(t)
	stop()
	self, _ := Self()
	if err := os.WriteFile(journalFile, []byte(strings.Replace(string(data), "launcher "+self.String(), "launcher "+gone.String(), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errs := Sweep(u); len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, p := range []string{u.Home + "/m", g.DataDir(id)} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", p, err)
		}
	}
}

func TestClaimKeepsWhatTheUserMadeMeanwhile(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	p := u.Home + "/empty"
	if err := os.WriteFile(p, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	id, _ := g.Begin(here)
	made, err := g.Claim(nil, id, here, &mountplan.Plan{Make: []mountplan.Placeholder{{Path: p}}})
	if err != nil || len(made) != 0 {
		t.Fatal(made, err)
	}
	g.End(nil, id)
	if _, err := os.Lstat(p); err != nil {
		t.Errorf("the user's own empty file is gone: %v", err)
	}
}

func TestPlaceholderFollowsNoLink(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	os.Mkdir(u.Home+"/real", 0o700)
	os.Symlink("real", u.Home+"/link")
	id, _ := g.Begin(here)
	if _, err := g.Claim(nil, id, here, &mountplan.Plan{Make: []mountplan.Placeholder{{Path: u.Home + "/link/x"}}}); err == nil {
		t.Error("made through a link")
	}
	if _, err := os.Lstat(u.Home + "/real/x"); err == nil {
		t.Error("the placeholder is there")
	}
}

func TestRegistryIsRefusedUnlessPrivate(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	r := newRecord(t, g, Proc{1, 1}, Proc{1, 1})
	if err := g.Write(r); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(){
		"mode of the record": func() { os.Chmod(g.File(r.ID), 0o644) },
		"second name":        func() { os.Chmod(g.File(r.ID), 0o600); os.Link(g.File(r.ID), u.Home+"/x") },
		"link":               func() { os.Remove(g.File(r.ID)); os.Symlink(u.Home+"/x", g.File(r.ID)) },
		"folder":             func() { os.Remove(g.File(r.ID)); os.Mkdir(g.File(r.ID), 0o700) },
	} {
		spoil()
		if _, err := g.Read(r.ID); err == nil {
			t.Errorf("%s: read", name)
		}
	}
	os.Chmod(g.Path, 0o755)
	if _, errs := Existing(u); len(errs) == 0 {
		t.Error("a folder open to others was taken")
	}
	if _, err := Primary(u); err == nil {
		t.Error("a folder open to others was taken for new sessions")
	}
	os.RemoveAll(filepath.Dir(g.Path))
	os.Symlink(u.Home, filepath.Dir(g.Path))
	if _, err := Primary(u); err == nil {
		t.Error("a link was followed")
	}
}

func TestARecordOfAnotherNameIsNotActedOn(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	r := newRecord(t, g, Proc{1, 1}, Proc{1, 1})
	data := r.Marshal()
	os.WriteFile(g.Path+"/00000000", data, 0o600)
	if _, err := g.Read("00000000"); !errors.Is(err, ErrInvalid) {
		t.Errorf("error is %v", err)
	}
	found, errs := Sweep(u)
	CloseAll(found)
	if len(errs) != 1 || len(found) != 0 {
		t.Errorf("%v, %v", found, errs)
	}
}

func TestMarkerHoldsOffASecondReload(t *testing.T) {
	u := testUser(t)
	g := primary(t, u)
	here, _ := Place()
	id, err := g.Begin(here)
	if err != nil {
		t.Fatal(err)
	}
	m, err := g.Mark(id, time.Now().Add(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Mark(id, time.Now()); !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), " ") {
		t.Errorf("error is %v", err)
	}
	self, _ := Self()
	if p, until, ok := g.Reloading(id); !ok || p != self || time.Until(until) < 50*time.Second {
		t.Errorf("%v %v %v", p, until, ok)
	}
	m.Release()
	if _, _, ok := g.Reloading(id); ok {
		t.Error("a marker that was given back counts")
	}
	// One that outlived its deadline, or its process.
	m, _ = g.Mark(id, time.Now().Add(-time.Second))
	if _, _, ok := g.Reloading(id); ok {
		t.Error("a marker past its deadline counts")
	}
	m.Release()
	os.WriteFile(g.Path+"/"+id+".reload", []byte("999999 1\n"), 0o600)
	os.Chtimes(g.Path+"/"+id+".reload", time.Now(), time.Now().Add(time.Hour))
	if _, _, ok := g.Reloading(id); ok {
		t.Error("a marker without its process counts")
	}
	if m, err = g.Mark(id, time.Now()); err != nil {
		t.Errorf("a marker nobody holds: %v", err)
	} else {
		m.Release()
	}
}

func TestSignalsGoOnlyToTheRecordedHelper(t *testing.T) {
	child, _ := process(t)
	self, _ := Self()
	if err := child.Signal(self, 0); err != nil {
		t.Errorf("the helper: %v", err)
	}
	for name, c := range map[string]struct{ p, parent Proc }{
		"other start time": {Proc{child.PID, child.Start + 1}, self},
		"other parent":     {child, child},
		"parent is gone":   {child, Proc{self.PID, self.Start + 1}},
		"nobody":           {Proc{}, self},
	} {
		if err := c.p.Signal(c.parent, 0); err == nil {
			t.Errorf("%s: signalled", name)
		}
	}
}

func TestKillEndsOnlyTheFirstOfASandbox(t *testing.T) {
	p, _ := process(t)
	r := Record{Sandbox: p}
	if err := r.Kill(); err == nil {
		t.Error("killed a process that is no sandbox")
	}
	if !p.Alive() {
		t.Error("it is dead")
	}
}
