// Command mount-guard keeps one session's sandbox from outliving its launcher.
package main

import (
	"errors"
	"io"
	"os"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/keeper"
)

const usage = `usage: mount-guard RECORD

Started by agent-sandbox for the session whose record will be the file RECORD,
with a socket at descriptor 3: ends the sandbox when the launcher is gone.

Example:
  mount-guard /run/user/1000/agent-sandbox/sessions/3fa9c1d2
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) != 1 {
		io.WriteString(stderr, usage)
		return cli.Usage
	}
	p := cli.Printer{Name: "mount-guard", W: stderr}
	ward, err := keeper.Accept()
	if errors.Is(err, io.EOF) {
		return cli.OK
	}
	if err == nil {
		err = ward.Watching()
	}
	if err == nil {
		_, err = ward.Watch()
	}
	if err != nil {
		p.Error(err)
		return cli.Failed
	}
	return cli.OK
}
