// Package slurm decides what a sandboxed client may ask of Slurm, and asks it
// outside on the client's behalf: an allow-list of flags per command, jobs that
// run in the same sandbox on their node, and only jobs that are in scope.
package slurm

import (
	"context"
	"fmt"
	"io"
)

// A Request is what a client inside the sandbox sent. All of it is hostile.
type Request struct {
	Command   string   // the name it was called by: sbatch, squeue …
	Args      []string // without the name
	Cwd       string   // its working directory, as it says
	Script    []byte   // what it read from standard input or the script file
	HasScript bool     // there is a Script, be it empty
}

// A Session is what the chaperon knows of the session it serves. All of it comes
// from outside the sandbox.
type Session struct {
	ID       string   // of the session record
	Project  string   // physical
	Writable []string // folders and files that the session may write, beside the project
	Readonly []string // what lies below the project or a writable path and may not be written
	Scope    string   // SLURM_SCOPE
	Launcher string   // path of agent-sandbox on the host
	User     string
	UID      int
	Env      []string // the session's environment as the sandbox has it
	// Bin finds a Slurm command of the host.
	Bin func(command string) (path string, err error)
}

// A Log takes a line of the session's log. Script text never goes there.
type Log = func(level, format string, args ...any)

// Run checks a request, runs the real command outside where it may, and writes
// what the client may see. It returns the command's exit status.
func Run(ctx context.Context, s *Session, r *Request, stdout, stderr io.Writer, log func(level, format string, args ...any)) (exit int) {
	fmt.Fprintf(stderr, "%s: error: not allowed in the sandbox\n", r.Command)
	return 1
}
