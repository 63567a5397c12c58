package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// The journal <id>.d/made says which placeholders a session has on the host. It
// is written before the first of them is made and before the record, so that
// they are found again whenever the launcher is killed.
//
//	agent-sandbox-made 1
//	host HOST
//	boot BOOT
//	pidns INODE
//	launcher PID START-TIME
//	made PATH
//	end

const journal = "made"

const madeFirstLine = "agent-sandbox-made 1"

type claims struct {
	here     Here
	launcher Proc
	made     []string
}

func (c claims) marshal() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nhost %s\nboot %s\npidns %d\nlauncher %s\n", madeFirstLine, record.Escape(c.here.Host), record.Escape(c.here.Boot), c.here.PIDNS, c.launcher)
	for _, p := range c.made {
		b.WriteString("made " + record.Escape(p) + "\n")
	}
	b.WriteString("end\n")
	return []byte(b.String())
}

func parseClaims(data []byte) (claims, error) {
	var c claims
	p := parser{lines: strings.SplitAfter(string(data), "\n")}
	if p.next() != madeFirstLine {
		return c, fmt.Errorf("%w: journal: first line is not %q", ErrInvalid, madeFirstLine)
	}
	p.text("host", &c.here.Host, notEmpty)
	p.text("boot", &c.here.Boot, notEmpty)
	p.number("pidns", 1<<63, func(n uint64) { c.here.PIDNS = n })
	p.proc("launcher", &c.launcher)
	for p.more("made") {
		var path string
		p.text("made", &path, mountplan.CleanAbs)
		c.made = append(c.made, path)
	}
	if p.err == nil && (p.next() != "end" || len(p.lines) != 1 || p.lines[0] != "") {
		p.fail("it does not end where it should")
	}
	if p.err != nil {
		return claims{}, p.err
	}
	return c, nil
}

func (g *Registry) readClaims(id string) (claims, error) {
	dir, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return claims{}, err
	}
	defer dir.Close()
	data, err := g.readFile(dir, journal)
	if err != nil {
		return claims{}, err
	}
	return parseClaims(data)
}

// Begin makes the folder of a new session and journals whose it is. Whenever this
// process is killed, the next Sweep finds the session.
func (g *Registry) Begin(here Here) (id string, err error) {
	self, err := Self()
	if err != nil {
		return "", err
	}
	unlock, err := g.lock() // see dropNobodys
	if err != nil {
		return "", err
	}
	defer unlock()
	if id, err = g.newSession(); err != nil {
		return "", err
	}
	return id, g.ReplaceData(id, journal, claims{here, self, nil}.marshal())
}

// dropNobodys takes away a session without record and journal. Where there is still
// none while the registry is locked, the launcher that made the folder is gone.
func (g *Registry) dropNobodys(id string) error {
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	_, none := g.readClaims(id)
	_, norecord := g.Read(id)
	if !errors.Is(none, fs.ErrNotExist) || !errors.Is(norecord, fs.ErrNotExist) {
		return nil
	}
	return g.remove(id)
}

// Claim makes the placeholders of a new session and journals them, with those of
// other sessions that its protections stand on. The returned paths are the `made`
// lines of its record. On an error nothing it made is left.
func (g *Registry) Claim(others []*Registry, id string, here Here, plan *mountplan.Plan) (made []string, err error) {
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	self, err := Self()
	if err != nil {
		return nil, err
	}
	return g.claim(others, id, claims{here, self, nil}, plan)
}

// ClaimMore makes the placeholders that a reload's plan needs beyond those that the
// session has, and returns all of them, for its record.
func (g *Registry) ClaimMore(r Record, plan *mountplan.Plan) (made []string, err error) {
	unlock, err := g.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	return g.claim(nil, r.ID, claims{Here{r.Host, r.Boot, r.PIDNS}, r.Launcher, r.Made}, plan)
}

