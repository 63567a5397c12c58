package session

import (
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// Unlisted is a session on a backend whose sessions have no record (landlock,
// firejail). Its folder in the registry says what reload has to know to refuse.
type Unlisted struct{ ID, Backend, Project string }

// unlistedFile is in the session's folder: the backend and the project, a line each.
const unlistedFile = "backend"

// WriteUnlisted says that session id runs on a backend without records.
func (g *Registry) WriteUnlisted(s Unlisted) error {
	return g.WriteData(s.ID, unlistedFile, []byte(s.Backend+"\n"+record.Escape(s.Project)+"\n"), 0o600)
}

// UnlistedSessions are those of the user that are alive.
func UnlistedSessions(u host.User) []Unlisted {
	here, err := Place()
	if err != nil {
		return nil
	}
	regs, _ := Existing(u)
	var out []Unlisted
	for _, g := range regs {
		ids, _ := g.IDs()
		for _, id := range ids {
			c, err := g.readClaims(id)
			if err != nil || c.here != here || !c.launcher.Alive() {
				continue
			}
			if s, ok := g.readUnlisted(id); ok {
				out = append(out, s)
			}
		}
		g.Close()
	}
	slices.SortFunc(out, func(a, b Unlisted) int { return strings.Compare(a.ID, b.ID) })
	return out
}

func (g *Registry) readUnlisted(id string) (Unlisted, bool) {
	dir, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return Unlisted{}, false
	}
	defer dir.Close()
	data, err := g.readFile(dir, unlistedFile)
	if err != nil {
		return Unlisted{}, false
	}
	lines := strings.Split(string(data), "\n")
	if len(lines) != 3 || lines[0] != "landlock" && lines[0] != "firejail" {
		return Unlisted{}, false
	}
	project, err := record.Unescape(lines[1])
	return Unlisted{id, lines[0], project}, err == nil && mountplan.CleanAbs(project)
}
