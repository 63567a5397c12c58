package sys

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetNoNewPrivs makes the calling thread and what it executes unable to gain
// privileges by execve(2): PR_SET_NO_NEW_PRIVS, prctl(2).
func SetNoNewPrivs() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_NO_NEW_PRIVS): %w", err)
	}
	return nil
}

// SetSeccomp installs a classic BPF program, an array of struct sock_filter, on
// the calling thread only: SECCOMP_SET_MODE_FILTER, seccomp(2). The thread has
// no_new_privs.
func SetSeccomp(prog []byte) error {
	n := len(prog) / unix.SizeofSockFilter
	if n == 0 || n > unix.BPF_MAXINSNS || len(prog)%unix.SizeofSockFilter != 0 {
		return fmt.Errorf("seccomp program of %d bytes: %w", len(prog), unix.EINVAL)
	}
	fprog := unix.SockFprog{Len: uint16(n), Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0]))}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	if e != 0 {
		return fmt.Errorf("seccomp(SECCOMP_SET_MODE_FILTER): %w", e)
	}
	return nil
}

// LandlockABI returns the version of Landlock that the kernel has, landlock(7).
// ENOSYS: built without it; EOPNOTSUPP: switched off at boot.
func LandlockABI() (int, error) {
	v, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if e != 0 {
		return 0, e
	}
	return int(v), nil
}

// LandlockRuleset makes a ruleset that handles the given rights and returns its
// descriptor: landlock_create_ruleset(2). The kernel refuses bits it does not
// know with EINVAL, and fields it does not know with E2BIG unless they are 0.
func LandlockRuleset(fs, net, scoped uint64) (int, error) {
	attr := unix.LandlockRulesetAttr{Handled_access_fs: fs, Handled_access_net: net, Scoped: scoped}
	fd, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if e != 0 {
		return -1, fmt.Errorf("landlock_create_ruleset: %w", e)
	}
	return int(fd), nil
}

// LandlockAllow grants rights on the object that the descriptor path refers to,
// and on what lies below it: landlock_add_rule(2).
func LandlockAllow(ruleset, path int, rights uint64) error {
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(path)}
	_, _, e := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if e != 0 {
		return fmt.Errorf("landlock_add_rule: %w", e)
	}
	return nil
}

// LandlockRestrict puts the calling thread under the ruleset, for good:
// landlock_restrict_self(2). The thread has no_new_privs.
func LandlockRestrict(ruleset int) error {
	if _, _, e := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(ruleset), 0, 0); e != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", e)
	}
	return nil
}

// Close closes a descriptor that no os.File owns: close(2). An error has no
// remedy, the descriptor is gone all the same.
func Close(fd int) { unix.Close(fd) }

// OpenFor says whether f is open for reading and for writing (F_GETFL, fcntl(2)).
func OpenFor(f *os.File) (read, write bool) {
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_PATH != 0 {
		return false, false
	}
	mode := flags & unix.O_ACCMODE
	return mode != unix.O_WRONLY, mode != unix.O_RDONLY
}

// DropCapabilities takes every capability from the calling thread, for good: the
// bounding and ambient sets too (capabilities(7)). With no_new_privs set no
// execve gives one back, also to a caller who is root.
func DropCapabilities() error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_CAP_AMBIENT_CLEAR_ALL): %w", err)
	}
	for c := uintptr(0); ; c++ {
		// EINVAL: past the last capability. EPERM: the caller has none that it
		// could lose by execve, no_new_privs sees to the rest.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			break
		}
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capset(&hdr, &data[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// KeyctlRefused says whether keyctl(2), which asks for nothing here, is refused
// with EPERM, as a filter of package seccomp does; the kernel has another answer.
func KeyctlRefused() bool {
	_, _, e := unix.Syscall(unix.SYS_KEYCTL, ^uintptr(0), 0, 0)
	return e == unix.EPERM
}

// Descends says whether process pid is ancestor or one of its descendants.
func Descends(pid, ancestor int) bool {
	for pid > 1 {
		if pid == ancestor {
			return true
		}
		st, err := ReadProcStat(pid)
		if err != nil {
			return false
		}
		pid = st.PPID
	}
	return false
}

// KillDescendants kills every child of the calling process, a subreaper, and the
// orphans that come to it thereby, until there is none.
func KillDescendants() {
	for {
		pids := Children()
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		how := 0
		if len(pids) == 0 {
			how = unix.WNOHANG // one may have come while they were looked for
		}
		if _, err := unix.Wait4(-1, nil, how, nil); err != nil && err != unix.EINTR {
			return
		}
	}
}

// ReadOnlyMount says whether the mount that shows path is read-only: statfs(2),
// ST_RDONLY.
func ReadOnlyMount(path string) (bool, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return st.Flags&unix.ST_RDONLY != 0, nil
}

// HasCapabilities says whether executing the file gives capabilities: capabilities(7).
func HasCapabilities(f *os.File) bool {
	n, _ := unix.Fgetxattr(int(f.Fd()), "security.capability", nil)
	return n > 0
}

// MayWrite says whether the caller may write to the object, a socket among them:
// access(2).
func MayWrite(path string) bool { return unix.Access(path, unix.W_OK) == nil }
