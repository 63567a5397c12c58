// Package sys is the one importer of golang.org/x/sys/unix and of unsafe: system
// calls that the standard library does not have, as small functions on
// descriptors. No policy.
package sys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// O_PATH is the flag of open(2) that the standard library lacks.
const O_PATH = unix.O_PATH

// Stat is what fstat(2) says of an object, as far as the suite asks.
type Stat struct {
	Mode    uint32 // type and permissions
	UID     uint32
	Dev     uint64
	Ino     uint64
	Nlink   uint64
	Size    int64
	MtimeNs int64
}

// IsDir, IsRegular and IsLink tell the type.
func (s Stat) IsDir() bool     { return s.Mode&unix.S_IFMT == unix.S_IFDIR }
func (s Stat) IsRegular() bool { return s.Mode&unix.S_IFMT == unix.S_IFREG }
func (s Stat) IsLink() bool    { return s.Mode&unix.S_IFMT == unix.S_IFLNK }

// IsDevice says whether it is a character or block device.
func (s Stat) IsDevice() bool {
	t := s.Mode & unix.S_IFMT
	return t == unix.S_IFCHR || t == unix.S_IFBLK
}

// IsSocket says whether it is a socket in the file system.
func (s Stat) IsSocket() bool { return s.Mode&unix.S_IFMT == unix.S_IFSOCK }

// Perm is the permission bits, with set-id and sticky.
func (s Stat) Perm() uint32 { return s.Mode & 0o7777 }

func fromStat(st *unix.Stat_t) Stat {
	return Stat{st.Mode, st.Uid, uint64(st.Dev), st.Ino, uint64(st.Nlink), st.Size, st.Mtim.Nano()}
}

// Fstat is fstat(2).
func Fstat(f *os.File) (Stat, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Stat{}, &fs.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return fromStat(&st), nil
}

// Lstat is lstat(2).
func Lstat(path string) (Stat, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(unix.AT_FDCWD, path, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return Stat{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	return fromStat(&st), nil
}

// StatAt is fstatat(2) of a name in a folder, without following a link.
func StatAt(dir *os.File, name string) (Stat, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT); err != nil {
		return Stat{}, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return fromStat(&st), nil
}

// OpenAt is openat(2) with O_CLOEXEC and O_NOFOLLOW.
func OpenAt(dir *os.File, name string, flags int, perm uint32) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(dir.Fd()), name, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, perm)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir.Name() + "/" + name, Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+"/"+name), nil
}

// OpenFD is open(2) with O_CLOEXEC. What os.OpenFile opens is offered to Go's poller: five
// more system calls a file, and where it can be waited for (a cgroup's can) a thread
// that wakes. Where a launch waits for it, that counts.
func OpenFD(path string, flags int, perm uint32) (int, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, perm) })
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// ReadFD reads a descriptor to its end, at most limit bytes; more is ErrTooLarge.
func ReadFD(fd, limit int) ([]byte, error) {
	data := make([]byte, 4096)
	n := 0
	for {
		got, err := retry(func() (int, error) { return unix.Read(fd, data[n:]) })
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		n += got
		if n > limit {
			return nil, ErrTooLarge
		}
		if got == 0 {
			return data[:n], nil
		}
		if n == len(data) {
			data = append(data, make([]byte, n)...)
		}
	}
}

