package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// LookupAt opens name in the folder dir with O_PATH, without following a link in
// it. Nothing but the look-up happens: no device is touched, no FIFO waited for.
// With folder true it must be a folder; only then is it mounted where an
// automounter would (open(2), O_PATH|O_DIRECTORY).
func LookupAt(dir int, name string, folder bool) (int, error) {
	flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	if folder {
		flags |= unix.O_DIRECTORY
	}
	return retry(func() (int, error) { return unix.Openat(dir, name, flags, 0) })
}

// LookupFile is LookupAt and statx(2) of what was opened, in two system calls
// that do not tell the Go scheduler: for a process that has nothing else to do.
// mountRoot says whether something is mounted right there (Linux 5.8).
func LookupFile(dir int, name string) (fd int, st Stat, mountRoot bool, err error) {
	path, err := unix.BytePtrFromString(name)
	if err != nil {
		return -1, st, false, err
	}
	var r uintptr
	for e := unix.EINTR; e == unix.EINTR; {
		r, _, e = unix.RawSyscall6(unix.SYS_OPENAT, uintptr(dir), uintptr(unsafe.Pointer(path)), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0, 0, 0)
		if e != 0 && e != unix.EINTR {
			return -1, st, false, e
		}
	}
	var x unix.Statx_t
	var empty byte
	_, _, e := unix.RawSyscall6(unix.SYS_STATX, r, uintptr(unsafe.Pointer(&empty)), unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS, uintptr(unsafe.Pointer(&x)), 0)
	if e != 0 {
		unix.Close(int(r))
		return -1, st, false, e
	}
	st = Stat{Mode: uint32(x.Mode), UID: x.Uid, Dev: unix.Mkdev(x.Dev_major, x.Dev_minor), Ino: x.Ino, Nlink: uint64(x.Nlink), Size: int64(x.Size)}
	return int(r), st, x.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// NoHugePages turns transparent huge pages off for this process and those it
// starts (prctl(2), PR_SET_THP_DISABLE): a small Go program touches several of
// them, and the kernel clears 2 MiB each time.
func NoHugePages() { unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) }

// OpenRoot opens / with O_PATH.
func OpenRoot() (int, error) {
	return unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// FstatFD is fstat(2) of a bare descriptor.
func FstatFD(fd int) (Stat, error) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return fromStat(&st), err
}

// Overlay says whether an open object lies on overlayfs (statfs(2)).
func Overlay(fd int) (bool, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(fd, &st)
	return int64(st.Type) == unix.OVERLAYFS_SUPER_MAGIC, err
}

// Cgroup2 says whether path lies on a cgroup2 file system.
func Cgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == unix.CGROUP2_SUPER_MAGIC
}

// BPFFS says whether path lies on a BPF file system.
func BPFFS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && int64(st.Type) == unix.BPF_FS_MAGIC
}

// Tmpfs says whether an open object lies on tmpfs.
func Tmpfs(fd int) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(fd, &st) == nil && int64(st.Type) == unix.TMPFS_MAGIC
}

// ReadlinkFD is the target of a symbolic link opened with O_PATH.
func ReadlinkFD(fd int) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(fd, "", buf)
	return string(buf[:max(n, 0)]), err
}

// ChmodFD is fchmod(2).
func ChmodFD(fd int, perm uint32) error { return unix.Fchmod(fd, perm) }

// CloseFD is close(2).
func CloseFD(fd int) { unix.RawSyscall(unix.SYS_CLOSE, uintptr(fd), 0, 0) }

// Undumpable makes the process one that no process without CAP_SYS_PTRACE can
// attach to, whoever it runs as (prctl(2), PR_SET_DUMPABLE). An exec and a
// change of identity undo it, the latter to fs.suid_dumpable.
func Undumpable() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// NoNewPrivs is prctl(2), PR_SET_NO_NEW_PRIVS.
func NoNewPrivs() error { return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }

// OpenFilesLimit sets the soft and hard limit of open descriptors.
func OpenFilesLimit(n uint64) error {
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
}

// GrowFiles has the kernel make room for n descriptors of this process now, as it
// otherwise does while the descriptors are opened (expand_fdtable in fs/file.c).
func GrowFiles(n int) error {
	fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, n)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
