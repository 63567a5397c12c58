package execd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"agent-sandbox/internal/denylist"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// ReaderArg is the first argument with which the daemon runs itself as a list
// reader.
const ReaderArg = "list-reader"

// The daemon's words to a reader, each on a line of its own.
const (
	sayIdentity = "identity" // UID GID GROUP...
	sayHome     = "home"     // PATH: read it as a home list
	sayBase     = "base"     // PATH: read it as the base list
	sayDone     = "done"     // the descriptors of the last report may be closed
)

// readerFiles is how many descriptors a reader may have: a file and a folder a
// line, and some.
const readerFiles = 3*denylist.MaxLines + 1024

// readerFilesNow is for how many the kernel has room before the first launch waits: to
// make room later costs an RCU grace period each time that the number doubles. But the
// iterator over a reader's descriptors passes all places, also empty ones: 4,000 of them
// were a third of what the daemon does for a launch.
const readerFilesNow = 1000

// Reader is the main function of a list reader: a child of the daemon that
// takes a user's identity for good and then reads lists and looks their paths up.
// It has two pipes and nothing else, and it cannot be attached to: it makes itself
// undumpable while it is still root, there is no exec after that, and taking the
// identity sets dumpable to fs.suid_dumpable, 0 unless the administrator chose
// otherwise; it is set again at once, and the BPF program forbids attaching from a
// sandbox in any case.
func Reader(in io.Reader, out io.Writer) error {
	if err := sys.Undumpable(); err != nil {
		return fmt.Errorf("undumpable: %w", err)
	}
	if err := sys.NoNewPrivs(); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	if err := sys.OpenFilesLimit(readerFiles); err != nil {
		return fmt.Errorf("open files: %w", err)
	}
	if err := sys.GrowFiles(readerFilesNow); err != nil {
		return fmt.Errorf("open files: %w", err)
	}
	debug.SetMemoryLimit(32 << 20)
	syscall.Umask(0o077)
	if err := os.Chdir("/"); err != nil {
		return err
	}
	lines := bufio.NewReader(in)
	lists, err := denylist.NewReader()
	if err != nil {
		return err
	}
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch word {
		case sayIdentity:
			err = become(strings.Fields(rest))
		case sayHome, sayBase:
			var name string
			if name, err = record.Unescape(rest); err == nil {
				err = lists.Read(name, word == sayHome).Write(out)
			}
		case sayDone:
			lists.Close()
		default:
			err = fmt.Errorf("unknown word %q", word)
		}
		if err != nil {
			return err
		}
	}
}

// become takes the identity for good.
func become(ids []string) error {
	var n []int
	for _, s := range ids {
		id, err := strconv.ParseUint(s, 10, 32)
		if err != nil {
			return err
		}
		n = append(n, int(id))
	}
	if len(n) < 2 {
		return fmt.Errorf("identity of %d numbers", len(n))
	}
	uid, gid, groups := n[0], n[1], n[2:]
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	return sys.Undumpable()
}
