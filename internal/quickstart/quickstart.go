// Package quickstart makes the start of a Go program cheaper where people wait for
// it. The Makefile has such programs begin at entry (the linker's -E), before the Go
// runtime, because both settings have to be there before the runtime is:
//
//   - No transparent huge pages. Where the kernel gives them to everybody (Debian's
//     does) the first touch of the runtime's heap has the kernel clear several of
//     2 MiB.
//   - A timer slack of 2 ms. The runtime's monitor thread wakes about every 70 µs
//     while anything runs, on the processor that the work is on. With the slack it
//     wakes every 2 ms; more would delay the runtime's own hand-overs.
//
// What the program executes inherits both: its helpers profit, what is the user's (a
// command, the bash of a configuration, the commands of Slurm) gets back what the
// program was started with. Built without the
// flag a program works the same, only slower.
package quickstart

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// entry is where the program begins. It saves what it changes.
func entry()

var (
	slack        int64 // the timer slack in ns before entry changed it, 0 where it did not
	hugePagesOff bool  // entry did it
)

// prctl(2).
const (
	setTimerSlack = 29
	setThpDisable = 41
)

// A Change is what entry changed; the zero Change is nothing.
type Change struct {
	Slack        int64 // ns
	HugePagesOff bool
}

// Changed is what entry of this process changed.
func Changed() Change { return Change{slack, hugePagesOff} }

// Undo gives the calling thread, and what it starts, what was before the change. The
// caller keeps the thread (runtime.LockOSThread).
func (c Change) Undo() {
	if c.Slack > 0 {
		prctl(setTimerSlack, uintptr(c.Slack))
	}
	if c.HugePagesOff {
		prctl(setThpDisable, 0)
	}
}

// Without undoes the change while f runs, for a child that f starts.
func (c Change) Without(f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.Undo()
	f()
	if c.Slack > 0 {
		prctl(setTimerSlack, ourSlack)
	}
	if c.HugePagesOff {
		prctl(setThpDisable, 1)
	}
}

// ourSlack is what entry sets, in ns.
const ourSlack = 2_000_000

func prctl(op, arg uintptr) { syscall.RawSyscall6(syscall.SYS_PRCTL, op, arg, 0, 0, 0, 0) }

// String is the change as Parse reads it, for another process.
func (c Change) String() string {
	return strconv.FormatInt(c.Slack, 10) + " " + strconv.FormatBool(c.HugePagesOff)
}

// Parse reads what String wrote.
func Parse(s string) (Change, error) {
	slack, pages, _ := strings.Cut(s, " ")
	n, err := strconv.ParseInt(slack, 10, 64)
	off, err2 := strconv.ParseBool(pages)
	if err := errors.Join(err, err2); err != nil {
		return Change{}, err
	}
	return Change{n, off}, nil
}
