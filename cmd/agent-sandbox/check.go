package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"agent-sandbox/internal/backend"
	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/layout"
	"agent-sandbox/internal/sys"
)

// check says, a line each, what works here: `ok`, `warn` or `no`, what was looked
// at, why, and how to mend it.
func check(args []string, stdout io.Writer, p cli.Printer) int {
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) > 0 {
		return misuse(p, args[0])
	}
	var findings []bwrap.Finding
	usable := false
	for _, name := range backend.Names {
		found, works := backend.Probe(name)
		findings = append(findings, found...)
		usable = usable || works
	}
	helpers := helpersFinding()
	usable = usable && helpers.State == "ok"
	findings = append(findings, helpers,
		program("pasta", "filtered networks, which are not in this version", "apt install passt"),
		daemonFinding())
	config, loads := configFinding(p)
	findings = append(findings, config)

	var b strings.Builder
	var w io.Writer = &b
	var table *tabwriter.Writer
	if f, ok := stdout.(*os.File); ok && sys.IsTerminal(int(f.Fd())) {
		table = tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		w = table
	}
	for _, f := range findings {
		line := fmt.Sprintf("%s\t%s\t%s\t%s", f.State, f.What, f.Why, f.Mend)
		if table != nil {
			line = strings.TrimRight(line, "\t") // no column of blanks
		}
		fmt.Fprintln(w, line)
	}
	if table != nil {
		table.Flush()
	}
	if code := print(stdout, p, b.String()); code != cli.OK {
		return code
	}
	if !usable || !loads {
		return cli.Failed
	}
	return cli.OK
}

func program(name, forWhat, mend string) bwrap.Finding {
	path, err := exec.LookPath(name)
	if err != nil {
		return bwrap.Finding{State: "warn", What: name, Why: "not installed; only needed for " + forWhat, Mend: mend}
	}
	return bwrap.Finding{State: "ok", What: name, Why: path + "; for " + forWhat}
}

// helpersFinding says whether the programs that a session needs are found.
func helpersFinding() bwrap.Finding {
	for _, name := range []string{"mount-guard", "mount-repair", "chaperon", "chaperon-stub", "agent-sandbox-reload"} {
		if _, err := cli.Helper(name); err != nil {
			return bwrap.Finding{State: "no", What: "helpers", Why: err.Error(), Mend: "install the whole suite: make install, or the Debian package agent-sandbox"}
		}
	}
	return bwrap.Finding{State: "ok", What: "helpers", Why: "mount-guard, mount-repair, chaperon, chaperon-stub, agent-sandbox-reload"}
}

// requests is the folder in which agent-sandbox-execd takes requests.
const requests = "/run/agent-sandbox-exec/req"

func daemonFinding() bwrap.Finding {
	st, err := sys.Lstat(requests)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return bwrap.Finding{State: "warn", What: "agent-sandbox-execd", Why: "does not run; only needed for agent-sandbox-exec", Mend: "apt install agent-sandbox-exec; systemctl start agent-sandbox-execd"}
	case err != nil || !st.IsDir() || st.UID != 0:
		return bwrap.Finding{State: "no", What: "agent-sandbox-execd", Why: requests + " is not root's folder", Mend: "systemctl restart agent-sandbox-execd"}
	}
	return bwrap.Finding{State: "ok", What: "agent-sandbox-execd", Why: "takes requests"}
}

func configFinding(p cli.Printer) (bwrap.Finding, bool) {
	l, err := layout.Configure(context.Background(), layout.Options{})
	if err != nil {
		mend := "mend the file that is named"
		var hinted *cli.Hinted
		if errors.As(err, &hinted) {
			mend = hinted.Hint()
		}
		return bwrap.Finding{State: "no", What: "configuration", Why: err.Error(), Mend: mend}, false
	}
	warn(l, p)
	if n := len(l.Warnings); n > 0 {
		return bwrap.Finding{State: "warn", What: "configuration", Why: fmt.Sprintf("%d warnings", n), Mend: "mend what is warned of on standard error"}, true
	}
	if len(l.Config.Files) == 0 {
		return bwrap.Finding{State: "ok", What: "configuration", Why: "built-in defaults; your own settings go to " + l.Config.ConfigDir + "/sandbox.conf"}, true
	}
	return bwrap.Finding{State: "ok", What: "configuration", Why: strings.Join(l.Config.Files, " ")}, true
}
