package landlock

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/internal/mountplan"
)

// tree is a host: paths, with a slash at the end of a folder and an @ at that of
// a link.
type tree []string

func (t tree) Lstat(p string) (mountplan.Info, error) {
	for _, f := range t {
		switch f {
		case p + "/":
			return mountplan.Info{Type: mountplan.Dir}, nil
		case p:
			return mountplan.Info{Type: mountplan.Regular}, nil
		case p + "@":
			return mountplan.Info{Type: mountplan.Link}, nil
		}
	}
	return mountplan.Info{}, fs.ErrNotExist
}

func (t tree) ReadDir(p string) ([]string, error) {
	if _, err := t.Lstat(p); err != nil && !slices.ContainsFunc(t, func(f string) bool { return strings.HasPrefix(f, p+"/") }) {
		return nil, err
	}
	var names []string
	for _, f := range t {
		f = strings.TrimRight(f, "/@")
		if dir, name, _ := cutLast(f); dir == strings.TrimSuffix(p, "/") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func cutLast(p string) (dir, name string, ok bool) {
	i := strings.LastIndexByte(p, '/')
	return p[:i], p[i+1:], true
}

var home = tree{
	"/usr/", "/usr/bin/", "/usr/lib/", "/usr/share/", "/usr/share/doc/", "/usr/share/secret/", "/usr/link@",
	"/home/u/", "/home/u/.ssh/", "/home/u/.ssh/id", "/home/u/.bashrc", "/home/u/.cache/", "/home/u/notes",
	"/home/u/.config/", "/home/u/.config/agent-sandbox/", "/home/u/.config/git/",
	"/home/u/p/", "/home/u/p/.git/", "/home/u/p/.git/hooks/", "/home/u/p/.env", "/home/u/p/src/",
}

func TestFromPlan(t *testing.T) {
	type mounts = []mountplan.Mount
	ro := func(p string) mountplan.Mount { return mountplan.Mount{Kind: mountplan.RO, Path: p} }
	rw := func(p string) mountplan.Mount { return mountplan.Mount{Kind: mountplan.RW, Path: p} }
	dir := func(p string) mountplan.Mount { return mountplan.Mount{Kind: mountplan.MaskDir, Path: p} }
	file := func(p string) mountplan.Mount { return mountplan.Mount{Kind: mountplan.MaskFile, Path: p} }
	tmp := func(p string) mountplan.Mount { return mountplan.Mount{Kind: mountplan.Tmpfs, Path: p} }
	for _, c := range []struct {
		name   string
		mounts mounts
		always []string // protections that are; the others are configured
		rules  string
		losses string
		closed string
	}{
		{
			name:   "nothing hidden",
			mounts: mounts{{Kind: mountplan.Proc, Path: "/proc"}, {Kind: mountplan.DevFS, Path: "/dev"}, tmp("/run"), ro("/usr"), ro("/run/resolv.conf"), {Kind: mountplan.Dev, Path: "/dev/dri"}},
			rules: "/dev/dri rwi, /dev/full rwi, /dev/null rwi, /dev/random rwi, /dev/tty rwi, /dev/urandom rwi, /dev/zero rwi, " +
				"/proc rl, /run/resolv.conf rl, /usr rl",
		},
		{
			name:   "restricted home",
			mounts: mounts{tmp("/home/u"), ro("/home/u/.bashrc"), rw("/home/u/.cache"), rw("/home/u/p")},
			rules:  "/home/u/.bashrc rl, /home/u/.cache rlw, /home/u/p rlw",
		},
		{
			name:   "hidden folder in a read-only one: siblings, no listing",
			mounts: mounts{ro("/usr"), dir("/usr/share/secret")},
			rules:  "/usr/bin rl, /usr/lib rl, /usr/share/doc rl",
			closed: "/usr /usr/share",
		},
		{
			name:   "hidden file in a read-only folder: siblings, listing",
			mounts: mounts{ro("/home/u"), file("/home/u/notes")},
			rules:  "/home/u l, /home/u/.bashrc rl, /home/u/.cache rl, /home/u/.config rl, /home/u/.ssh rl, /home/u/p rl",
			closed: "/home/u",
		},
		{
			name:   "writable below read-only",
			mounts: mounts{ro("/home/u"), rw("/home/u/p"), dir("/home/u/.ssh")},
			always: []string{"/home/u/.ssh"},
			rules:  "/home/u/.bashrc rl, /home/u/.cache rl, /home/u/.config rl, /home/u/notes rl, /home/u/p rlw",
			closed: "/home/u",
		},
		{
			name:   "configured protections in a writable folder are lost",
			mounts: mounts{rw("/home/u/p"), rw("/home/u/p/.git"), file("/home/u/p/.env"), ro("/home/u/p/.git/hooks")},
			rules:  "/home/u/p rlw",
			losses: `"/home/u/p/.env" can be seen and changed; "/home/u/p/.git/hooks" can be changed`,
		},
		{
			name: "writable home: what is always protected is kept, and what lies beside it",
			mounts: mounts{rw("/home/u"), rw("/home/u/.config"), rw("/home/u/p"), ro("/home/u/.bashrc"), ro("/home/u/.config/agent-sandbox"),
				dir("/home/u/.ssh"), file("/home/u/p/.env")},
			always: []string{"/home/u/.ssh", "/home/u/.config/agent-sandbox"},
			rules: "/home/u/.bashrc rl, /home/u/.cache rlw, /home/u/.config l, /home/u/.config/agent-sandbox rl, /home/u/.config/git rlw, " +
				"/home/u/notes rlw, /home/u/p rlw",
			losses: `"/home/u/p/.env" can be seen and changed`,
			closed: "/home/u /home/u/.config",
		},
		{
			name:   "a private home in a folder that is writable",
			mounts: mounts{rw("/home"), tmp("/home/u"), rw("/home/u/p")},
			rules:  "/home/u/p rlw",
			closed: "/home",
		},
		{
			name:   "a writable folder mounted over what was hidden",
			mounts: mounts{tmp("/home/u"), rw("/home")},
			rules:  "/home rlw",
		},
		{
			name:   "what is always protected and does not exist cannot be made",
			mounts: mounts{rw("/home/u/p"), rw("/home/u/p/a"), rw("/home/u/p/a/b"), dir("/home/u/p/a/b/keys")},
			always: []string{"/home/u/p/a/b/keys"},
			rules:  "/home/u/p/.env rlw, /home/u/p/.git rlw, /home/u/p/src rlw",
			closed: "/home/u/p",
		},
		{
			name:   "a private copy",
			mounts: mounts{tmp("/home/u"), {Kind: mountplan.Data, Mode: mountplan.DataCopy, Path: "/home/u/.bashrc"}},
			rules:  "/home/u/.bashrc rl",
			losses: `no private copy of "/home/u/.bashrc", the host's file is shown read-only`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &mountplan.Plan{Mounts: c.mounts, Causes: map[string]mountplan.Cause{}}
			for _, m := range c.mounts {
				if m.Protection() || m.Kind == mountplan.Data {
					p.Causes[m.Path] = mountplan.Cause{Text: "V", Always: slices.Contains(c.always, m.Path)}
				}
			}
			r, err := FromPlan(home, p)
			if err != nil {
				t.Fatal(err)
			}
			var rules, losses []string
			for _, x := range r.Rules {
				rules = append(rules, fmt.Sprint(x.Path, " ", x.Access))
			}
			for _, l := range r.Losses {
				losses = append(losses, strings.TrimSuffix(strings.TrimPrefix(l.Text, "V: "), ", it lies in a writable folder"))
			}
			check := func(what, got, want string) {
				t.Helper()
				if got != want {
					t.Errorf("%s:\n got %s\nwant %s", what, got, want)
				}
			}
			check("rules", strings.Join(rules, ", "), c.rules)
			check("losses", strings.Join(losses, "; "), c.losses)
			check("closed", strings.Join(r.Closed, " "), c.closed)
		})
	}
}

// TestHandled: a version never asks for a right that came later.
func TestHandled(t *testing.T) {
	for abi, want := range map[int]uint64{1: 1<<13 - 1, 2: 1<<14 - 1, 3: 1<<15 - 1, 4: 1<<15 - 1, 5: 1<<16 - 1, 6: 1<<16 - 1, 7: 1<<16 - 1} {
		if got := handled(abi); got != want {
			t.Errorf("version %d: %#x, want %#x", abi, got, want)
		}
		if got := scopes(abi); (got != 0) != (abi >= 6) {
			t.Errorf("version %d: scopes %#x", abi, got)
		}
	}
}
