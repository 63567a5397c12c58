package bwrap

import (
	"fmt"
	"io"
	"strings"
	"syscall"

	"agent-sandbox/internal/cli"
)

// A failure is a bwrap that ended before sandbox-init reported.
type failure struct {
	text   string // what bwrap printed
	status syscall.WaitStatus
}

func (f *failure) Error() string { return f.text }

func (s *Session) failure(ws syscall.WaitStatus) error {
	out, _ := io.ReadAll(io.NewSectionReader(s.stderr, 0, 1<<16))
	return &failure{strings.TrimSpace(string(out)), ws}
}

// transient says whether the host's mount table may have changed meanwhile.
func (f *failure) transient() bool { return false }

func (f *failure) explain(bwrap string) error {
	return cli.WithHint(fmt.Errorf("cannot set up the sandbox: %s", f.text), "agent-sandbox check says what is missing")
}

func notStarted(bwrap string, err error) error {
	return fmt.Errorf("cannot start %s: %w", cli.Quote(bwrap), err)
}
