package sys

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Object identifies what a path or descriptor leads to: two are the same file
// when device and inode are equal.
type Object struct {
	Major, Minor uint32 // device as stat(2) shows it; differs from mountinfo's on btrfs
	Inode        uint64
	Mode         uint32 // type and permissions, as st_mode
	UID          uint32
	Size         uint64
	MountID      uint64 // first field of mountinfo
	MountRoot    bool   // it is the root of that mount
}

// Same says whether both are one file.
func (o Object) Same(p Object) bool {
	return o.Inode == p.Inode && o.Major == p.Major && o.Minor == p.Minor
}

// IsDir and IsRegular read the type from Mode.
func (o Object) IsDir() bool     { return o.Mode&unix.S_IFMT == unix.S_IFDIR }
func (o Object) IsRegular() bool { return o.Mode&unix.S_IFMT == unix.S_IFREG }

// IsDevice says whether it is a character or block device.
func (o Object) IsDevice() bool {
	return o.Mode&unix.S_IFMT == unix.S_IFCHR || o.Mode&unix.S_IFMT == unix.S_IFBLK
}

// AtCwd is AT_FDCWD: a relative path starts at the working directory.
const AtCwd = unix.AT_FDCWD

// OpenPathBelow opens path below dir with O_PATH, following no symbolic link in any
// component and no magic link of /proc (openat2(2)). O_PATH neither blocks on a
// FIFO or device nor asks a FUSE server to open, and triggers no automount in
// the last component. Without O_NOFOLLOW: with it a link in the last component
// would be opened itself, and not refused.
func OpenPathBelow(dir int, path string) (int, error) {
	return retryRace(func() (int, error) {
		return unix.Openat2(dir, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}

// OpenLink opens with O_PATH what a magic link of /proc leads to, as
// /proc/PID/cwd or /proc/PID/fd/N.
func OpenLink(path string) (int, error) {
	return retryRace(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
}

// OpenFile opens path below dir without following symbolic links.
func OpenFile(dir int, path string, flags int, mode uint32) (int, error) {
	return retryRace(func() (int, error) {
		return unix.Openat2(dir, path, &unix.OpenHow{
			Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC),
			Mode:    uint64(mode),
			Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}

// ObjectOf says what fd is. It asks no server (AT_STATX_DONT_SYNC), so it does not
// hang on a dead NFS or FUSE.
func ObjectOf(fd int) (Object, error) { return ObjectAt(fd, "") }

// ObjectAt is ObjectOf of name in dir; a symbolic link or automount is not followed.
func ObjectAt(dir int, name string) (Object, error) {
	var st unix.Statx_t
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	if err := unix.Statx(dir, name, flags, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st); err != nil {
		return Object{}, err
	}
	return Object{
		Major: st.Dev_major, Minor: st.Dev_minor, Inode: st.Ino, Mode: uint32(st.Mode), UID: st.Uid, Size: st.Size,
		MountID: st.Mnt_id, MountRoot: st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0,
	}, nil
}

// ReadOnly says whether writing through fd's mount is refused, by the mount or
// by its file system (statfs(2), ST_RDONLY).
func ReadOnly(fd int) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return false, err
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}

// CloneTree makes a detached copy of the mounts at fd and below (open_tree(2)
// with OPEN_TREE_CLONE and AT_RECURSIVE).
func CloneTree(fd int) (int, error) {
	return unix.OpenTree(fd, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
}

// CloneAt makes a detached copy of the one mount at name in dir, without what is
// mounted below it.
func CloneAt(dir int, name string) (int, error) {
	return unix.OpenTree(dir, name, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
}

// MoveMount puts the mount whose root is from on top of what to is: both
// descriptors, so no name is looked up (move_mount(2)).
func MoveMount(from, to int) error {
	return unix.MoveMount(from, "", to, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// Attributes of a mount, for SetAttr.
const (
	AttrReadOnly = unix.MOUNT_ATTR_RDONLY
	AttrNoSuid   = unix.MOUNT_ATTR_NOSUID
	AttrNoDev    = unix.MOUNT_ATTR_NODEV
	AttrNoExec   = unix.MOUNT_ATTR_NOEXEC
)

// SetAttr sets and clears attributes of the mount whose root is fd
// (mount_setattr(2)); with recursive of every mount below it too, all or none.
func SetAttr(fd int, set, clear uint64, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return unix.MountSetattr(fd, "", flags, &unix.MountAttr{Attr_set: set, Attr_clr: clear})
}

// MakePrivate takes the mount whose root is fd, with recursive also those below
// it, out of mount propagation.
func MakePrivate(fd int, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return unix.MountSetattr(fd, "", flags, &unix.MountAttr{Propagation: unix.MS_PRIVATE})
}

// HaveMountSetattr says whether the kernel has mount_setattr(2): Linux 5.12.
func HaveMountSetattr() bool {
	// Size 0 is refused with EINVAL before anything is looked at.
	_, _, e := unix.Syscall6(unix.SYS_MOUNT_SETATTR, ^uintptr(0), uintptr(unsafe.Pointer(&[]byte{0}[0])), 0, 0, 0, 0)
	return e != unix.ENOSYS
}

// NewTmpfs makes a detached tmpfs with the given mode of its root, owned by the
// caller, and the given attributes of its mount.
func NewTmpfs(mode string, attr uint64) (int, error) {
	fs, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fs)
	if err := unix.FsconfigSetString(fs, "mode", mode); err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, err
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, int(attr))
}

// DetachAt takes the topmost mount at name in dir away (umount2(2) with
// MNT_DETACH). There is no form of umount2 that takes a descriptor, so it
// changes the working directory of the process to dir.
func DetachAt(dir int, name string) error {
	if err := unix.Fchdir(dir); err != nil {
		return err
	}
	return unix.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// PrivateMountNamespace gives the calling thread a mount namespace of its own in
// which nothing propagates. The caller has locked the goroutine to its thread
// and never unlocks it.
func PrivateMountNamespace() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
}

// MakeDir makes a folder below dir with exactly this mode, whatever the umask.
func MakeDir(dir int, name string, mode uint32) error {
	if err := unix.Mkdirat(dir, name, mode); err != nil {
		return err
	}
	return unix.Fchmodat(dir, name, mode, 0)
}

func retryRace(f func() (int, error)) (int, error) {
	// openat2 answers EAGAIN when a rename elsewhere raced with its walk.
	for range 32 {
		fd, err := f()
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
	return f()
}
