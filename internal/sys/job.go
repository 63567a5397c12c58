package sys

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memfd makes an anonymous file with the content and its offset at 0
// (memfd_create(2), close-on-exec). Unlike a pipe it takes any amount without a
// reader, and no reader has to be waited for.
func Memfd(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := Fill(f, content); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Fill writes the content of a file that is empty, and leaves its offset at the start.
func Fill(f *os.File, content []byte) error {
	for off := 0; off < len(content); {
		n, err := unix.Pwrite(int(f.Fd()), content[off:], int64(off))
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("write %s: %w", f.Name(), err)
		}
		off += max(n, 0)
	}
	return nil
}

// SigSet is a set of signals: bit N-1 is signal N.
type SigSet uint64

// Set is the set of one signal.
func Set(sig syscall.Signal) SigSet { return 1 << (sig - 1) }

// Has says whether sig is in the set.
func (s SigSet) Has(sig syscall.Signal) bool { return s&Set(sig) != 0 }

// AllSignals is every signal but those that cannot be blocked, those of faults,
// and those that a Go program cannot do without.
func AllSignals() SigSet {
	s := ^SigSet(0)
	for _, sig := range []syscall.Signal{
		unix.SIGBUS, unix.SIGCHLD, unix.SIGFPE, unix.SIGILL, unix.SIGKILL, unix.SIGPROF,
		unix.SIGSEGV, unix.SIGSTKFLT, unix.SIGSTOP, unix.SIGTRAP, unix.SIGURG,
	} {
		s &^= Set(sig)
	}
	return s
}

// StopSignals are those by which a terminal stops a job.
const StopSignals = SigSet(1<<(unix.SIGTSTP-1) | 1<<(unix.SIGTTIN-1) | 1<<(unix.SIGTTOU-1))

// SetSigMask makes set the signal mask of the calling thread, which must be
// locked, and returns the old one: pthread_sigmask(3). What the thread executes
// inherits it.
func SetSigMask(set SigSet) SigSet {
	var old unix.Sigset_t
	unix.PthreadSigmask(unix.SIG_SETMASK, toSigset(set), &old)
	return SigSet(old.Val[0])
}

func toSigset(set SigSet) *unix.Sigset_t {
	var s unix.Sigset_t
	s.Val[0] = uint64(set)
	return &s
}

// kernelSigaction is struct kernel_sigaction, which begins with the handler.
type kernelSigaction [4]uintptr

const sigIgn = 1

func sigaction(sig syscall.Signal, act, old *kernelSigaction) bool {
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(act)), uintptr(unsafe.Pointer(old)), 8, 0, 0)
	return e == 0
}

// SigIgnored says whether the process ignores sig: sigaction(2).
func SigIgnored(sig syscall.Signal) bool {
	var old kernelSigaction
	return sigaction(sig, nil, &old) && old[0] == sigIgn
}

// SurviveStops lets the Go runtime's handler take the stop signals of a terminal,
// which it drops: the process is not stopped by them, and what it executes has the
// default again, as execve(2) resets what is caught. One that is ignored stays so.
func SurviveStops() {
	var handler kernelSigaction
	if !sigaction(unix.SIGURG, nil, &handler) || handler[0] <= sigIgn {
		return
	}
	for _, sig := range []syscall.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		if !SigIgnored(sig) {
			sigaction(sig, &handler, nil)
		}
	}
}

// SignalFD makes a descriptor that gives the signals of set that are pending
// for the process: signalfd(2), close-on-exec, non-blocking. They must be blocked
// in every thread.
func SignalFD(set SigSet) (int, error) {
	fd, err := unix.Signalfd(-1, toSigset(set), unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("signalfd: %w", err)
	}
	return fd, nil
}

// TakeSignals reads all that is pending at a descriptor of SignalFD.
func TakeSignals(fd int) SigSet {
	var got SigSet
	var buf [unsafe.Sizeof(unix.SignalfdSiginfo{})]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || n != len(buf) {
			return got
		}
		got |= Set(syscall.Signal((*unix.SignalfdSiginfo)(unsafe.Pointer(&buf[0])).Signo))
	}
}

// SocketPair makes two connected sockets that keep message boundaries
// (AF_UNIX, SOCK_SEQPACKET, close-on-exec).
func SocketPair() (a, b int, err error) {
	fd, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, -1, fmt.Errorf("socketpair: %w", err)
	}
	return fd[0], fd[1], nil
}

// PassCred makes the kernel attach the sender's pid to what Recv takes from the
// socket (SO_PASSCRED, unix(7)).
func PassCred(sock int) error {
	return unix.SetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
}

// Shutdown ends a socket in both directions: a Recv on it returns.
func Shutdown(sock int) { unix.Shutdown(sock, unix.SHUT_RDWR) }

// Inode is the number of the object behind a descriptor, as in the link
// socket:[N] of /proc/PID/fd.
func Inode(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("fstat: %w", err)
	}
	return st.Ino, nil
}

