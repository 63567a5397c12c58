package sys

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// IsFIFO says whether it is a FIFO.
func (s Stat) IsFIFO() bool { return s.Mode&unix.S_IFMT == unix.S_IFIFO }

// MkfifoAt makes a FIFO in a folder (mknodat(2)), whose permissions the umask
// does not change.
func MkfifoAt(dir *os.File, name string, perm uint32) error {
	err := unix.Mkfifoat(int(dir.Fd()), name, perm)
	if err == nil {
		err = unix.Fchmodat(int(dir.Fd()), name, perm, 0)
	}
	if err != nil {
		return &os.PathError{Op: "mkfifo", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// OpenBeneath opens path below dir with O_PATH. No link is followed in any
// component, no other file system entered, and nothing above dir reached
// (openat2(2), RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_XDEV; Linux 5.6).
func OpenBeneath(dir *os.File, path string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	fd, err := retryRace(func() (int, error) { return unix.Openat2(int(dir.Fd()), path, &how) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ReopenNonblock opens the very object that an O_PATH descriptor refers to, without
// waiting for the other end of a FIFO. The file can be waited for and has deadlines.
func ReopenNonblock(f *os.File, flags int) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), flags|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// HungUp says whether the other end of a pipe is gone (poll(2), POLLERR and POLLHUP).
func HungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, _ := retry(func() (int, error) { return unix.Poll(p, 0) })
	return n > 0 && p[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}
