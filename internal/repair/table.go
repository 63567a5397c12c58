package repair

import (
	"slices"
	"strings"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
)

// A table is a mount table, found by mount id.
type table struct {
	mounts []mountinfo.Mount
	byID   map[int]int
}

func parseTable(data []byte) (*table, error) {
	ms, err := mountinfo.Parse(data)
	if err != nil {
		return nil, err
	}
	t := &table{byID: make(map[int]int, len(ms))}
	for _, m := range ms {
		t.add(m)
	}
	return t, nil
}

func (t *table) add(m mountinfo.Mount) {
	t.byID[m.ID] = len(t.mounts)
	t.mounts = append(t.mounts, m)
}

func (t *table) get(id uint64) (mountinfo.Mount, bool) {
	i, ok := t.byID[int(id)]
	if !ok {
		return mountinfo.Mount{}, false
	}
	return t.mounts[i], true
}

// below are the mounts at points below path, parents before children.
func (t *table) below(path string) []mountinfo.Mount {
	var out []mountinfo.Mount
	for _, m := range t.mounts {
		if m.Point != path && mountplan.Under(m.Point, path) {
			out = append(out, m)
		}
	}
	// A mount that was moved stands before its parent in the kernel's order.
	slices.SortStableFunc(out, func(a, b mountinfo.Mount) int { return len(a.Point) - len(b.Point) })
	return out
}

// rel is path without dir, which it lies in or is: "" or "a/b".
func rel(path, dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}

// join puts rel below dir.
func join(dir, rel string) string {
	switch {
	case rel == "":
		return dir
	case dir == "/":
		return "/" + rel
	}
	return dir + "/" + rel
}

// A keepSet holds the paths whose mounts are lines of the plan of their own.
type keepSet map[string]bool

// covers says whether path is a kept path or lies below one, looking no higher
// than below top.
func (k keepSet) covers(path, top string) bool {
	for p := path; p != top && len(p) > len(top); {
		if k[p] {
			return true
		}
		i := strings.LastIndexByte(p, '/')
		if i <= 0 {
			break
		}
		p = p[:i]
	}
	return false
}