// SocketHolders are the processes that have the socket with an inode open, as far
// as the caller may look, but not the caller.
func SocketHolders(inode uint64) []int {
	var pids []int
	want := fmt.Sprintf("socket:[%d]", inode)
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + p.Name() + "/fd/"
		fds, _ := os.ReadDir(dir)
		for _, fd := range fds {
			if link, err := os.Readlink(dir + fd.Name()); err == nil && link == want {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}

// Send sends one message with descriptors; it never raises SIGPIPE.
func Send(sock int, data []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, err := retry(func() (int, error) { return 0, unix.Sendmsg(sock, data, oob, nil, unix.MSG_NOSIGNAL) })
	return err
}

// Message is what Recv takes: data, descriptors (close-on-exec, the receiver's to
// close) and, after PassCred, the sender's pid as the receiver's pid namespace
// sees it. Empty data is the end: the other side is gone.
type Message struct {
	Data []byte
	FDs  []int
	PID  int
}

// Recv waits for one message of at most 64 bytes. A longer one is cut.
func Recv(sock int) (Message, error) {
	var m Message
	buf, oob := make([]byte, 64), make([]byte, 256)
	var n, oobn int
	_, err := retry(func() (_ int, err error) {
		n, oobn, _, _, err = unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		return 0, err
	})
	if err != nil {
		return m, err
	}
	m.Data = buf[:n]
	controls, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return m, err
	}
	for _, c := range controls {
		if cred, err := unix.ParseUnixCredentials(&c); err == nil {
			m.PID = int(cred.Pid)
		}
		if fds, err := unix.ParseUnixRights(&c); err == nil {
			m.FDs = append(m.FDs, fds...)
		}
	}
	return m, nil
}

// WaitReadable waits, without a limit of time, until one of the descriptors can be
// read or is at its end, and says which: poll(2). A pidfd can be read when its
// process has ended.
func WaitReadable(fds ...int) ([]bool, error) {
	p := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		p[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	if _, err := retry(func() (int, error) { return unix.Poll(p, -1) }); err != nil {
		return nil, fmt.Errorf("poll: %w", err)
	}
	ready := make([]bool, len(fds))
	for i := range p {
		ready[i] = p[i].Revents != 0
	}
	return ready, nil
}

// IsTerminal says whether fd is a terminal.
func IsTerminal(fd int) bool {
	_, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	return err == nil
}

// ForegroundGroup returns the foreground process group of the terminal:
// tcgetpgrp(3). A group of a pid namespace that the caller does not see is 0.
func ForegroundGroup(tty int) (int, error) { return unix.IoctlGetInt(tty, unix.TIOCGPGRP) }

// SetForegroundGroup makes pgrp the foreground process group: tcsetpgrp(3). The
// caller blocks or ignores SIGTTOU where it may be in the background.
func SetForegroundGroup(tty, pgrp int) error {
	return unix.IoctlSetPointerInt(tty, unix.TIOCSPGRP, pgrp)
}

// Dup2 makes to refer to what from does and stay open across an exec: dup3(2).
func Dup2(from, to int) error {
	_, err := retry(func() (int, error) { return 0, unix.Dup3(from, to, 0) })
	return err
}

// RlimitNProc is RLIMIT_NPROC, getrlimit(2): processes of the user, counted in
// the user namespace of the sandbox.
const RlimitNProc = unix.RLIMIT_NPROC

// PidfdSend is pidfd_send_signal(2) for a descriptor that no os.File owns.
func PidfdSend(pidfd int, sig syscall.Signal) error {
	return unix.PidfdSendSignal(pidfd, sig, nil, 0)
}

// Readable says whether fd can be read, or is at its end, right now.
func Readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, _ := retry(func() (int, error) { return unix.Poll(p, 0) })
	return n > 0
}

// StopSelf stops the process until it is sent SIGCONT. The signal goes to the
// calling thread, so that it has taken effect before the call returns.
func StopSelf() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP)
}

// BecomeSubreaper makes the calling process the parent of all descendants that
// lose theirs: PR_SET_CHILD_SUBREAPER, prctl(2).
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("prctl(PR_SET_CHILD_SUBREAPER): %w", err)
	}
	return nil
}

// ReapZombies reaps the children that have ended: orphans that came to this process,
// a subreaper.
func ReapZombies() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err != syscall.EINTR && (err != nil || pid <= 0) {
			return
		}
	}
}

// WaitChild waits for the end of a child: wait4(2). ok is false where pid is no child.
func WaitChild(pid int) (ws syscall.WaitStatus, ok bool) {
	_, err := retry(func() (int, error) { return syscall.Wait4(pid, &ws, 0, nil) })
	return ws, err == nil
}

// AwaitChild waits until wait4(2) has something to tell of the child, or with -1 of any:
// its end, a stop, that it goes on. It stays to be told.
func AwaitChild(pid int) error {
	kind, id := unix.P_PID, pid
	if pid == -1 {
		kind, id = unix.P_ALL, 0
	}
	_, err := retry(func() (int, error) {
		return 0, unix.Waitid(kind, id, nil, unix.WEXITED|unix.WSTOPPED|unix.WCONTINUED|unix.WNOWAIT, nil)
	})
	if err != nil {
		return fmt.Errorf("waitid: %w", err)
	}
	return nil
}

// ChildStopped says whether a child has stopped, and wait4(2) has not told of it yet.
func ChildStopped(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WSTOPPED|unix.WNOWAIT|unix.WNOHANG, nil)
	return err == nil && info.Signo != 0
}
