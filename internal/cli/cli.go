// Package cli holds what every command of the suite says and returns in the
// same way: the message grammar, exit statuses, --help and --version.
//
// Grammar of a message, one line each on standard error:
//
//	NAME: cannot VERB OBJECT: CAUSE
//	NAME: warning: what is not as asked
//	NAME: hint: what to do next
//
// Lower case, no full stop, paths quoted with Quote. Never a stack trace, never
// the value of a variable that may hold a secret.
package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Version is the version of the whole suite; the Makefile sets it with -X from
// the file VERSION, so that it stands in one place.
var Version = "0.1.0"

// Libexec is the folder of the helper programs where they do not lie beside the
// running binary. The Makefile sets it with -X.
var Libexec = "/usr/libexec/agent-sandbox"

// Datadir is the folder of the shipped data files (agent profiles) where there is
// no folder share beside the running binary. The Makefile sets it with -X.
var Datadir = "/usr/share/agent-sandbox"

// Exit statuses shared by the suite. docs/exit-status.md is the table.
const (
	OK           = 0
	Failed       = 1   // a subcommand, reload or helper failed
	Usage        = 2   // of everything but a launch
	Partly       = 3   // reload: applied partly; helper: cannot enter
	LaunchFailed = 125 // a launch: usage, or the sandbox could not be set up
	NotExec      = 126 // a launch: the command is not executable
	NotFound     = 127 // a launch: there is no such command
	SignalBase   = 128 // a launch: 128+N where signal N killed the command
)

// A Printer writes the messages of one program.
type Printer struct {
	Name string    // name of the program, as the user typed it
	W    io.Writer // standard error
}

// Error prints err and the hints it carries, each on a line of its own.
func (p Printer) Error(err error) {
	fmt.Fprintf(p.W, "%s: %s\n", p.Name, err)
	var h *Hinted
	for e := err; errors.As(e, &h); e = h.err {
		fmt.Fprintf(p.W, "%s: hint: %s\n", p.Name, h.hint)
	}
}

// Errorf prints a message.
func (p Printer) Errorf(format string, args ...any) { p.Error(fmt.Errorf(format, args...)) }

// Warn prints a warning.
func (p Printer) Warn(text string) { fmt.Fprintf(p.W, "%s: warning: %s\n", p.Name, text) }

// Hint prints what to do next.
func (p Printer) Hint(text string) { fmt.Fprintf(p.W, "%s: hint: %s\n", p.Name, text) }

// Hinted is an error with advice on how to mend it.
type Hinted struct {
	err  error
	hint string
}

// WithHint attaches advice to err. A nil err stays nil.
func WithHint(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Hinted{err, fmt.Sprintf(format, args...)}
}

func (h *Hinted) Error() string { return h.err.Error() }
func (h *Hinted) Unwrap() error { return h.err }

// Quote makes a path or another string of a user safe for one line of a
// terminal: quoted as Go would, so that control bytes and bytes that are not
// UTF-8 show as escapes.
func Quote(s string) string { return strconv.Quote(s) }

// Common answers --help, -h and --version in the first argument of any command
// of the suite; done is true where it did.
func Common(args []string, usage string, stdout io.Writer) (done bool) {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "-h", "--help":
		io.WriteString(stdout, usage)
	case "--version":
		fmt.Fprintf(stdout, "agent-sandbox %s\n", Version)
	default:
		return false
	}
	return true
}

// Hint is the advice alone.
func (h *Hinted) Hint() string { return h.hint }
