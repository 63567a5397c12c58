package sys

import (
	"errors"
	"os"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Inotify watches folders for entries that come, go or are renamed.
type Inotify struct{ fd int }

// ErrNoWatches says that the user has no inotify watch or instance left
// (fs.inotify.max_user_watches, max_user_instances).
var ErrNoWatches = errors.New("no inotify watch left")

// NewInotify opens an inotify(7) instance that never blocks.
func NewInotify() (*Inotify, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == unix.EMFILE || err == unix.ENFILE || err == unix.ENOMEM {
		return nil, ErrNoWatches
	}
	return &Inotify{fd}, err
}

// FD is the descriptor to poll.
func (i *Inotify) FD() int { return i.fd }

// Watch watches the folder that fd is, O_PATH is enough, and returns its watch;
// the same one where it is watched already. With entries it tells of entries that
// come, go or are renamed; it always tells when the folder itself is moved or gone.
func (i *Inotify) Watch(fd int, entries bool) (wd int, err error) {
	mask := uint32(unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR)
	if entries {
		mask |= unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_CREATE | unix.IN_DELETE
	}
	// There is no form that takes a descriptor; the magic link leads to what it
	// holds, whatever its name is by now.
	wd, err = unix.InotifyAddWatch(i.fd, "/proc/self/fd/"+strconv.Itoa(fd), mask)
	if err == unix.ENOSPC || err == unix.ENOMEM {
		return -1, ErrNoWatches
	}
	return wd, err
}

// Close gives all watches back.
func (i *Inotify) Close() { unix.Close(i.fd) }

// Remove ends a watch.
func (i *Inotify) Remove(wd int) { unix.InotifyRmWatch(i.fd, uint32(wd)) }

// An InotifyEvent is a change in a watched folder.
type InotifyEvent struct {
	WD   int
	Name string // of the entry, empty where the folder itself was moved or removed
	Lost bool   // events were lost: anything may have changed
}

// Read takes the events that are there.
func (i *Inotify) Read() ([]InotifyEvent, error) {
	var out []InotifyEvent
	buf := make([]byte, 16<<10)
	for {
		n, err := unix.Read(i.fd, buf)
		if err == unix.EAGAIN {
			return out, nil
		}
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return out, os.NewSyscallError("read inotify", err)
		}
		for b := buf[:n]; len(b) >= unix.SizeofInotifyEvent; {
			e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
			name := b[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+e.Len]
			b = b[unix.SizeofInotifyEvent+e.Len:]
			if e.Mask&unix.IN_IGNORED != 0 {
				continue // the end of a watch that was removed, or whose folder is gone
			}
			out = append(out, InotifyEvent{int(e.Wd), unix.ByteSliceToString(name), e.Mask&unix.IN_Q_OVERFLOW != 0})
		}
	}
}

// WaitChange waits until one of the descriptors in read can be read, or changed
// is a mountinfo whose mount table changed (-1: none), at most timeout (below 0:
// for ever).
// It says which of read, and whether changed.
func WaitChange(read []int, changed int, timeout time.Duration) (ready []bool, change bool, err error) {
	p := make([]unix.PollFd, 0, len(read)+1)
	for _, fd := range read {
		p = append(p, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	p = append(p, unix.PollFd{Fd: int32(changed), Events: unix.POLLPRI})
	ms := -1
	if timeout >= 0 {
		ms = int((timeout + time.Millisecond - 1) / time.Millisecond)
	}
	if _, err := unix.Poll(p, ms); err != nil && err != unix.EINTR {
		return nil, false, os.NewSyscallError("poll", err)
	}
	ready = make([]bool, len(read))
	for i := range read {
		ready[i] = p[i].Revents != 0
	}
	return ready, p[len(read)].Revents != 0, nil
}

// OpenInRoot opens path below root with O_PATH as if root were /, following no
// symbolic link.
func OpenInRoot(root int, path string) (int, error) {
	return retryRace(func() (int, error) {
		return unix.Openat2(root, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
	})
}
