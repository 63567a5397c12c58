package chaperon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
	"agent-sandbox/internal/sessionlog"
	"agent-sandbox/internal/slurm"
)

// A View is the session as its record says, which a reload changes. The record is
// read for every request, so that what was revoked is revoked for the next one, also
// where the reloader was killed before it could tell.
type View struct {
	Registry *session.Registry
	User     host.User
	Launcher string   // path of agent-sandbox
	Env      []string // the session's
	Log      *sessionlog.Log

	mu   sync.Mutex
	last session.Record
}

// Open reads the record for the first time.
func (v *View) Open(id string) (session.Record, error) {
	rec, err := v.Registry.Read(id)
	if err != nil {
		return rec, fmt.Errorf("cannot read the session record: %w", err)
	}
	v.last = rec
	return rec, nil
}

// Session is the session as it is now. A record that does not validate, or is of
// another sandbox, changes nothing: the last good one stays in force.
func (v *View) Session() (*slurm.Session, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	rec, err := v.Registry.Read(v.last.ID)
	if err == nil && (rec.Sandbox != v.last.Sandbox || rec.MountNS != v.last.MountNS || rec.Project != v.last.Project) {
		err = errors.New("it is of another sandbox")
	}
	if err != nil {
		v.Log.Line(sessionlog.Error, "cannot read the session record, the last one stays in force: %v", err)
	} else {
		v.last = rec
	}
	return v.of(v.last), nil
}

// Reread is what SIGUSR1 asks for: the log then says what is in force.
func (v *View) Reread() {
	if s, err := v.Session(); err == nil {
		v.Log.Line(sessionlog.Info, "read the session record again: %d writable paths", len(s.Writable))
	}
}

func (v *View) of(rec session.Record) *slurm.Session {
	s := &slurm.Session{
		ID: rec.ID, Project: rec.Project, Scope: Setting(rec, "SLURM_SCOPE"), Launcher: v.Launcher,
		User: v.User.Name, UID: v.User.UID, Env: v.Env, Bin: host.SlurmCommand,
	}
	s.Writable, s.Readonly, s.Masked = writable(rec.Mounts)
	return s
}

// Setting is the value of a scalar in a record, empty where it has none.
func Setting(rec session.Record, name string) string {
	for _, s := range rec.Settings {
		if s.Name == name {
			return s.Value
		}
	}
	return ""
}

// writable are the paths of the host that a session may write, and those below them
// that it may not, of these also those that hide what the host has. What shows inside under another name than on the host, or is
// there only inside, is no path of the host that it may write.
func writable(mounts []mountplan.Mount) (rw, closed, masked []string) {
	last := map[string]mountplan.Mount{} // of two lines at one path the later one shows
	for _, m := range mounts {
		last[m.Path] = m
	}
	for p, m := range last {
		if m.Kind == mountplan.RW && m.Source == "" && !mountplan.Under(p, "/dev") {
			rw = append(rw, p)
		}
	}
	for p, m := range last {
		if !slices.Contains(rw, p) && m.Kind != mountplan.Symlink && slices.ContainsFunc(rw, func(w string) bool { return mountplan.Under(p, w) }) {
			closed = append(closed, p)
			if m.Kind != mountplan.RO || m.Source != "" {
				masked = append(masked, p)
			}
		}
	}
	slices.SortFunc(rw, strings.Compare)
	slices.SortFunc(closed, strings.Compare)
	slices.SortFunc(masked, strings.Compare)
	return rw, closed, masked
}
