package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A FileWatch tells when files are modified (inotify(7)).
type FileWatch struct {
	fd  int
	buf []byte
}

// NewFileWatch returns a watch of no file.
func NewFileWatch() (*FileWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("inotify_init1: %w", err)
	}
	return &FileWatch{fd, make([]byte, 16<<10)}, nil
}

// Add watches a file; the number comes back from Read when it is modified. A
// file that is removed is no longer watched.
func (w *FileWatch) Add(path string) (int, error) {
	n, err := unix.InotifyAddWatch(w.fd, path, unix.IN_MODIFY)
	if err != nil {
		return 0, fmt.Errorf("inotify_add_watch %s: %w", path, err)
	}
	return n, nil
}

// Read waits until files are modified and returns their numbers.
func (w *FileWatch) Read() ([]int, error) {
	n, err := retry(func() (int, error) { return unix.Read(w.fd, w.buf) })
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	var out []int
	le := binary.NativeEndian
	for b := w.buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
		if mask := le.Uint32(b[4:]); mask&unix.IN_MODIFY != 0 {
			out = append(out, int(int32(le.Uint32(b))))
		}
		b = b[min(len(b), unix.SizeofInotifyEvent+int(le.Uint32(b[12:]))):]
	}
	return out, nil
}

// MountTmpfs mounts a tmpfs with the given size and number of inodes; nothing on
// it can be a device or run.
func MountTmpfs(path string, mode uint32, size, inodes int) error {
	data := fmt.Sprintf("mode=%04o,size=%d,nr_inodes=%d", mode, size, inodes)
	if err := unix.Mount("agent-sandbox-exec", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", path, err)
	}
	return nil
}

// Unmount takes the topmost mount at path away, at the latest when its last user
// is gone.
func Unmount(path string) error { return unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) }

// ErrNoOption says that the kernel does not know an option of a file system.
var ErrNoOption = errors.New("unknown option")

// SetOptions gives the file system that is mounted at path these options, as flags, in
// place of those that it has (fspick(2), fsconfig(2)); the mount's own flags stay.
func SetOptions(path string, options []string) error {
	fd, err := unix.Fspick(unix.AT_FDCWD, path, unix.FSPICK_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fspick %s: %w", path, err)
	}
	defer unix.Close(fd)
	for _, o := range options {
		if err := unix.FsconfigSetFlag(fd, o); err == unix.EINVAL {
			return ErrNoOption
		} else if err != nil {
			return fmt.Errorf("option %s of %s: %w", o, path, err)
		}
	}
	if err := unix.FsconfigReconfigure(fd); err != nil {
		return fmt.Errorf("options of %s: %w", path, err)
	}
	return nil
}

// GrantRead lets one more user read a file of root with mode 0600 (acl(5) in the
// form of setxattr(2)).
func GrantRead(path string, uid uint32) error {
	const (
		version               = 2
		userObj, user         = 0x01, 0x02
		groupObj, mask        = 0x04, 0x10
		other                 = 0x20
		read, write           = 4, 2
		noID           uint32 = 0xffffffff
	)
	acl := binary.LittleEndian.AppendUint32(nil, version)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{userObj, read | write, noID}, {user, read, uid}, {groupObj, 0, noID}, {mask, read, noID}, {other, 0, noID}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, e.id)
	}
	if err := unix.Setxattr(path, "system.posix_acl_access", acl, 0); err != nil {
		return fmt.Errorf("access list of %s: %w", path, err)
	}
	return nil
}

// WatchRemoval starts to watch one file (inotify(7)); what comes back becomes
// readable when the file is removed. It fails with ENOENT where it is gone.
func WatchRemoval(path string) (int, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("inotify_init1: %w", err)
	}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_DELETE_SELF|unix.IN_ATTRIB|unix.IN_MOVE_SELF); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// ReadableWithin waits until a descriptor is readable, at most the given time.
func ReadableWithin(fd int, most time.Duration) bool {
	end := time.Now().Add(most)
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		n, err := unix.Poll(p, int(left/time.Millisecond)+1)
		if err != unix.EINTR {
			return err == nil && n > 0
		}
	}
}