// claim journals and makes placeholders, with the registry locked.
func (g *Registry) claim(others []*Registry, id string, c claims, plan *mountplan.Plan) (made []string, err error) {
	made = slices.Clone(c.made)
	for _, p := range plan.Make {
		made = append(made, p.Path)
	}
	// A placeholder of another session exists already, so this plan takes it
	// for a file of the user's. Both have to end before it may go.
	held := g.held(others, id)
	for _, m := range plan.Mounts {
		for p := m.Path; m.Protection() && p != ""; p = p[:strings.LastIndexByte(p, '/')] {
			if held[p] && !slices.Contains(made, p) {
				made = append(made, p)
			}
		}
	}
	c.made = made
	// Also where it says nothing new: it fails where the session has ended meanwhile.
	if err := g.ReplaceData(id, journal, c.marshal()); err != nil {
		return nil, err
	}
	for i, p := range plan.Make {
		err := makePlaceholder(p)
		if errors.Is(err, fs.ErrExist) {
			// It appeared since the plan was made. What is not another
			// session's placeholder is the user's and must stay.
			if !held[p.Path] {
				made = slices.DeleteFunc(made, func(q string) bool { return q == p.Path })
			}
			continue
		}
		if err != nil {
			for _, q := range slices.Backward(plan.Make[:i]) {
				if slices.Contains(made, q.Path) && !held[q.Path] {
					removePlaceholder(q.Path, g.uid)
				}
			}
			return nil, fmt.Errorf("cannot make the mount point of a protection: %w", err)
		}
	}
	if len(made) == len(c.made) {
		return made, nil
	}
	c.made = made
	return made, g.ReplaceData(id, journal, c.marshal())
}

// held is the set of placeholders of every session but id.
func (g *Registry) held(others []*Registry, id string) map[string]bool {
	held := map[string]bool{}
	for _, reg := range append([]*Registry{g}, others...) {
		ids, err := reg.IDs()
		if err != nil {
			continue
		}
		for _, other := range ids {
			if other == id && reg.Path == g.Path {
				continue
			}
			if c, err := reg.readClaims(other); err == nil {
				for _, p := range c.made {
					held[p] = true
				}
			}
			if r, err := reg.Read(other); err == nil {
				for _, p := range r.Made {
					held[p] = true
				}
			}
		}
	}
	return held
}

func makePlaceholder(p mountplan.Placeholder) error {
	dir, name, err := openParent(p.Path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if p.Dir {
		err = sys.MkdirAt(dir, name, 0o700)
	} else {
		var f *os.File
		if f, err = sys.OpenAt(dir, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600); err == nil {
			f.Close()
		}
	}
	return err
}

func openParent(path string) (dir *os.File, name string, err error) {
	i := strings.LastIndexByte(path, '/')
	dir, err = sys.OpenNoFollow(path[:max(i, 1)], sys.O_PATH|syscall.O_DIRECTORY)
	return dir, path[i+1:], err
}

// removePlaceholder removes an empty file or folder of the user's; anything else
// has been put to use and stays.
func removePlaceholder(path string, uid int) {
	dir, name, err := openParent(path)
	if err != nil {
		return
	}
	defer dir.Close()
	st, err := sys.StatAt(dir, name)
	if err != nil || int(st.UID) != uid {
		return
	}
	switch {
	case st.IsDir():
		sys.UnlinkAt(dir, name, true) // fails where it is not empty
	case st.IsRegular() && st.Size == 0 && st.Nlink == 1:
		sys.UnlinkAt(dir, name, false)
	}
}

// End takes a session off the registry: its placeholders that no other session
// stands on, its record, its folder. It may be called for what is half there.
func (g *Registry) End(others []*Registry, id string) error {
	unlock, err := g.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var made []string
	if c, err := g.readClaims(id); err == nil {
		made = c.made
	}
	if r, err := g.Read(id); err == nil {
		made = append(made, r.Made...)
	}
	held := g.held(others, id)
	slices.Sort(made)
	for _, p := range slices.Backward(slices.Compact(made)) {
		if !held[p] {
			removePlaceholder(p, g.uid)
		}
	}
	return g.remove(id)
}
