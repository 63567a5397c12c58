// agent-sandbox-execd is the root daemon of the denylist: agent-sandbox-execd(8).
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"agent-sandbox/internal/bpf"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execd"
	"agent-sandbox/internal/sys"
)

const usage = `usage: agent-sandbox-execd [--favordynmods] [--map-entries N]
       agent-sandbox-execd --status
       agent-sandbox-execd --detach

The daemon of agent-sandbox-exec. It denies the files of the denylists to what
runs in the sandboxes of agent-sandbox-exec, and moves launches into them.

  --favordynmods   mount cgroup2 with this option: launches wait less; every fork
                   on the machine takes some nanoseconds more (Linux 6.0)
  --map-entries N  room for N listed files in the kernel (default 2097152);
                   counts when the maps are made: at boot or after --detach
  --status         print the sandboxes: uid, cgroup id, files denied, names
                   denied, processes; one line each, tab-separated
  --detach         stop denying: remove program, maps, request folder and empty
                   cgroups; the daemon must not be running
  --help, --version

Example:
  systemctl enable --now agent-sandbox-execd
`

const (
	pinDir     = "/sys/fs/bpf/agent-sandbox-exec"
	runDir     = "/run/agent-sandbox-exec"
	lockFile   = "/run/agent-sandbox-execd.lock"
	baseList   = "/etc/agent-sandbox-exec/denylist"
	defEntries = 1 << 21
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := cli.Printer{Name: "agent-sandbox-execd", W: stderr}
	if cli.Common(args, usage, stdout) {
		return cli.OK
	}
	fail := func(err error) int {
		p.Error(err)
		return cli.Failed
	}
	wrong := func(format string, a ...any) int {
		p.Errorf(format, a...)
		p.Hint("agent-sandbox-execd --help shows the usage")
		return cli.Usage
	}
	entries, favor := uint64(defEntries), false
	for ; len(args) > 0; args = args[1:] {
		switch {
		case args[0] == execd.ReaderArg && len(args) == 1:
			if err := execd.Reader(stdin, stdout); err != nil {
				return fail(fmt.Errorf("list reader: %w", err))
			}
			return cli.OK
		case args[0] == execd.TestArg && len(args) == 2:
			return execd.TestOpen(args[1])
		case args[0] == "--status" && len(args) == 1:
			if err := status(stdout); err != nil {
				return fail(err)
			}
			return cli.OK
		case args[0] == "--detach" && len(args) == 1:
			if err := detach(); err != nil {
				return fail(err)
			}
			return cli.OK
		case args[0] == "--favordynmods":
			favor = true
		case args[0] == "--map-entries" && len(args) >= 2:
			var err error
			if entries, err = strconv.ParseUint(args[1], 10, 27); err != nil || entries < 1 {
				return wrong("--map-entries takes a number from 1 to %d: %s", 1<<27-1, cli.Quote(args[1]))
			}
			args = args[1:]
		default:
			return wrong("unknown argument: %s", cli.Quote(args[0]))
		}
	}
	if err := serve(execd.NewLog(p), uint32(entries), favor); err != nil {
		return fail(err)
	}
	return cli.OK
}

// serve runs the daemon until it is told to stop. What it has put into the
// kernel stays: running sandboxes stay confined.
func serve(log *execd.Log, entries uint32, favor bool) error {
	cgroups, err := preflight()
	if err != nil {
		return err
	}
	sys.NoHugePages() // list readers inherit it
	lock, err := onlyOne()
	if err != nil {
		return err
	}
	defer lock.Close()
	if favor {
		if err := favorMoves(lock); err != nil {
			log.Warnf("launches will take some 10 ms more: %v", err)
		}
	}
	config := execd.Config{Cgroups: cgroups, RunDir: runDir, BaseList: baseList}
	settings, err := execd.Prepare(config)
	if err != nil {
		return err
	}
	kernel, err := bpf.Open(pinDir, entries, settings)
	if errors.Is(err, bpf.ErrLayout) {
		return cli.WithHint(err, "stop the sandboxes, then: agent-sandbox-execd --detach")
	}
	if err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	defer kernel.Close()
	d, err := execd.New(config, settings, kernel, log)
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	failed := make(chan error, 1)
	go func() { failed <- d.Run(func() { notify(log, "READY=1") }) }()
	for {
		select {
		case err := <-failed:
			return err
		case s := <-signals:
			if s == syscall.SIGHUP {
				d.Reload()
				continue
			}
			notify(log, "STOPPING=1")
			return nil
		}
	}
}
