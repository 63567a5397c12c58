package config

import (
	"context"
	"errors"
	"io"

	"agent-sandbox/internal/agents"
)

// AdminDir is the folder of the admin's sandbox.conf. It is fixed at build time
// (the Makefile may set it with -X); nothing in the environment moves it.
var AdminDir = "/etc/agent-sandbox"

// Request says whose configuration is loaded and for which project.
type Request struct {
	Home       string // $HOME, absolute
	PasswdHome string // home in the user database, empty where it is not known
	User       string // login name in the user database, empty where it is not known
	UID        int
	ProjectDir string              // physical; empty: no project (config, check)
	Getenv     func(string) string // layer 5, SANDBOX_CONF, XDG_CONFIG_HOME

	// Reload of a running session: ConfigDir is the folder its record names, and
	// the file named by SANDBOX_CONF is refused unless it is a regular file of UID.
	Reload    bool
	ConfigDir string

	AgentsDir string // folder of the agent profiles; empty: agents.Dir()
}

// Result is a loaded configuration.
type Result struct {
	Settings   *Settings
	Warnings   []string          // for cli.Printer.Warn, in order
	ConfigDir  string            // configuration folder in use, whether it exists or not
	ConfFile   string            // the file SANDBOX_CONF names, absolute; empty where it is not set
	HomeAccess string            // HOME_ACCESS of the environment, empty where it is not set
	Files      []string          // configuration files that were read, in order
	Admin      Admin             // what the admin's file pins
	Agents     []*agents.Profile // profiles of ENABLED_AGENTS, in that order
}

// Admin is what the admin's file listed: entries that no later layer can take
// away, and scalars that it set.
type Admin struct {
	File   string              // empty: there is no admin layer
	Pinned map[string][]string // by name: the entries of an array that the file listed, or the one value of a scalar
}

// Setting is one `setting` line of a session record: a scalar, one element of an
// array, or `sha256:HEX` of a value that may hold a secret.
type Setting struct{ Name, Value string }

// Load runs the layers. An error names file, line and variable and says how to
// mend it (cli.WithHint); nothing of a failed load is to be used.
func Load(ctx context.Context, req Request) (*Result, error) { return nil, errors.ErrUnsupported }

// CheckProject fails unless the project dir of the request may be one: it is
// neither `/` nor a home, lies below ALLOWED_PROJECT_PARENTS, and not below
// DENIED_WRITABLE_PATHS.
func (r *Result) CheckProject() error { return errors.ErrUnsupported }

// ApplyLaunch puts the settings of a session's record in place of those that a
// reload cannot apply, and returns the names that differ, in the order of Vars.
// What may hold a secret is compared by digest and stays as loaded.
func (r *Result) ApplyLaunch(recorded []Setting) (differ []string, err error) {
	return nil, errors.ErrUnsupported
}

// LaunchSettings are the settings that a reload cannot apply, in the order of Vars.
func (s *Settings) LaunchSettings() []Setting { return nil }

// Print writes one NAME<TAB>VALUE line per scalar and per array element.
func (s *Settings) Print(w io.Writer) error { return nil }
