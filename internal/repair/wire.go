// Package repair does the mount operations of mount-repair(8).
//
// Two kinds of process, of one binary. The one outside, in the host's
// namespaces, reads the operations, opens the host's objects, sees the processes
// of the session in the host's /proc and writes the results (Run). A worker has
// entered the session's namespaces (internal/nsjoin) and does the mounts (Work).
// They exchange one packet a question and one an answer over a socket pair;
// descriptors travel with them. The worker believes the outside; neither
// believes a path: what a path leads to inside must be the object that the
// outside saw on the host, or nothing is done.
package repair

import (
	"encoding/json"
	"errors"
	"syscall"

	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/sys"
)

// The line format is mountop's.
type (
	Op     = mountop.Op
	Result = mountop.Result
)

const (
	OK          = mountop.OK
	Busy        = mountop.Busy
	Refused     = mountop.Refused
	Unsupported = mountop.Unsupported

	opRO        = mountop.RO
	opRW        = mountop.RW
	opMaskFile  = mountop.MaskFile
	opMaskDir   = mountop.MaskDir
	opData      = mountop.Data
	opDev       = mountop.Dev
	opTmpfs     = mountop.Tmpfs
	opPrivate   = mountop.Private
	opRemountRO = mountop.RemountRO
	opRemountRW = mountop.RemountRW
	opDetach    = mountop.Detach
	opKeep      = mountop.Keep
)

// maxPacket bounds a message: below the default limit of a socket buffer
// (net.core.wmem_default), above any list of host mounts below one path.
const maxPacket = 160 << 10

// A request asks a worker for one step. Paths are []byte since JSON would
// replace bytes that are not UTF-8.
type request struct {
	Do    string       // an operation of mount-repair(8), or a step of the sweep
	Path  []byte       `json:",omitempty"` // inside
	From  []byte       `json:",omitempty"` // host path of the object
	Host  *sys.Object  `json:",omitempty"` // the object at From on the host, nil where there is none
	Below []hostMount  `json:",omitempty"` // mounts of the host below From
	Skip  [][]byte     `json:",omitempty"` // of private: trees to leave
	Mode  string       `json:",omitempty"` // of tmpfs: octal mode of its root; of data: "rw"
	Guard []protection `json:",omitempty"` // of enforce
	// A protection below the path that failed: nothing there becomes writable.
	Without []byte  `json:",omitempty"`
	Inner   []inner `json:",omitempty"` // with a clone from the host: what is to be in it from the start
	Write   bool    `json:",omitempty"` // of holder: open for writing
}

// An inner operation is done on a clone before the clone is seen.
type inner struct {
	Do   string
	Path []byte // below the clone's root
	Host sys.Object
	FD   int    // of data: index of the descriptor with the content
	Mode string // of data
}

// A hostMount is the topmost mount at a point of the host.
type hostMount struct {
	Point        []byte
	Major, Minor uint32
	Root         []byte
}

// An answer is what a worker says to a request.
type answer struct {
	Status string      `json:",omitempty"`
	Text   string      `json:",omitempty"` // reason, for people
	Busy   []busyMount `json:",omitempty"` // mounts that the kernel would not make read-only
	Again  bool        `json:",omitempty"` // of the sweep: something was changed, look once more
	// Protections that this operation made or asks for: the sweep reaches what
	// shows the same object elsewhere.
	Guards  []protection `json:",omitempty"`
	Unknown bool         `json:",omitempty"` // of holder: the mount is not in this namespace
	Held    []int        `json:",omitempty"` // of holder: numbers of operations that the holder escapes
}

// A busyMount is a mount with a writer.
type busyMount struct {
	ID           int
	Point        []byte
	Major, Minor uint32
}

// A protection is an object that may be written (revoked) or seen (masked) no
// longer, in whatever mount shows it.
type protection struct {
	Op           int    // number of the operation
	Do           string // its word: remount-ro, ro, mask-file, mask-dir, data
	Object       sys.Object
	Major, Minor uint32 // of the file system, as mountinfo has it
	Path         []byte // of the object in its file system
	Content      []byte `json:",omitempty"` // name of the content in the store of masks
}

// errTooLarge says that a message holds more than a packet does; nothing was sent.
var errTooLarge = errors.New("too many mounts are concerned at once")

func send(sock int, v any, fds ...int) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > maxPacket || len(fds) > sys.MaxFDs {
		return errTooLarge
	}
	return sys.Send(sock, data, fds...)
}

func closeAll(fds []int) {
	for _, fd := range fds {
		syscall.Close(fd)
	}
}
