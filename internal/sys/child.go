package sys

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MemFile is an anonymous file in memory with the given content
// (memfd_create(2)), positioned at its start.
func MemFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.WriteAt(content, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenPath opens a path for fstat and the like only (O_PATH): it neither waits
// for the other end of a FIFO nor wakes a device, whatever lies there.
func OpenPath(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_PATH|unix.O_CLOEXEC, 0)
}

// Reopen opens what an O_PATH descriptor refers to for reading.
func Reopen(f *os.File) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// OpenPathAt opens a name in a folder as OpenPath does, without following a
// link; a link itself is opened.
func OpenPathAt(dir *os.File, name string) (*os.File, error) {
	return OpenAt(dir, name, unix.O_PATH, 0)
}

// Subreaper makes this process the one that orphaned descendants are handed to,
// or not (PR_SET_CHILD_SUBREAPER), and returns what it was before.
func Subreaper(on bool) (before bool) {
	var was int32
	unix.RawSyscall(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&was)), 0)
	arg := uintptr(0)
	if on {
		arg = 1
	}
	unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, arg, 0, 0, 0)
	return was != 0
}

// AwaitExit waits until a child has ended and leaves it to be reaped, so that
// its pid and its process group still name it (waitid(2), WNOWAIT).
func AwaitExit(pid int) {
	for unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// Children are the pids whose parent is this process
// (/proc/PID/task/TID/children, CONFIG_PROC_CHILDREN).
func Children() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/self/task/*/children")
	for _, f := range files {
		data, _ := os.ReadFile(f)
		for _, w := range bytes.Fields(data) {
			if pid, err := strconv.Atoi(string(w)); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// Reap collects a child that has ended; it does not wait, and says whether the
// child is gone.
func Reap(pid int) bool {
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == unix.ECHILD || got == pid
}

// Session is the session of a process (getsid(2)), -1 where it is gone.
func Session(pid int) int {
	sid, err := unix.Getsid(pid)
	if err != nil {
		return -1
	}
	return sid
}

// LinkAt gives a file of a folder a second name there; it fails where the name
// is taken (linkat(2)).
func LinkAt(dir *os.File, from, to string) error {
	if err := unix.Linkat(int(dir.Fd()), from, int(dir.Fd()), to, 0); err != nil {
		return &os.PathError{Op: "link", Path: dir.Name() + "/" + to, Err: err}
	}
	return nil
}
