// Package nsjoin enters namespaces before the Go runtime starts, in a C
// constructor: setns(2) and unshare(2) refuse a user namespace to a process that
// has threads. See README.md.
package nsjoin

import "C"

import (
	"os"
	"runtime"
)

// The arguments that make the constructor act, and the descriptors it knows. The
// C file has the same values.
const (
	Join   = "--join"   // Join MNTNS-INODE: enter the mount namespace of descriptor MountNS
	Source = "--source" // Source: make a user and mount namespace, a copy of the caller's

	Socket  = 3 // a packet socket to the process outside; a failure is one packet
	MountNS = 4 // of Join: the mount namespace
	Proc    = 5 // left by the constructor: this process's folder in the host's /proc
)

// Joined is the packet that says that the namespaces were entered.
const Joined = "joined"

// Worker says whether this process was started as a worker.
func Worker() bool {
	return len(os.Args) == 3 && os.Args[1] == Join || len(os.Args) == 2 && os.Args[1] == Source
}

// The main goroutine of a worker stays on the main thread: what Proc shows is
// that thread's, and another may be in another mount namespace (repair.store).
func init() {
	if Worker() {
		runtime.LockOSThread()
	}
}