// ReadFile is os.ReadFile by OpenFD, for the small files of /proc and cgroups.
func ReadFile(path string) ([]byte, error) {
	fd, err := OpenFD(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	data, err := ReadFD(fd, 16<<20)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// WriteFD writes all of data.
func WriteFD(fd int, data []byte) error {
	for len(data) > 0 {
		n, err := retry(func() (int, error) { return unix.Write(fd, data) })
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		data = data[n:]
	}
	return nil
}

// OpenNoFollow opens an absolute path without following a link in any
// component, and without mounting what an automounter would (openat2(2),
// RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS; Linux 5.6).
func OpenNoFollow(path string, flags int) (*os.File, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := retry(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// MkdirAt is mkdirat(2).
func MkdirAt(dir *os.File, name string, perm uint32) error {
	if err := unix.Mkdirat(int(dir.Fd()), name, perm); err != nil {
		return &fs.PathError{Op: "mkdir", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// MakePrivateDir makes a folder of mode 0700, whatever the umask.
func MakePrivateDir(dir *os.File, name string) error {
	if err := MkdirAt(dir, name, 0o700); err != nil {
		return err
	}
	if err := unix.Fchmodat(int(dir.Fd()), name, 0o700, 0); err != nil {
		return &fs.PathError{Op: "chmod", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// UnlinkAt is unlinkat(2); folder says whether to remove a folder.
func UnlinkAt(dir *os.File, name string, folder bool) error {
	flags := 0
	if folder {
		flags = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil {
		return &fs.PathError{Op: "remove", Path: dir.Name() + "/" + name, Err: err}
	}
	return nil
}

// RenameAt renames within one folder.
func RenameAt(dir *os.File, from, to string) error {
	if err := unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to); err != nil {
		return &fs.PathError{Op: "rename", Path: dir.Name() + "/" + from, Err: err}
	}
	return nil
}

// Lock takes an exclusive flock(2) on f; with wait false it fails with
// ErrLocked where another process holds it.
func Lock(f *os.File, wait bool) error {
	how := unix.LOCK_EX
	if !wait {
		how |= unix.LOCK_NB
	}
	_, err := retry(func() (int, error) { return 0, unix.Flock(int(f.Fd()), how) })
	if err == unix.EWOULDBLOCK {
		return ErrLocked
	}
	if err != nil {
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return nil
}

// Unlock gives the lock of Lock back.
func Unlock(f *os.File) { unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// ErrLocked says that another process holds the lock.
var ErrLocked = errors.New("locked by another process")

// Writable says whether the caller may make entries in a folder (faccessat2(2)
// with the effective ids); a read-only file system is not writable.
func Writable(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

// OpenPrivateDir opens the folder base/a/b/... one component at a time, without
// following a link below base, and with create makes what is missing with mode
// 0700. Every folder below base must belong to uid and be closed to others.
func OpenPrivateDir(base string, uid int, create bool, names ...string) (*os.File, error) {
	dir, err := os.OpenFile(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		next, err := openPrivate(dir, name, uid, create)
		dir.Close()
		if err != nil {
			return nil, err
		}
		dir = next
	}
	return dir, nil
}

func openPrivate(dir *os.File, name string, uid int, create bool) (*os.File, error) {
	if create {
		if err := MakePrivateDir(dir, name); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	f, err := OpenAt(dir, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := CheckPrivate(f, uid); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// CheckPrivate fails unless the object belongs to uid and no other user has any
// permission on it.
func CheckPrivate(f *os.File, uid int) error {
	st, err := Fstat(f)
	if err != nil {
		return err
	}
	switch {
	case int(st.UID) != uid:
		return fmt.Errorf("%s belongs to uid %d, not to %d", f.Name(), st.UID, uid)
	case st.Perm()&0o077 != 0:
		return fmt.Errorf("%s has mode %04o, want it closed to others (chmod go= it)", f.Name(), st.Perm())
	}
	return nil
}

// ErrTooLarge says that a file is larger than the reader takes.
var ErrTooLarge = errors.New("file is too large")

// ReadLimited reads f to its end, at most limit bytes; more is ErrTooLarge.
func ReadLimited(f io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		return nil, ErrTooLarge
	}
	return data, err
}

// CloexecFrom marks every descriptor from first on as close-on-exec
// (close_range(2), Linux 5.11 for the flag), so that none reaches a command.
func CloexecFrom(first uint) error {
	return unix.CloseRange(first, ^uint(0)&0xffffffff, unix.CLOSE_RANGE_CLOEXEC)
}

// OpenRead opens a file for reading without following a link in its last
// component and without waiting for the other end of a FIFO.
func OpenRead(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// SetMtime sets a file's modification time, to the nanosecond.
func SetMtime(f *os.File, t time.Time) error {
	ts := unix.NsecToTimespec(t.UnixNano())
	if err := unix.UtimesNanoAt(int(f.Fd()), "", []unix.Timespec{ts, ts}, unix.AT_EMPTY_PATH); err != nil {
		return &fs.PathError{Op: "set time", Path: f.Name(), Err: err}
	}
	return nil
}
