package harness

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"agent-sandbox/internal/sys"
)

// A Term is a program on a pseudo-terminal of its own, as the leader of its
// session: what a terminal window does.
type Term struct {
	t      testing.TB
	Cmd    *exec.Cmd
	master *os.File
	done   chan struct{}

	mu   sync.Mutex
	out  []byte // all it has printed
	next int    // what Expect has not yet passed
}

// NewTerm starts c on a terminal of 24 by 80. It is hung up when the test ends.
func NewTerm(t testing.TB, c *exec.Cmd) *Term {
	t.Helper()
	master, tty, err := sys.OpenPTY()
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	sys.SetWindowSize(master, 24, 80)
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cred := c.SysProcAttr.Credential; cred != nil {
		tty.Chown(int(cred.Uid), -1)
	}
	c.SysProcAttr.Setsid, c.SysProcAttr.Setctty = true, true
	c.Stdin, c.Stdout, c.Stderr = tty, tty, tty
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	term := &Term{t: t, Cmd: c, master: master, done: make(chan struct{})}
	go func() {
		defer close(term.done)
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.out = append(term.out, buf[:n]...)
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { term.HangUp(); c.Process.Kill(); c.Wait() })
	return term
}

// Type sends keys.
func (term *Term) Type(keys string) {
	term.t.Helper()
	if _, err := term.master.WriteString(keys); err != nil {
		term.t.Fatalf("type %q: %v", keys, err)
	}
}

// Expect waits until text has been printed after what the last Expect found, and
// returns what came before it. It must come within 20 seconds.
func (term *Term) Expect(text string) string {
	term.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		term.mu.Lock()
		rest := string(term.out[term.next:])
		if i := strings.Index(rest, text); i >= 0 {
			term.next += i + len(text)
			term.mu.Unlock()
			return rest[:i]
		}
		term.mu.Unlock()
		if time.Now().After(end) {
			term.t.Fatalf("never printed: %q; after the last match: %q", text, rest)
		}
	}
}

// Output is all that was printed so far.
func (term *Term) Output() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return string(term.out)
}

// Resize changes the size of the window.
func (term *Term) Resize(rows, cols uint16) {
	term.t.Helper()
	if err := sys.SetWindowSize(term.master, rows, cols); err != nil {
		term.t.Fatal(err)
	}
}

// Foreground is the terminal's foreground process group.
func (term *Term) Foreground() int {
	term.t.Helper()
	pgrp, err := sys.ForegroundGroupOf(term.master)
	if err != nil {
		term.t.Fatal(err)
	}
	return pgrp
}

// HangUp closes the terminal as a closed window does.
func (term *Term) HangUp() {
	term.master.Close()
	<-term.done
}

// Wait waits, at most a minute, for the program's end and returns its status,
// 128+N where signal N killed it.
func (term *Term) Wait() int {
	term.t.Helper()
	timer := time.AfterFunc(time.Minute, func() { term.Cmd.Process.Kill() })
	err := term.Cmd.Wait()
	if !timer.Stop() {
		term.t.Fatalf("hangs; printed: %q", term.Output())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		term.t.Fatal(err)
	}
	ws := term.Cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
