package mountplan_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/internal/config"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountplan"
)

// world is a home and a project on the real file system.
type world struct {
	t    *testing.T
	home string
	in   mountplan.Input
}

func newWorld(t *testing.T, access string) *world {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, home: top + "/home/u"}
	s := &config.Settings{}
	for _, v := range config.Vars {
		var e []config.Entry
		for _, d := range v.Default {
			e = append(e, config.Entry{Text: d, Origin: config.Origin{Layer: "default"}})
		}
		s.Set(v.Name, e)
	}
	w.in = mountplan.Input{Settings: s, UID: os.Getuid(), Home: w.home, PasswdHome: w.home, Project: w.home + "/proj",
		StateDirs: []string{w.home + "/.local/state/agent-sandbox"}, ConfigDir: w.home + "/.config/agent-sandbox"}
	w.set("HOME_ACCESS", access)
	w.set("PRIVATE_TMP", "true")
	// The temporary folder must not be shown by READONLY_MOUNTS.
	w.set("READONLY_MOUNTS", "/usr")
	w.mkdir("proj", ".ssh", ".config/agent-sandbox", ".cache")
	return w
}

func (w *world) set(name string, values ...string) {
	var e []config.Entry
	for _, v := range values {
		e = append(e, config.Entry{Text: v, Origin: config.Origin{Layer: "user", File: "sandbox.conf", Line: 3}})
	}
	w.in.Settings.Set(name, e)
}

// agent adds a folder of an agent to HOME_WRITABLE, as a load does.
func (w *world) agent(folder string) {
	e := config.Entry{Text: folder, Origin: config.Origin{Layer: "agent", File: "claude.conf"}}
	w.in.Settings.Set("HOME_WRITABLE", append(w.in.Settings.Entries("HOME_WRITABLE"), e))
}

