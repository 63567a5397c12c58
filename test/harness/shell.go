package harness

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// A Shell is a bash, usually in a sandbox, that a test has run commands one by
// one. It ends with the test.
type Shell struct {
	t   testing.TB
	Cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// NewShell starts c, which has to run bash on its standard input, and waits until
// the bash answers.
func NewShell(t testing.TB, c *exec.Cmd) *Shell {
	t.Helper()
	s := &Shell{t: t, Cmd: c}
	c.Stderr = os.Stderr
	s.in, _ = c.StdinPipe()
	out, _ := c.StdoutPipe()
	s.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.in.Close()
		c.Process.Kill()
		c.Wait()
	})
	if r := s.Sh("echo up"); r != "up" {
		t.Fatalf("%v says %q", c.Args, r)
	}
	return s
}

// Sh runs a command in the shell and returns what it printed, errors included,
// without the newline at the end.
func (s *Shell) Sh(command string) string {
	s.t.Helper()
	if _, err := fmt.Fprintf(s.in, "{ %s\n} 2>&1; printf '\\n\\001\\n'\n", command); err != nil {
		s.t.Fatal(err)
	}
	var out strings.Builder
	for {
		line, err := s.out.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%q: the shell ended: %v; %s", command, err, out.String())
		}
		if line == "\x01\n" {
			return strings.TrimSuffix(strings.TrimSuffix(out.String(), "\n"), "\n")
		}
		out.WriteString(line)
	}
}

// Exit ends the shell as a user would, and waits for the program it runs in.
func (s *Shell) Exit() error {
	s.in.Close()
	return s.Cmd.Wait()
}
