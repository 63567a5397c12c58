package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/host"
	"agent-sandbox/internal/layout"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/session"
	"agent-sandbox/internal/sys"
)

var subcommands = map[string]func(args []string, stdout io.Writer, p cli.Printer) int{
	"sessions": sessions, "reload": reload, "plan": plan, "config": showConfig, "check": check,
}

// options reads what plan and config take. ok is false where the answer is given.
func options(args []string, stdout io.Writer, p cli.Printer) (o layout.Options, code int, ok bool) {
	if cli.Common(args, usage, stdout) {
		return o, cli.OK, false
	}
	for len(args) > 0 {
		value, inline := strings.CutPrefix(args[0], "--project-dir=")
		switch {
		case inline && value != "":
			o.Project, args = value, args[1:]
		case args[0] == "--project-dir" && len(args) > 1 && args[1] != "":
			o.Project, args = args[1], args[2:]
		default:
			return o, misuse(p, args[0]), false
		}
	}
	return o, 0, true
}

func misuse(p cli.Printer, arg string) int {
	p.Errorf("cannot use the argument %s here", cli.Quote(arg))
	p.Hint("agent-sandbox --help shows the usage")
	return cli.Usage
}

func plan(args []string, stdout io.Writer, p cli.Printer) int {
	o, code, ok := options(args, stdout, p)
	if !ok {
		return code
	}
	l, err := layout.Make(context.Background(), o)
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	warn(l, p)
	return print(stdout, p, strings.Join(l.Lines(), "\n")+"\n")
}

func showConfig(args []string, stdout io.Writer, p cli.Printer) int {
	o, code, ok := options(args, stdout, p)
	if !ok {
		return code
	}
	l, err := layout.Configure(context.Background(), o)
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	warn(l, p)
	var b strings.Builder
	l.Config.Settings.Print(&b)
	return print(stdout, p, b.String())
}

func warn(l *layout.Layout, p cli.Printer) {
	for _, w := range l.Warnings {
		p.Warn(w)
	}
}

// print writes the answer; one that does not arrive (a full disk) is a failure.
func print(stdout io.Writer, p cli.Printer, text string) int {
	if _, err := io.WriteString(stdout, text); err != nil {
		p.Error(fmt.Errorf("cannot write the answer: %w", err))
		return cli.Failed
	}
	return cli.OK
}

func sessions(args []string, stdout io.Writer, p cli.Printer) int {
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) > 0 {
		return misuse(p, args[0])
	}
	u, err := host.Current()
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	live, errs := session.Sweep(u)
	for _, err := range errs {
		p.Warn(err.Error())
	}
	defer session.CloseAll(live)
	var b strings.Builder
	var w io.Writer = &b
	if f, ok := stdout.(*os.File); ok && sys.IsTerminal(int(f.Fd())) && len(live) > 0 {
		t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, "ID\tPID\tSTARTED\tBACKEND\tPROJECT\tCOMMAND")
		w = t
	}
	if f, ok := stdout.(*os.File); ok && sys.IsTerminal(int(f.Fd())) && len(live) == 0 {
		p.Hint("no session runs; agent-sandbox COMMAND starts one")
	}
	for _, e := range live {
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", e.ID, e.Launcher.PID, e.Started.UTC().Format(time.RFC3339), e.Backend,
			record.Escape(e.Project), record.Escape(e.Command))
	}
	if t, ok := w.(*tabwriter.Writer); ok {
		t.Flush()
	}
	return print(stdout, p, b.String())
}
