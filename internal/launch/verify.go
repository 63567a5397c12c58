package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// errChanged says that the sandbox that was made is not the one that was planned,
// since the host's files changed in between.
var errChanged = errors.New("the host's files changed while the sandbox was made")

// verify compares the mounts of a sandbox, before its command runs, with the plan.
// bwrap is told paths; an agent in another session may write in a folder above one
// of them and put a link in its place between plan and mount. So each bind has to
// show the very object that the plan looked at, at a path without links, and each
// protection has to be mounted where it belongs.
func verify(pid int, mounts []mountplan.Mount) error {
	dir := "/proc/" + strconv.Itoa(pid)
	root, err := sys.OpenLink(dir + "/root")
	if err != nil {
		return fmt.Errorf("cannot look into the sandbox: %w", err)
	}
	defer syscall.Close(root)
	data, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot read the sandbox's mounts: %w", err)
	}
	table, err := mountinfo.Parse(data)
	if err != nil {
		return err
	}
	top := make(map[string]mountinfo.Mount, len(table))
	for _, m := range table {
		top[m.Point] = m
	}
	last := map[string]int{} // of two lines at one path the later one shows
	for i, m := range mounts {
		if !m.Absent {
			last[m.Path] = i
		}
	}
	for i, m := range mounts {
		if last[m.Path] != i || m.Absent || m.Kind == mountplan.Symlink || m.Mode == mountplan.DataCopy {
			continue
		}
		t, ok := top[m.Path]
		switch {
		case !ok:
			return fmt.Errorf("%w: there is no mount at %s", errChanged, cli.Quote(m.Path))
		case m.Protection() && !t.ReadOnly() && !t.SuperReadOnly():
			return fmt.Errorf("%w: %s is writable", errChanged, cli.Quote(m.Path))
		case m.Ino == 0:
			continue
		}
		fd, err := sys.OpenInRoot(root, m.Path)
		if err != nil {
			return fmt.Errorf("%w: %s: %w", errChanged, cli.Quote(m.Path), err)
		}
		f := os.NewFile(uintptr(fd), m.Path)
		st, err := sys.Fstat(f)
		f.Close()
		if err != nil {
			return err
		}
		if st.Dev != m.Dev || st.Ino != m.Ino {
			return fmt.Errorf("%w: %s is another object", errChanged, cli.Quote(m.Path))
		}
	}
	return nil
}
