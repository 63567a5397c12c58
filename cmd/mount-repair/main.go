// Command mount-repair enters a session's namespaces and does mount operations
// there. See mount-repair(8).
package main

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/nsjoin"
	"agent-sandbox/internal/repair"
	"agent-sandbox/internal/sys"
)

const usage = `usage: mount-repair [--timeout SECONDS] PID START-TIME MNTNS-INODE

Enter the user and mount namespace of a session of agent-sandbox and do the
mount operations given on standard input, one a line; write one result a line.

  PID START-TIME   the sandbox's init process: pid, and field 22 of its stat file
  MNTNS-INODE      inode of its mount namespace
  --timeout N      give up after N seconds (30)

Operations, with fields after PATH separated by a tab:
  ro PATH [SOURCE]          read-only mount of the host's object
  rw PATH [SOURCE]          the same, writable
  dev PATH [SOURCE]         the same, a device
  mask-file PATH [SOURCE]   an empty file over it
  mask-dir PATH [SOURCE]    an empty folder over it
  data PATH FILE [rw]       a file with the content of FILE over it
  tmpfs PATH [mode=OCTAL]   an empty writable folder over it
  private PATH [EXCEPT...]  no mount of the host arrives there any more
  remount-ro PATH           take write access back, wherever it shows
  remount-rw PATH [SOURCE]  give it again, in place
  detach PATH               remount-ro, then take the mount away
  keep PATH [KIND ...]      what follows leaves the mount at PATH as it is

Example:
  echo 'rw /home/u/data' | mount-repair 4250 881236 4026532178
`

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := cli.Printer{Name: "mount-repair", W: stderr}
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	if nsjoin.Worker() {
		if repair.Work() != nil {
			return cli.Failed
		}
		return cli.OK
	}
	target, timeout, err := parse(args)
	if err != nil {
		p.Error(cli.WithHint(err, "mount-repair --help tells the arguments"))
		return cli.Usage
	}
	dieWithParent()
	ops, errs, err := mountop.ReadOps(stdin)
	if err != nil {
		p.Errorf("cannot read the operations: %w", err)
		return cli.Usage
	}
	all, err := repair.Run(target, ops, errs, timeout, stdout)
	switch {
	case errors.Is(err, repair.ErrCannotEnter):
		p.Error(err)
		return cli.Partly
	case err != nil:
		p.Error(err)
		return cli.Failed
	case !all:
		return cli.Failed
	}
	return cli.OK
}

func parse(args []string) (t repair.Target, timeout time.Duration, err error) {
	timeout = 30 * time.Second
	if len(args) >= 2 && args[0] == "--timeout" {
		n, err := strconv.ParseUint(args[1], 10, 16)
		if err != nil || n == 0 {
			return t, 0, errors.New("--timeout wants seconds, 1 to 65535: " + cli.Quote(args[1]))
		}
		timeout, args = time.Duration(n)*time.Second, args[2:]
	}
	if len(args) != 3 {
		return t, 0, errors.New("want PID START-TIME MNTNS-INODE")
	}
	pid, err := strconv.ParseUint(args[0], 10, 31)
	if err != nil || pid == 0 {
		return t, 0, errors.New("not a pid: " + cli.Quote(args[0]))
	}
	t.PID = int(pid)
	if t.Start, err = strconv.ParseUint(args[1], 10, 64); err != nil {
		return t, 0, errors.New("not a start time: " + cli.Quote(args[1]))
	}
	if t.MountNS, err = strconv.ParseUint(args[2], 10, 64); err != nil {
		return t, 0, errors.New("not an inode: " + cli.Quote(args[2]))
	}
	return t, timeout, nil
}

// dieWithParent ends this process when the one that started it ends: a reload
// that was killed goes no further. The kernel's parent-death signal would come
// already when the thread that started it ends.
func dieWithParent() {
	parent, err := sys.PidfdOpen(os.Getppid())
	if err != nil {
		return
	}
	go func() {
		sys.WaitReadable(int(parent.Fd()))
		os.Exit(cli.Failed)
	}()
}
