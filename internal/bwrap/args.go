// Package bwrap runs a mount plan in bubblewrap: its arguments, its start, the
// handshake with the supervisor inside (package sandboxinit), job control, and
// what its failures mean.
package bwrap

import (
	"os"
	"strconv"
	"strings"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/relay"
	"agent-sandbox/internal/sandboxinit"
)

// InitPath is where the launcher's own binary lies in a session, and the name it
// is executed by: main calls sandboxinit.Main where os.Args[0] is this.
const InitPath = sandboxinit.Path

// Spec is what a session is started from.
type Spec struct {
	Bwrap      string            // path of bwrap; see Find
	Init       string            // host path of the agent-sandbox binary
	Mounts     []mountplan.Mount // in order
	DataDir    string            // host folder <id>.d: "empty" for masks, "<N>" for data
	Env        []string          // the whole environment, already scrubbed
	Chdir      string            // working directory inside
	Command    []string          // at least the name
	PrivateIPC bool              // own SysV IPC and POSIX message queues
	IsolateNet bool              // own network namespace with nothing but loopback
	Seccomp    []byte            // filter program, an array of struct sock_filter; empty for none
	NProc      string            // RLIMIT_NPROC of the command, empty for the caller's
	Hint       string            // what to do where there is no such command inside

	// Before is called right before each try to start bwrap, with the inode of a
	// socket that all of the sandbox's processes hold until the command runs: for
	// keeper.Process.Expect. Nil for nothing.
	Before func(socket uint64) error

	// Meanwhile is called when pid 1 exists, while bwrap makes the mounts, with all of
	// the Session known but Supervisor; an error ends the start. Nil for nothing.
	Meanwhile func(*Session) error

	// Requests is the host folder with the request FIFO of the Slurm proxy, empty
	// where none runs.
	Requests string

	ProcReadOnly []string // entries of /proc that are shown read-only; see RootProc
}

// RootProc are the entries of /proc that hold settings of the whole machine. Their
// files belong to root, and a process of that uid writes them without any
// capability, in a user namespace too: /proc/sys/kernel/core_pattern is run by the
// kernel, outside. bwrap covers bus, irq and sysrq-trigger, and means to cover sys,
// but asks access(2), which the kernel answers for the folder and not its files.
func RootProc() []string {
	var out []string
	for _, name := range []string{"sys", "fs", "acpi", "scsi", "asound", "driver", "mtrr"} {
		if _, err := os.Lstat("/proc/" + name); err == nil {
			out = append(out, "/proc/"+name)
		}
	}
	return out
}

// Descriptors of bwrap beyond standard input, output and error.
const (
	fdArgs = 3 + iota
	fdSeccomp
	fdInfo
	fdInit                                     // first of those that go on to sandbox-init
	fdFiles = fdInit + sandboxinit.Descriptors // first of the content of plain files, one each
)

// maxArgs is the number of arguments that bwrap takes, those of --args included
// (MAX_ARGS in bubblewrap.c).
const maxArgs = 9000

// Args returns the arguments of bwrap after its name, for --dry-run. A launch
// hands the options over by --args, and the command to sandbox-init, since bwrap
// counts the command's arguments against its limit too.
func Args(s Spec) []string {
	return append(append(options(s), "--", InitPath), s.Command...)
}

// The cgroup namespace stays the host's: agent-sandbox-exec, run inside, finds its
// own group by the path in /proc/self/cgroup. So does the UTS namespace.
func options(s Spec) []string {
	a := []string{"--unshare-user", "--unshare-pid"}
	if s.PrivateIPC {
		a = append(a, "--unshare-ipc")
	}
	if s.IsolateNet {
		a = append(a, "--unshare-net")
	}
	// Without --cap-drop a caller who is root keeps all capabilities inside.
	a = append(a, "--die-with-parent", "--cap-drop", "ALL", "--info-fd", strconv.Itoa(fdInfo))
	if len(s.Seccomp) > 0 {
		a = append(a, "--seccomp", strconv.Itoa(fdSeccomp))
	}
	file := fdFiles
	var late []string // tmpfs that become read-only when all below them is mounted
	for _, m := range s.Mounts {
		if m.Absent {
			continue
		}
		switch m.Kind {
		case mountplan.RO:
			a = append(a, "--ro-bind", m.From(), m.Path)
		case mountplan.RW:
			a = append(a, "--bind", m.From(), m.Path)
		case mountplan.Dev:
			a = append(a, "--dev-bind", m.From(), m.Path)
		case mountplan.Tmpfs:
			options, readOnly := strings.CutSuffix(m.Options, ",ro")
			if mode, ok := strings.CutPrefix(options, "mode="); ok {
				a = append(a, "--perms", mode)
			}
			a = append(a, "--tmpfs", m.Path)
			if readOnly {
				late = append(late, m.Path)
			}
		case mountplan.MaskFile:
			a = append(a, "--ro-bind", s.DataDir+"/empty", m.Path)
		case mountplan.MaskDir:
			a = append(a, "--perms", "0555", "--tmpfs", m.Path, "--remount-ro", m.Path)
		case mountplan.Data:
			switch m.Mode {
			case mountplan.DataRO:
				a = append(a, "--ro-bind", dataFile(s, m), m.Path)
			case mountplan.DataRW:
				a = append(a, "--bind", dataFile(s, m), m.Path)
			case mountplan.DataCopy:
				a = append(a, "--perms", "0600", "--file", strconv.Itoa(file), m.Path)
				file++
			}
		case mountplan.Symlink:
			a = append(a, "--symlink", m.Target, m.Path)
		case mountplan.Proc:
			a = append(a, "--proc", m.Path)
			for _, p := range s.ProcReadOnly {
				a = append(a, "--ro-bind", p, p)
			}
		case mountplan.DevFS:
			a = append(a, "--dev", m.Path)
		}
	}
	a = append(a, "--ro-bind", s.Init, InitPath)
	if s.Requests != "" {
		a = append(a, "--ro-bind", s.Requests, relay.Dir)
	}
	// The root itself is a tmpfs of bwrap's, made only to hold mount points.
	for _, p := range append(late, "/") {
		a = append(a, "--remount-ro", p)
	}
	if s.Chdir != "" {
		a = append(a, "--chdir", s.Chdir)
	}
	return a
}

func dataFile(s Spec, m mountplan.Mount) string { return s.DataDir + "/" + strconv.Itoa(m.N) }

// copies are the mounts whose content bwrap reads from a descriptor, in order.
func copies(mounts []mountplan.Mount) []mountplan.Mount {
	var c []mountplan.Mount
	for _, m := range mounts {
		if m.Kind == mountplan.Data && m.Mode == mountplan.DataCopy {
			c = append(c, m)
		}
	}
	return c
}

// CommandLine is what --dry-run prints: bwrap with its arguments, quoted for a
// shell, and the redirections that its descriptors need.
func CommandLine(s Spec) string {
	line := ShellLine(append([]string{s.Bwrap}, Args(s)...))
	for i, m := range copies(s.Mounts) {
		line += " " + strconv.Itoa(fdFiles+i) + "<" + ShellQuote(dataFile(s, m))
	}
	return line
}

// ShellLine quotes a command with its arguments as one line for sh.
func ShellLine(args []string) string {
	quoted := make([]string, len(args))
	for i, a := range args {
		quoted[i] = ShellQuote(a)
	}
	return strings.Join(quoted, " ")
}

// ShellQuote quotes s as one word for sh, any bytes but NUL.
func ShellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+=:,@%", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
