// Command direct answers one request of Slurm as the chaperon would, without a
// session around it: for tests of the policy alone. The session is the first
// argument, as JSON.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"

	"agent-sandbox/internal/slurm"
)

// A Given is what a test says of the session and the request.
type Given struct {
	slurm.Session
	Cwd string
	Log string // file
}

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var g Given
	if err := json.Unmarshal([]byte(args[0]), &g); err != nil {
		fmt.Fprintln(os.Stderr, "direct:", err)
		return 99
	}
	g.Bin = exec.LookPath
	g.Env = os.Environ()
	r := &slurm.Request{Command: args[1], Args: args[2:], Cwd: g.Cwd}
	if r.Command == "sbatch" {
		if path, ok := slurm.ScriptArg(r.Args); ok {
			from := io.Reader(os.Stdin)
			if path != "" {
				f, err := os.Open(path)
				if err != nil {
					fmt.Fprintln(os.Stderr, "sbatch: error: Unable to open file", path)
					return 1
				}
				defer f.Close()
				from = f
			}
			r.Script, _ = io.ReadAll(from)
			r.HasScript = true
		}
	}
	return slurm.Run(context.Background(), &g.Session, r, os.Stdout, os.Stderr, func(level, format string, args ...any) {
		if f, err := os.OpenFile(g.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
			fmt.Fprintf(f, level+" "+format+"\n", args...)
			f.Close()
		}
	})
}
