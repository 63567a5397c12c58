// Command agent-sandbox-reload applies a changed configuration to a running
// session. See agent-sandbox-reload(1).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/cli"
	_ "agent-sandbox/internal/quickstart" // the Makefile has the program begin there
	"agent-sandbox/internal/reload"
)

const usage = `usage: agent-sandbox reload [ID | --project DIR] [--dry-run] [--force-detach]
                            [--timeout SECONDS]

Applies the mount part of a changed configuration to a running bwrap session,
without restarting it. Without ID and --project: the session of the current
folder's project.

  ID                 a session id, or the beginning of one that no other has
  --project DIR      the session of this project folder
  --dry-run          print what would be done, change nothing
  --force-detach     detach a path whose write access cannot be taken back since
                     files are open; what is open keeps its access
  --timeout SECONDS  give up after that many seconds (30)
  -h, --help         this text
  --version          the version

Exit status: 0 applied, or nothing to do; 1 error, nothing was applied; 2 usage;
3 applied partly: some change was refused, busy, or needs a restart.

Example:
  agent-sandbox reload --dry-run && agent-sandbox reload
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	p := cli.Printer{Name: "agent-sandbox-reload", W: stderr}
	for _, a := range args {
		if a == "-h" || a == "--help" || a == "--version" {
			cli.Common([]string{a}, usage, stdout)
			return cli.OK
		}
	}
	req, err := parse(args)
	if err != nil {
		p.Error(err)
		p.Hint("agent-sandbox reload --help shows the usage")
		return cli.Usage
	}
	return reload.Run(context.Background(), req, stdout, p)
}

func parse(args []string) (reload.Request, error) {
	req := reload.Request{Timeout: reload.DefaultTimeout}
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		arg := args[0]
		args = args[1:]
		take := func() (string, error) {
			if !inline {
				if len(args) == 0 {
					return "", fmt.Errorf("option %s needs a value", name)
				}
				value, args = args[0], args[1:]
			}
			if value == "" {
				return "", fmt.Errorf("option %s needs a value", name)
			}
			return value, nil
		}
		var err error
		switch {
		case arg == "--dry-run":
			req.DryRun = true
		case arg == "--force-detach":
			req.ForceDetach = true
		case name == "--project":
			req.Project, err = take()
		case name == "--timeout":
			var v string
			if v, err = take(); err == nil {
				n, bad := strconv.Atoi(v)
				if bad != nil || n < 1 || n > 3600 {
					err = fmt.Errorf("option --timeout wants seconds, 1 to 3600, not %s", cli.Quote(v))
				}
				req.Timeout = time.Duration(n) * time.Second
			}
		case strings.HasPrefix(arg, "-"):
			err = fmt.Errorf("there is no option %s", cli.Quote(arg))
		case req.ID != "":
			err = errors.New("more than one session given")
		case strings.Trim(arg, "0123456789abcdef") != "" || len(arg) > 8 || arg == "":
			err = fmt.Errorf("%s is not a session id: 1 to 8 lower-case hex digits", cli.Quote(arg))
		default:
			req.ID = arg
		}
		if err != nil {
			return req, err
		}
	}
	if req.ID != "" && req.Project != "" {
		return req, errors.New("a session id and --project exclude each other")
	}
	return req, nil
}
