package reload

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
)

// A table is the session's mount table as a path look-up goes through it. The
// order of the lines tells nothing: a mount that was moved keeps its place.
type table struct {
	mounts []mountinfo.Mount
	kids   map[int]map[string]int // mount id -> mount point -> index of what is mounted there
	root   int
}

func newTable(mounts []mountinfo.Mount) *table {
	t := &table{mounts: mounts, kids: make(map[int]map[string]int, len(mounts)), root: -1}
	ids := make(map[int]bool, len(mounts))
	for _, m := range mounts {
		ids[m.ID] = true
	}
	for i, m := range mounts {
		if !ids[m.Parent] || m.Parent == m.ID {
			t.root = i
			continue
		}
		if t.kids[m.Parent] == nil {
			t.kids[m.Parent] = map[string]int{}
		}
		t.kids[m.Parent][m.Point] = i
	}
	return t
}

// at is the mount that shows what is at p.
func (t *table) at(p string) (mountinfo.Mount, bool) {
	if t.root < 0 {
		return mountinfo.Mount{}, false
	}
	at := t.root
	for i := 0; i < len(p); i++ {
		if i > 0 && i+1 < len(p) && p[i+1] != '/' {
			continue
		}
		for {
			k, ok := t.kids[t.mounts[at].ID][p[:i+1]]
			if !ok {
				break
			}
			at = k
		}
	}
	return t.mounts[at], true
}

// on is the mount whose mount point is p, where it is not covered.
func (t *table) on(p string) (mountinfo.Mount, bool) {
	m, ok := t.at(p)
	return m, ok && m.Point == p
}

// shows says whether m, a mount of a session, shows the object that is at p in
// this table.
func (t *table) shows(m mountinfo.Mount, p string) bool {
	at, ok := t.at(p)
	inFS := strings.TrimSuffix(at.Root, "/") + "/" + strings.TrimPrefix(strings.TrimPrefix(p, at.Point), "/")
	return ok && m.Major == at.Major && m.Minor == at.Minor && m.Root == strings.TrimSuffix(inFS, "/")
}

func readOnly(m mountinfo.Mount) bool { return m.ReadOnly() || m.SuperReadOnly() }

// table reads the session's mount table, which shows in /proc whoever owns the
// namespace.
func (r *reloader) table() (*table, error) {
	t, err := readTable(strconv.Itoa(r.rec.Sandbox.PID))
	if !r.rec.Sandbox.Alive() {
		return nil, fmt.Errorf("session %s has ended", r.rec.ID)
	}
	return t, err
}

func readTable(pid string) (*table, error) {
	data, err := os.ReadFile("/proc/" + pid + "/mountinfo")
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.Parse(data)
	if err != nil {
		return nil, err
	}
	return newTable(mounts), nil
}

// present are the mounts of the record that the session really has. Another
// reload may have been killed after it wrote the record, and the host can take a
// mount away that no guard puts back; such a line is no reason to leave it so.
// here is the host's own mount table.
func present(record []mountplan.Mount, t, here *table) []mountplan.Mount {
	var out []mountplan.Mount
	for _, m := range record {
		at, there := t.on(m.Path)
		switch {
		case m.Kind == mountplan.Data && mountplan.Under(m.Path, "/etc"):
			// FILTER_PASSWD is of the launch. Every useradd on the host takes
			// these away, and the guard puts them back.
			there = true
		case m.Protection():
			there = there && readOnly(at) && (m.Kind == mountplan.RO || !here.shows(at, m.Path))
			if !there {
				// Of what does not exist only the record tells: the guard mounts
				// it when it appears.
				_, err := os.Lstat(m.Path)
				there = errors.Is(err, fs.ErrNotExist)
			}
		case m.Kind != mountplan.RW:
			there = true
		}
		if there {
			out = append(out, m)
		}
	}
	return out
}

// shown are mounts of the host's objects that the session has beside those of list,
// and beside the host's own mounts: what a revocation leaves visible, or is going to.
func shown(list []mountplan.Mount, t, here *table) []mountplan.Mount {
	listed := make(map[string]bool, len(list))
	for _, m := range list {
		listed[m.Path] = true
	}
	var out []mountplan.Mount
	for _, m := range t.mounts {
		if _, host := here.on(m.Point); host || listed[m.Point] || !here.shows(m, m.Point) {
			continue
		}
		if top, ok := t.on(m.Point); ok && top.ID == m.ID {
			kind := mountplan.RW
			if m.ReadOnly() {
				kind = mountplan.RO
			}
			out = append(out, mountplan.Mount{Kind: kind, Path: m.Point})
		}
	}
	return out
}

// strays finds writable mounts of the host where the session is to have none after
// the changes: what a reload that was killed half way left behind, covered ones
// included.
func strays(next []mountplan.Mount, changes []mountplan.Change, t *table) []mountplan.Change {
	listed := make(map[string]bool, len(changes))
	closing := map[string]bool{}
	for _, c := range changes {
		if c.Action == mountplan.Add || c.Action == mountplan.Revoke {
			listed[c.Mount.Path] = true
			closing[c.Mount.Path] = closing[c.Mount.Path] || c.Action == mountplan.Revoke || c.Mount.Protection()
		}
	}
	// What is mounted below a path goes with it.
	goes := func(p string) bool {
		for ; p != "" && !closing[p]; p = p[:strings.LastIndexByte(p, '/')] {
		}
		return p != ""
	}
	governing := mountplan.Governor(next)
	var out []mountplan.Change
	for _, m := range t.mounts {
		if readOnly(m) || listed[m.Point] || goes(m.Point) {
			continue
		}
		g, ok := governing(m.Point)
		if !ok || !g.Protection() && (g.Kind != mountplan.Tmpfs || g.Path == m.Point) {
			continue
		}
		if top, ok := t.on(m.Point); ok && (top.Major != m.Major || top.Minor != m.Minor || top.Root != m.Root) {
			continue // under a mask, where no name leads to it
		}
		listed[m.Point] = true
		out = append(out, mountplan.Change{Action: mountplan.Revoke, Mount: mountplan.Mount{Kind: mountplan.RW, Path: m.Point}})
	}
	return out
}
