package sys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A Created is one entry made in a watched folder (fanotify(7)).
type Created struct {
	Name     string
	PID      int      // who made it, in the pid namespace of the watcher
	Pidfd    *os.File // of that process; nil where it was dead before the event was read
	Overflow bool     // events were lost; the other fields are empty
	Gone     bool     // the folder itself was removed or moved; the other fields are empty
}

// A CreateWatch watches one folder.
type CreateWatch struct {
	f   *os.File
	buf []byte
}

// WatchCreate starts a watch of what is created in the folder. The kernel tells
// who did it with a pidfd (FAN_REPORT_PIDFD, Linux 5.15), whatever pid namespace
// he is in. It needs CAP_SYS_ADMIN.
func WatchCreate(dir string) (*CreateWatch, error) {
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_NOTIF|unix.FAN_CLOEXEC|unix.FAN_REPORT_PIDFD|unix.FAN_REPORT_DFID_NAME, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("fanotify_init: %w", err)
	}
	mask := uint64(unix.FAN_CREATE | unix.FAN_DELETE_SELF | unix.FAN_MOVE_SELF | unix.FAN_ONDIR)
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, mask, unix.AT_FDCWD, dir); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("fanotify_mark %s: %w", dir, err)
	}
	return &CreateWatch{os.NewFile(uintptr(fd), "fanotify"), make([]byte, 32<<10)}, nil
}

// Close ends the watch; a Read that waits returns only with the next event.
func (w *CreateWatch) Close() { w.f.Close() }

// Read waits for events.
func (w *CreateWatch) Read() ([]Created, error) {
	n, err := retry(func() (int, error) { return unix.Read(int(w.f.Fd()), w.buf) })
	if err != nil {
		return nil, fmt.Errorf("fanotify: %w", err)
	}
	return parseCreated(w.buf[:n])
}

const fanMetadataLen = 24 // struct fanotify_event_metadata

var errFanotify = errors.New("fanotify: event is not of the documented form")

func parseCreated(b []byte) ([]Created, error) {
	le := binary.NativeEndian
	var out []Created
	for len(b) > 0 {
		if len(b) < fanMetadataLen {
			return out, errFanotify
		}
		size, mask := int(le.Uint32(b)), le.Uint64(b[8:])
		if size < fanMetadataLen || size > len(b) || b[4] != unix.FANOTIFY_METADATA_VERSION {
			return out, errFanotify
		}
		c := Created{
			PID:      int(int32(le.Uint32(b[20:]))),
			Overflow: mask&unix.FAN_Q_OVERFLOW != 0,
			Gone:     mask&(unix.FAN_DELETE_SELF|unix.FAN_MOVE_SELF) != 0,
		}
		for info := b[int(le.Uint16(b[6:])):size]; len(info) >= 4; {
			n := int(le.Uint16(info[2:]))
			if n < 4 || n > len(info) {
				return out, errFanotify
			}
			switch info[0] {
			case unix.FAN_EVENT_INFO_TYPE_PIDFD:
				if fd := int32(le.Uint32(info[4:])); fd >= 0 {
					c.Pidfd = os.NewFile(uintptr(fd), "pidfd")
				}
			case unix.FAN_EVENT_INFO_TYPE_DFID_NAME:
				c.Name = handleName(info[:n])
			}
			info = info[n:]
		}
		out = append(out, c)
		b = b[size:]
	}
	return out, nil
}

// handleName is the name behind header, file system id and struct file_handle.
func handleName(info []byte) string {
	const handle = 4 + 8
	if len(info) < handle+8 {
		return ""
	}
	start := handle + 8 + int(binary.NativeEndian.Uint32(info[handle:]))
	if start > len(info) {
		return ""
	}
	return unix.ByteSliceToString(info[start:])
}

// PidfdDead says whether the process of a pidfd has ended (poll(2) finds it
// readable then).
func PidfdDead(pidfd *os.File) bool {
	p := []unix.PollFd{{Fd: int32(pidfd.Fd()), Events: unix.POLLIN}}
	n, err := retry(func() (int, error) { return unix.Poll(p, 0) })
	return err != nil || n > 0
}