func (w *world) mkdir(paths ...string) {
	for _, p := range paths {
		if err := os.MkdirAll(filepath.Join(w.home, p), 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) write(p, content string) {
	w.mkdir(filepath.Dir(p))
	if err := os.WriteFile(filepath.Join(w.home, p), []byte(content), 0o644); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) link(target, p string) {
	w.mkdir(filepath.Dir(p))
	if err := os.Symlink(target, filepath.Join(w.home, p)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) build() *mountplan.Plan {
	w.t.Helper()
	p, err := w.try()
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

func (w *world) try() (*mountplan.Plan, error) {
	fs, err := host.NewFS()
	if err != nil {
		w.t.Fatal(err)
	}
	return mountplan.Build(fs, w.in)
}

// at is the kind of what is mounted last at a path below the home, "" for none.
func (w *world) at(p *mountplan.Plan, rel string) mountplan.Kind {
	i := w.position(p, rel)
	if i < 0 {
		return ""
	}
	return p.Mounts[i].Kind
}

func (w *world) position(p *mountplan.Plan, rel string) int {
	path := filepath.Join(w.home, rel)
	for i, m := range slices.Backward(p.Mounts) {
		if m.Path == path {
			return i
		}
	}
	return -1
}

func (w *world) want(p *mountplan.Plan, rel string, kind mountplan.Kind) {
	w.t.Helper()
	if got := w.at(p, rel); got != kind {
		w.t.Errorf("%s is %q, want %q", rel, got, kind)
		for _, m := range p.Mounts {
			w.t.Log(m.Marshal())
		}
	}
}

func (w *world) warned(p *mountplan.Plan, part string) {
	w.t.Helper()
	if !slices.ContainsFunc(p.Warnings, func(s string) bool { return strings.Contains(s, part) }) {
		w.t.Errorf("no warning with %q in %q", part, p.Warnings)
	}
}

func TestHomeModes(t *testing.T) {
	for mode, want := range map[string][3]mountplan.Kind{
		"restricted": {mountplan.Tmpfs, "", ""},
		"tmpwrite":   {mountplan.Tmpfs, "", ""},
		"read":       {mountplan.RO, mountplan.MaskDir, ""},
		"write":      {mountplan.RW, mountplan.MaskDir, mountplan.RO},
	} {
		w := newWorld(t, mode)
		p := w.build()
		w.want(p, "", want[0])
		w.want(p, ".ssh", want[1])
		w.want(p, ".config/agent-sandbox", want[2])
		w.want(p, "proj", mountplan.RW)
	}
}

func TestProtectionsComeLast(t *testing.T) {
	w := newWorld(t, "write")
	w.write("proj/.git/hooks/x", "")
	w.write("proj/.git/config", "")
	w.write("proj/secret", "s")
	w.set("BLOCKED_FILES", w.home+"/proj/secret")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/proj/.git", w.home+"/proj")
	p := w.build()
	first := slices.IndexFunc(p.Mounts, func(m mountplan.Mount) bool { return m.Kind == mountplan.MaskDir || m.Kind == mountplan.MaskFile })
	for _, m := range p.Mounts[first:] {
		if m.Kind == mountplan.RW {
			t.Errorf("writable %s after the first protection", m.Path)
		}
	}
	w.want(p, "proj/.git/hooks", mountplan.RO)
	w.want(p, "proj/.git/config", mountplan.RO)
	w.want(p, "proj/secret", mountplan.MaskFile)
}

func TestFoldersAboveAProtectionArePinned(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.write("proj/a/b/c/secret", "s")
	w.write("proj/a/other", "")
	w.set("BLOCKED_FILES", w.home+"/proj/a/b/c/secret")
	p := w.build()
	for _, d := range []string{"proj/a", "proj/a/b", "proj/a/b/c"} {
		w.want(p, d, mountplan.RW)
	}
	if w.at(p, "proj/a/other") != "" {
		t.Error("a file beside the path is a mount point")
	}
	if !(w.position(p, "proj") < w.position(p, "proj/a") && w.position(p, "proj/a") < w.position(p, "proj/a/b")) {
		t.Error("parents are not before children")
	}
}

func TestMissingProtectionGetsPlaceholders(t *testing.T) {
	w := newWorld(t, "write")
	os.RemoveAll(w.home + "/.config")
	w.set("BLOCKED_FILES", w.home+"/proj/deep/er/secret")
	w.set("EXTRA_BLOCKED_PATHS", w.home+"/proj/closed")
	p := w.build()
	w.want(p, ".config/agent-sandbox", mountplan.RO)
	w.want(p, ".config", mountplan.RW)
	w.want(p, "proj/deep/er/secret", mountplan.MaskFile)
	w.want(p, "proj/closed", mountplan.MaskDir)
	for _, want := range []mountplan.Placeholder{{Path: w.home + "/.config", Dir: true}, {Path: w.home + "/.config/agent-sandbox", Dir: true},
		{Path: w.home + "/proj/deep", Dir: true}, {Path: w.home + "/proj/deep/er/secret"}, {Path: w.home + "/proj/closed", Dir: true}} {
		if !slices.Contains(p.Make, want) {
			t.Errorf("no placeholder %+v in %+v", want, p.Make)
		}
	}
	if !slices.IsSortedFunc(p.Make, func(a, b mountplan.Placeholder) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("placeholders out of order: %+v", p.Make)
	}
}

func TestLinksInConfiguredPaths(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.mkdir("real/data", "dotfiles/claude")
	w.link("real", "alias")
	w.link("dotfiles/claude", ".claude")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/alias/data")
	w.set("HOME_WRITABLE", ".claude")
	p := w.build()
	w.want(p, "real/data", mountplan.RW)
	w.want(p, "alias", mountplan.Symlink)
	w.want(p, "dotfiles/claude", mountplan.RW)
	w.want(p, ".claude", mountplan.Symlink)
}

func TestLinkedConfigurationInWritableHome(t *testing.T) {
	w := newWorld(t, "write")
	os.RemoveAll(w.home + "/.config/agent-sandbox")
	w.mkdir("dotfiles/asb")
	w.link("../dotfiles/asb", ".config/agent-sandbox")
	p := w.build()
	w.want(p, "dotfiles/asb", mountplan.RO)
	w.want(p, ".config", mountplan.RO) // the link in it cannot be replaced
	w.warned(p, "since it holds the link")

	// In the home itself there is no folder to close.
	w = newWorld(t, "write")
	os.RemoveAll(w.home + "/.ssh")
	w.mkdir("keys")
	w.link("keys", ".ssh")
	if _, err := w.try(); err == nil || !strings.Contains(err.Error(), "HOME_ACCESS=read") {
		t.Errorf("error is %v", err)
	}
}

func TestReadOnlyInsideWritable(t *testing.T) {
	w := newWorld(t, "write")
	w.write(".bashrc", "")
	w.mkdir(".cargo", "both", "data/ro")
	w.set("HOME_READONLY", ".bashrc", ".cargo", "missing")
	w.set("HOME_WRITABLE", ".cargo")
	w.set("READONLY_MOUNTS", "/usr", w.home+"/data/ro", w.home+"/both")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/both")
	p := w.build()
	w.want(p, ".bashrc", mountplan.RO)
	w.want(p, ".cargo", mountplan.RW) // the same path, asked for as writable
	w.want(p, "both", mountplan.RW)
	w.want(p, "data/ro", mountplan.RO)
	w.want(p, "data", mountplan.RW) // cannot be renamed
	w.want(p, "missing", "")
}

func TestDeniedWritable(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.mkdir("srv/open/closed", "srv/closed")
	w.link("../srv/closed", "srv/door")
	w.set("DENIED_WRITABLE_PATHS", w.home+"/srv/open/closed", w.home+"/srv/closed", w.home+"/srv/open/later")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/srv/open", w.home+"/srv/door/..", w.home+"/srv/closed/x")
	if _, err := w.try(); err == nil {
		t.Error("a path with .. was taken")
	}
	w.mkdir("srv/closed/x")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/srv/open", w.home+"/srv/closed/x", w.home+"/srv/door")
	p := w.build()
	w.want(p, "srv/open", mountplan.RW)
	w.want(p, "srv/open/closed", mountplan.RO)
	w.want(p, "srv/open/later", mountplan.RO)
	w.want(p, "srv/closed/x", "")
	w.want(p, "srv/closed", "")
	w.warned(p, "DENIED_WRITABLE_PATHS")
}

func TestContradictionsKeepTheProtection(t *testing.T) {
	w := newWorld(t, "read")
	w.mkdir(".ssh/sub")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/.ssh/sub")
	p := w.build()
	w.want(p, ".ssh/sub", "")
	w.want(p, ".ssh", mountplan.MaskDir)
	w.warned(p, "stays closed")

	// Nor where the folder around it does not show.
	w = newWorld(t, "tmpwrite")
	w.mkdir(".ssh/sub", "closed/in", ".config/agent-sandbox/conf.d")
	w.write(".ssh/known_hosts", "")
	w.set("HOME_READONLY", ".ssh/known_hosts")
	w.set("EXTRA_BLOCKED_PATHS", w.home+"/closed")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/.ssh/sub", w.home+"/closed/in", w.home+"/.config/agent-sandbox/conf.d")
	p = w.build()
	for _, rel := range []string{".ssh/known_hosts", ".ssh/sub", "closed/in", ".config/agent-sandbox/conf.d"} {
		w.want(p, rel, "")
		w.warned(p, filepath.Join(w.home, rel))
	}
	w = newWorld(t, "read")
	w.mkdir(".config/agent-sandbox/conf.d")
	w.set("EXTRA_WRITABLE_PATHS", w.home+"/.config/agent-sandbox/conf.d")
	w.want(w.build(), ".config/agent-sandbox/conf.d", "")

	for _, mode := range []string{"read", "tmpwrite"} {
		w = newWorld(t, mode)
		w.mkdir(".ssh/sub")
		w.in.Project = w.home + "/.ssh/sub"
		if _, err := w.try(); err == nil {
			t.Errorf("%s: a project in a masked folder was taken", mode)
		}
	}
}

func TestWideWritablePathsUncoverNothing(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	top := filepath.Dir(filepath.Dir(w.home))
	w.set("EXTRA_WRITABLE_PATHS", top)
	p := w.build()
	i := slices.IndexFunc(p.Mounts, func(m mountplan.Mount) bool { return m.Path == top })
	if j := w.position(p, ""); j < i || p.Mounts[j].Kind != mountplan.Tmpfs {
		t.Errorf("the home's tmpfs is at %d, the writable folder above at %d", j, i)
	}
	for _, bad := range []string{"/", "/proc", "/proc/self"} {
		w.set("EXTRA_WRITABLE_PATHS", bad)
		if _, err := w.try(); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestSeedsAndInstructions(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.write(".gitconfig", "[user]\n")
	w.mkdir(".claude")
	w.agent(".claude")
	w.in.Agents = []mountplan.Agent{{Name: "claude", Instructions: ".claude/CLAUDE.md",
		Note: func(own []byte) []byte { return append(own, "note"...) }}}
	w.set("HOME_READONLY", ".gitconfig")
	p := w.build()
	m := p.Mounts[w.position(p, ".gitconfig")]
	if m.Kind != mountplan.Data || m.Mode != mountplan.DataCopy || string(m.Content) != "[user]\n" || len(m.Digest) != 64 {
		t.Errorf("%+v", m)
	}
	m = p.Mounts[w.position(p, ".claude/CLAUDE.md")]
	if m.Kind != mountplan.Data || m.Mode != mountplan.DataRO || string(m.Content) != "note" {
		t.Errorf("%+v", m)
	}
	if !slices.Contains(p.Make, mountplan.Placeholder{Path: w.home + "/.claude/CLAUDE.md"}) {
		t.Errorf("no placeholder for the instructions: %+v", p.Make)
	}
	w.set("HOME_ACCESS", "write")
	p = w.build()
	if m = p.Mounts[w.position(p, ".gitconfig")]; m.Mode != mountplan.DataRW {
		t.Errorf("%+v", m)
	}
}

func TestWorktree(t *testing.T) {
	git := func(w *world) (common, dir string) {
		common, dir = w.home+"/main/.git", w.home+"/main/.git/worktrees/wt"
		w.mkdir("main/.git/objects", "main/.git/refs", "main/.git/hooks", "main/.git/worktrees/wt")
		w.write("main/.git/HEAD", "ref: refs/heads/main\n")
		w.write("main/.git/config", "")
		w.write("main/.git/worktrees/wt/commondir", "../..\n")
		w.write("main/.git/worktrees/wt/gitdir", w.home+"/proj/.git\n")
		w.write("proj/.git", "gitdir: "+dir+"\n")
		return
	}
	w := newWorld(t, "tmpwrite")
	git(w)
	p := w.build()
	w.want(p, "main/.git", mountplan.RW)
	w.want(p, "main/.git/hooks", mountplan.RO)
	w.want(p, "main/.git/config", mountplan.RO)
	w.want(p, "proj/.git", mountplan.RO)

	for name, forge := range map[string]func(w *world){
		"points back elsewhere": func(w *world) { w.write("main/.git/worktrees/wt/gitdir", w.home+"/other/.git\n") },
		"no pointer back":       func(w *world) { os.Remove(w.home + "/main/.git/worktrees/wt/gitdir") },
		"not a worktree":        func(w *world) { w.write("proj/.git", "gitdir: "+w.home+"/.ssh\n") },
		"common elsewhere":      func(w *world) { w.write("main/.git/worktrees/wt/commondir", w.home+"/.ssh\n") },
		"relative out":          func(w *world) { w.write("proj/.git", "gitdir: ../../u/.ssh/worktrees/x\n") },
	} {
		w := newWorld(t, "tmpwrite")
		git(w)
		forge(w)
		p := w.build()
		if w.at(p, "main/.git") != "" || w.at(p, ".ssh") != "" {
			t.Errorf("%s: granted", name)
		}
	}
	w = newWorld(t, "tmpwrite")
	git(w)
	w.set("DENIED_WRITABLE_PATHS", w.home+"/main")
	p = w.build()
	w.want(p, "main/.git", "")
	w.warned(p, "cannot commit")
}

func TestAgentsFoldersAreMadeOnlyForTheirOwnLaunch(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.agent(".claude")
	w.in.Agents = []mountplan.Agent{{Name: "claude"}}
	p := w.build()
	if len(p.Create) > 0 || w.at(p, ".claude") != "" {
		t.Errorf("made %v", p.Create)
	}
	w.in.Agents[0].Make = []string{".claude"}
	p = w.build()
	w.want(p, ".claude", mountplan.RW)
	if !slices.Equal(p.Create, []string{w.home + "/.claude"}) {
		t.Errorf("made %v", p.Create)
	}
	w.set("HOME_WRITABLE", "new/er", ".claude")
	p = w.build()
	if !slices.Equal(p.Create, []string{w.home + "/new", w.home + "/new/er", w.home + "/.claude"}) {
		t.Errorf("made %v", p.Create)
	}
}

func TestAnyBytesInPaths(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	for _, name := range []string{"a b", "q'\"", "n\nl", "t\tb", "c:o", "h#", "s*", `b\s`, "x\xff\xfe"} {
		w.mkdir(name)
		w.write(name+"/secret", "s")
		w.set("EXTRA_WRITABLE_PATHS", w.home+"/"+name)
		w.set("BLOCKED_FILES", w.home+"/"+name+"/secret")
		p := w.build()
		w.want(p, name, mountplan.RW)
		w.want(p, name+"/secret", mountplan.MaskFile)
		for _, m := range p.Mounts {
			if back, err := mountplan.Unmarshal(m.Marshal()); err != nil || back.Path != m.Path || back.Kind != m.Kind {
				t.Errorf("%q: %v", m.Marshal(), err)
			}
		}
	}
}

func TestHardLinkedSecretIsWarnedAbout(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.write("proj/secret", "s")
	if err := os.Link(w.home+"/proj/secret", w.home+"/proj/other"); err != nil {
		t.Fatal(err)
	}
	w.set("BLOCKED_FILES", w.home+"/proj/secret")
	w.warned(w.build(), "hard links")
}

func TestEqualInputsEqualPlans(t *testing.T) {
	w := newWorld(t, "write")
	w.write("proj/.git/config", "")
	a, b := w.build(), w.build()
	if !slices.EqualFunc(a.Mounts, b.Mounts, func(x, y mountplan.Mount) bool { return x.Marshal() == y.Marshal() }) {
		t.Error("two plans of one configuration differ")
	}
}

func TestMaskInsideAMaskIsLeftOutWhateverTheOrder(t *testing.T) {
	for _, order := range [][]string{{"a", "a/b/c"}, {"a/b/c", "a"}} {
		w := newWorld(t, "read")
		w.mkdir("a/b/c")
		w.set("EXTRA_BLOCKED_PATHS", filepath.Join(w.home, order[0]), filepath.Join(w.home, order[1]))
		p := w.build()
		w.want(p, "a", mountplan.MaskDir)
		w.want(p, "a/b/c", "")
	}
}

func TestConfigurationReachedThroughLinksIsHeld(t *testing.T) {
	for _, mode := range []string{"tmpwrite", "write"} {
		w := newWorld(t, mode)
		w.mkdir("proj/confd")
		w.link("../../proj/confd", ".config/agent-sandbox/conf.d")
		w.link("../../proj/later.conf", ".config/agent-sandbox/sandbox.conf")
		p := w.build()
		w.want(p, "proj/confd", mountplan.RO)
		w.want(p, "proj/later.conf", mountplan.RO)
		if !slices.Contains(p.Make, mountplan.Placeholder{Path: w.home + "/proj/later.conf"}) {
			t.Errorf("no placeholder for what a dangling link leads to: %+v", p.Make)
		}
	}
	// What the link leads to does not show; the link can be replaced all the same.
	w := newWorld(t, "tmpwrite")
	os.RemoveAll(w.home + "/.config/agent-sandbox")
	w.mkdir("dotfiles/asb", ".config/tools")
	w.link("../dotfiles/asb", ".config/agent-sandbox")
	w.set("HOME_WRITABLE", ".config")
	if _, err := w.try(); err == nil || !strings.Contains(err.Error(), "is a link in the writable folder") {
		t.Errorf("error is %v", err)
	}
}

func TestGitsOwnFilesAreHeld(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.write("proj/.git/HEAD", "ref: refs/heads/main\n")
	w.write("proj/.git/config", "[core]\n")
	p := w.build()
	w.want(p, "proj/.git/hooks", mountplan.RO) // missing, and not to be made inside
	w.want(p, "proj/.git/config", mountplan.RO)
	w.want(p, "proj/.git", mountplan.RW)
	w.want(p, "proj/.git/config.worktree", "")
	w.write("proj/.git/config", "[extensions]\n\tworktreeConfig = true\n")
	w.want(w.build(), "proj/.git/config.worktree", mountplan.RO)
	w.write("proj/.git/config", "")
	w.write("proj/.git/config.worktree", "")
	w.want(w.build(), "proj/.git/config.worktree", mountplan.RO)

	// A link cannot be a mount point: the launch says so.
	w = newWorld(t, "tmpwrite")
	w.write("proj/.git/HEAD", "")
	w.mkdir("elsewhere")
	w.link("../../elsewhere", "proj/.git/hooks")
	w.warned(w.build(), "proj/.git/hooks")

	// No repository, no placeholder.
	w = newWorld(t, "tmpwrite")
	w.mkdir("proj/.git")
	w.want(w.build(), "proj/.git/hooks", "")
}

func TestPartOfARepositoryIsWarnedAbout(t *testing.T) {
	w := newWorld(t, "tmpwrite")
	w.write("repo/.git/HEAD", "")
	w.mkdir("repo/sub")
	w.in.Project = w.home + "/repo/sub"
	w.warned(w.build(), "part of the repository")
	w.set("HOME_ACCESS", "read")
	if p := w.build(); slices.ContainsFunc(p.Warnings, func(s string) bool { return strings.Contains(s, "part of the repository") }) {
		t.Errorf("warned though it shows: %q", p.Warnings)
	}
}
