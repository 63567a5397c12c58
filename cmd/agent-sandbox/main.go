// Command agent-sandbox launches a command in a sandbox, and tells of sessions,
// configuration and plan. Inside a session the same file supervises the command.
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/backend"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/launch"
	"agent-sandbox/internal/sandboxinit"
)

const usage = `usage: agent-sandbox [--project-dir DIR] [--backend auto|bwrap|firejail|landlock]
                     [--physical] [--dry-run] [--] COMMAND [ARG...]
       agent-sandbox sessions
       agent-sandbox reload [ID | --project DIR] [--dry-run] [--force-detach]
                     [--timeout SECONDS]
       agent-sandbox plan   [--project-dir DIR]
       agent-sandbox config [--project-dir DIR]
       agent-sandbox check

Runs COMMAND so that it can write in the project folder and little else, and read
what the configuration shows it.

  --project-dir DIR  the project folder, instead of the current one
  --backend NAME     how to confine, instead of SANDBOX_BACKEND
  --physical         refuse a project folder that a link leads to
  --dry-run          print the command line of the backend, run nothing
  -h, --help         this text
  --version          the version

  sessions           list your live sessions on this host
  reload             apply a changed configuration to a running session
  plan               print the settings and mounts a launch would use
  config             print the configuration after all its layers
  check              say what works here, what does not, and how to mend it

Settings: agent-sandbox.conf(5). Exit status: the command's own, 125 where the
sandbox could not be set up.

Example:
  cd ~/work/proj && agent-sandbox claude
`

func main() {
	if os.Args[0] == sandboxinit.Path {
		os.Exit(sandboxinit.Main())
	}
	if len(os.Args) > 1 && os.Args[1] == backend.Supervise {
		os.Exit(backend.Supervisor(os.Args[2:]))
	}
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	p := cli.Printer{Name: "agent-sandbox", W: stderr}
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur < minFiles {
		// The Go runtime ends with a stack trace where it cannot open its own few.
		p.Errorf("cannot work with a limit of %d open files", files.Cur)
		p.Hint(fmt.Sprintf("ulimit -n %d or more", minFiles))
		return cli.LaunchFailed
	}
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) > 0 {
		if sub, ok := subcommands[args[0]]; ok {
			return sub(args[1:], stdout, p)
		}
	}
	req, err := parse(args)
	if err != nil {
		p.Error(err)
		p.Hint("agent-sandbox --help shows the usage")
		return cli.LaunchFailed
	}
	req.Subcommands = append(slices.Sorted(maps.Keys(subcommands)), "--help", "--version")
	return launch.Run(context.Background(), req, stdout, p)
}

// minFiles is the least number of descriptors that a launch needs.
const minFiles = 64

var backends = []string{"auto", "bwrap", "firejail", "landlock"}

// parse reads the options of a launch; the first word that is none, or the first
// after --, is the command.
func parse(args []string) (launch.Request, error) {
	var req launch.Request
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		take := func() (string, error) {
			if inline {
				args = args[1:]
				return value, nil
			}
			if len(args) < 2 {
				return "", fmt.Errorf("option %s needs a value", name)
			}
			v := args[1]
			args = args[2:]
			return v, nil
		}
		var err error
		switch {
		case args[0] == "--":
			req.Command = args[1:]
			args = nil
		case name == "--project-dir":
			req.Project, err = take()
			if err == nil && req.Project == "" {
				err = fmt.Errorf("option --project-dir needs a folder")
			}
		case name == "--backend":
			req.Backend, err = take()
			if err == nil && !contains(backends, req.Backend) {
				err = fmt.Errorf("there is no backend %s: want %s", cli.Quote(req.Backend), strings.Join(backends, ", "))
			}
		case args[0] == "--dry-run":
			req.DryRun = true
			args = args[1:]
		case args[0] == "--physical":
			req.Physical = true
			args = args[1:]
		case strings.HasPrefix(args[0], "-"):
			err = fmt.Errorf("there is no option %s", cli.Quote(args[0]))
		default:
			req.Command = args
			args = nil
		}
		if err != nil {
			return req, err
		}
	}
	if len(req.Command) == 0 {
		return req, fmt.Errorf("no command given")
	}
	return req, nil
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}

// reload is a program of its own, so that what changes running sessions can be
// read and confined by itself.
func reload(args []string, _ io.Writer, p cli.Printer) int {
	path, err := cli.Helper("agent-sandbox-reload")
	if err == nil {
		err = syscall.Exec(path, append([]string{path}, args...), os.Environ())
	}
	p.Error(fmt.Errorf("cannot run agent-sandbox-reload: %w", err))
	return cli.Failed
}
