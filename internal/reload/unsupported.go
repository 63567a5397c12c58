package reload

import (
	"context"
	"fmt"
	"strings"

	"agent-sandbox/internal/backend"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/layout"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/session"
)

// unsupported is the answer where no bwrap session is meant: one that runs on
// another backend, or whatever a launch for the project would start now. Rules of
// Landlock cannot be changed, and firejail's namespaces belong to root. nil where
// none of this is the case.
func unsupported(u host.User, req Request) error {
	project := ""
	if req.ID == "" {
		var err error
		if project, err = layout.Physical(req.Project); err != nil {
			return err
		}
	}
	for _, s := range session.UnlistedSessions(u) {
		if project == "" && strings.HasPrefix(s.ID, req.ID) || project != "" && (s.Project == project || req.Project == "" && mountplan.Under(project, s.Project)) {
			return fmt.Errorf("session %s of %s runs on %s: not supported, restart", s.ID, cli.Quote(s.Project), s.Backend)
		}
	}
	if project == "" {
		return nil
	}
	l, err := layout.Configure(context.Background(), layout.Options{Project: project})
	if err != nil {
		return err
	}
	if name := backend.Effective(l.Config.Settings.Scalar("SANDBOX_BACKEND")); name != "bwrap" {
		return fmt.Errorf("the backend of %s is %s: not supported, restart", cli.Quote(project), name)
	}
	return nil
}
