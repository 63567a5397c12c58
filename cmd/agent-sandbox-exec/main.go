// agent-sandbox-exec runs a command in the sandbox of the denylist:
// agent-sandbox-exec(1). It asks the daemon to be moved into its user's cgroup,
// makes sure that it is there, and becomes the command.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/quickstart"
)

const usage = `usage: agent-sandbox-exec [--] COMMAND [ARG...]

Runs COMMAND so that neither it nor anything it starts can open the files of the
denylists: /etc/agent-sandbox-exec/denylist and, of the user's own,
~/.config/agent-sandbox-exec/denylist. Everything else stays as it is. If that
cannot be done, COMMAND is not run.

  --help, --version

Exit status: that of COMMAND; 2 if it was not run, 126 if it cannot be executed,
127 if there is no such command.

Example, in a wrapper ~/bin/claude:
  exec agent-sandbox-exec ~/.local/bin/claude "$@"
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, _ io.Reader, stdout, stderr io.Writer) int {
	p := cli.Printer{Name: "agent-sandbox-exec", W: stderr}
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	} else if len(args) > 0 && strings.HasPrefix(args[0], "-") {
		p.Errorf("unknown option: %s", cli.Quote(args[0]))
		p.Hint("agent-sandbox-exec --help shows the usage")
		return cli.Usage
	}
	if len(args) == 0 || args[0] == "" {
		p.Errorf("no command given")
		p.Hint("agent-sandbox-exec --help shows the usage")
		return cli.Usage
	}
	if err := enter(p); err != nil {
		p.Error(err)
		return cli.Usage
	}
	err := become(args)
	p.Error(err)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return cli.NotFound
	}
	return cli.NotExec
}

// become executes the command, looked up as execvp(3) does; it returns only when
// that fails.
func become(args []string) error {
	fail := func(err error) error { return fmt.Errorf("cannot run %s: %w", cli.Quote(args[0]), err) }
	if strings.Contains(args[0], "/") {
		return fail(execute(args[0], args))
	}
	path, ok := os.LookupEnv("PATH")
	if !ok {
		path = "/usr/local/bin:/usr/bin:/bin"
	}
	var result error = syscall.ENOENT
	for dir := range strings.SplitSeq(path, ":") {
		if dir == "" {
			dir = "."
		}
		switch err := execute(dir+"/"+args[0], args); err {
		case syscall.ENOENT, syscall.ENOTDIR:
		case syscall.EACCES:
			result = err // unless a later folder has it
		default:
			return fail(err)
		}
	}
	return fail(result)
}

// execute is execve(2), and for a script without an interpreter line the shell.
func execute(file string, args []string) error {
	runtime.LockOSThread()
	quickstart.Changed().Undo()
	err := syscall.Exec(file, args, os.Environ())
	if err == syscall.ENOEXEC {
		err = syscall.Exec("/bin/sh", append([]string{"sh", file}, args[1:]...), os.Environ())
	}
	return err
}
