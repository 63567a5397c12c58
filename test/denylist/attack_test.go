//go:build vm

package denylist

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attack is what the test binary does as an attacker. It prints what it could
// read; its exit status is 0 where the system calls went through.
func attack(name string, args []string) int {
	f, ok := attacks[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no attack", name)
		return 3
	}
	if err := f(args); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		return 1
	}
	return 0
}

var attacks = map[string]func(args []string) error{
	"hold":          hold,
	"o-path":        oPath,
	"by-handle":     byHandle,
	"io-uring":      ioUring,
	"ptrace":        ptraceAttach,
	"proc-mem":      procMem,
	"vm-readv":      vmReadv,
	"getfd":         getfd,
	"send":          send,
	"receive":       receive,
	"flood":         flood,
	"delete":        deleteRequests,
	"junk":          junk,
	"lease":         lease,
	"requests":      manyRequests,
	"seize-readers": seizeReaders,
	"write-only":    writeOnly,
	"bench-open":    benchOpen,
	"bench-launch":  benchLaunch,
}

// hold opens a file, says where the content lies in its memory, and waits.
func hold(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	fmt.Printf("%d %d %d %d\n", os.Getpid(), f.Fd(), uintptr(unsafe.Pointer(&data[0])), len(data))
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(data)
	return nil
}

// show prints the content behind a descriptor.
func show(fd int) error {
	buf := make([]byte, 4096)
	n, err := unix.Pread(fd, buf, 0)
	os.Stdout.Write(buf[:max(n, 0)])
	return err
}

func oPath(args []string) error {
	fd, err := unix.Open(args[0], unix.O_PATH, 0)
	if err != nil {
		return err
	}
	for _, how := range []string{"/proc/self/fd/%d", "/proc/thread-self/fd/%d", "/dev/fd/%d"} {
		g, err := unix.Open(fmt.Sprintf(how, fd), unix.O_RDONLY, 0)
		if err == nil {
			show(g)
			return nil
		}
	}
	return unix.EPERM
}

func byHandle(args []string) error {
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, args[0], 0)
	if err != nil {
		return err
	}
	dir, err := unix.Open("/", unix.O_RDONLY, 0)
	if len(args) > 1 {
		dir, err = unix.Open(args[1], unix.O_RDONLY, 0)
	}
	if err != nil {
		return err
	}
	fd, err := unix.OpenByHandleAt(dir, h, unix.O_RDONLY)
	if err != nil {
		return err
	}
	return show(fd)
}

// ioUring opens through a ring: IORING_OP_OPENAT, IORING_OP_OPENAT2, and OPENAT
// into a table of registered files with a read from there.
func ioUring(args []string) error {
	const (
		opOpenat, opOpenat2, opRead = 18, 28, 22
		fixedFile                   = 1
	)
	path := append([]byte(args[0]), 0)
	how := [3]uint64{}
	for _, op := range []byte{opOpenat, opOpenat2} {
		for _, direct := range []bool{false, true} {
			r, err := newRing()
			if err != nil {
				return err
			}
			if direct {
				table := [1]int32{-1}
				if _, _, e := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), 2, uintptr(unsafe.Pointer(&table)), 1, 0, 0); e != 0 {
					return e
				}
			}
			sqe := r.sqe()
			sqe[0] = op
			binary.NativeEndian.PutUint32(sqe[4:], uint32(0xffffff9c)) // AT_FDCWD
			binary.NativeEndian.PutUint64(sqe[16:], uint64(uintptr(unsafe.Pointer(&path[0]))))
			if op == opOpenat2 {
				binary.NativeEndian.PutUint64(sqe[8:], uint64(uintptr(unsafe.Pointer(&how[0]))))
				binary.NativeEndian.PutUint32(sqe[24:], 24)
			}
			if direct {
				binary.NativeEndian.PutUint32(sqe[44:], 1) // file_index, from 1
			}
			res, err := r.submit()
			if err != nil {
				return err
			}
			if res < 0 {
				fmt.Fprintln(os.Stderr, op, direct, unix.Errno(-res))
				continue
			}
			if !direct {
				show(int(res))
				return nil
			}
			buf := make([]byte, 4096)
			sqe = r.sqe()
			sqe[0], sqe[1] = opRead, fixedFile
			binary.NativeEndian.PutUint64(sqe[16:], uint64(uintptr(unsafe.Pointer(&buf[0]))))
			binary.NativeEndian.PutUint32(sqe[24:], uint32(len(buf)))
			res, err = r.submit()
			os.Stdout.Write(buf[:max(res, 0)])
			return err
		}
	}
	return unix.EPERM
}

type ring struct {
	fd       int
	sq, cq   []byte
	sqes     []byte
	params   [120]byte
	sqTail   *uint32
	cqHead   *uint32
	next     uint32
	consumed uint32
}

func newRing() (*ring, error) {
	r := &ring{}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, 4, uintptr(unsafe.Pointer(&r.params)), 0)
	if e != 0 {
		return nil, e
	}
	r.fd = int(fd)
	var err error
	if r.sq, err = unix.Mmap(r.fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if r.cq, err = unix.Mmap(r.fd, 0x8000000, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	if r.sqes, err = unix.Mmap(r.fd, 0x10000000, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *ring) u32(at int) uint32 { return binary.NativeEndian.Uint32(r.params[at:]) }

func (r *ring) sqe() []byte {
	s := r.sqes[64*(r.next%4):][:64]
	clear(s)
	return s
}

func (r *ring) submit() (int32, error) {
	array := r.sq[r.u32(40+24):]
	binary.NativeEndian.PutUint32(array[4*(r.next%4):], r.next%4)
	r.next++
	binary.NativeEndian.PutUint32(r.sq[r.u32(40+4):], r.next)
	if _, _, e := unix.Syscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 1, 1, 1, 0, 0); e != 0 {
		return 0, e
	}
	cqe := r.cq[r.u32(80+20)+16*(r.consumed%8):]
	r.consumed++
	binary.NativeEndian.PutUint32(r.cq[r.u32(80):], r.consumed)
	return int32(binary.NativeEndian.Uint32(cqe[8:])), nil
}

func number(s string) int { n, _ := strconv.Atoi(s); return n }

func ptraceAttach(args []string) error {
	runtime.LockOSThread()
	pid := number(args[0])
	err := unix.PtraceSeize(pid)
	if err != nil {
		err = unix.PtraceAttach(pid)
	}
	if err == nil {
		fmt.Println("attached")
	}
	return err
}

func procMem(args []string) error {
	f, err := os.Open("/proc/" + args[0] + "/mem")
	if err != nil {
		return err
	}
	buf := make([]byte, number(args[2]))
	_, err = f.ReadAt(buf, int64(number(args[1])))
	os.Stdout.Write(buf)
	return err
}

func vmReadv(args []string) error {
	buf := make([]byte, number(args[2]))
	_, err := unix.ProcessVMReadv(number(args[0]), []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}},
		[]unix.RemoteIovec{{Base: uintptr(number(args[1])), Len: len(buf)}}, 0)
	os.Stdout.Write(buf)
	return err
}

func getfd(args []string) error {
	pidfd, err := unix.PidfdOpen(number(args[0]), 0)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(pidfd, number(args[1]), 0)
	if err != nil {
		return err
	}
	return show(fd)
}

// send passes the descriptor of a file to whoever connects to a socket.
func send(args []string) error {
	f, err := os.Open(args[0])
	if err != nil {
		return err
	}
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Bind(l, &unix.SockaddrUnix{Name: args[1]})
	}
	if err == nil {
		err = unix.Listen(l, 1)
	}
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, _, err := unix.Accept(l)
	if err != nil {
		return err
	}
	return unix.Sendmsg(c, []byte("x"), unix.UnixRights(int(f.Fd())), nil, 0)
}

func receive(args []string) error {
	c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		err = unix.Connect(c, &unix.SockaddrUnix{Name: args[0]})
	}
	if err != nil {
		return err
	}
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(c, make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) == 0 {
		return fmt.Errorf("no descriptor arrives: %v", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return fmt.Errorf("no descriptor arrives: %v", err)
	}
	return show(fds[0])
}

const requestDir = runDir + "/req"

// flood makes requests of all kinds as fast as it can until it is killed.
func flood([]string) error {
	pid := os.Getpid()
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s/%d.%d", requestDir, pid, i)
		if fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600); err == nil {
			unix.Close(fd)
			if i%2 == 0 {
				unix.Unlink(name)
			}
		}
		unix.Symlink("/etc/shadow", name+"1")
		unix.Mkdir(name+"2", 0o700)
		unix.Mkfifo(name+"3", 0o600)
		unix.Link("/etc/passwd", name+"4")
	}
}

// deleteRequests removes every request it may, at once, until it is killed.
func deleteRequests([]string) error {
	for {
		entries, _ := os.ReadDir(requestDir)
		for _, e := range entries {
			unix.Unlink(requestDir + "/" + e.Name())
		}
	}
}

// junk tries to leave what is no request and says what it could make.
func junk(args []string) error {
	at := func(s string) string { return requestDir + "/" + args[0] + s }
	own := os.Getenv("HOME") + "/own"
	os.WriteFile(own, nil, 0o600)
	for what, err := range map[string]error{
		"link":    unix.Symlink("/etc/shadow", at("1")),
		"link2":   unix.Link(own, at("2")),
		"folder":  unix.Mkdir(at("3"), 0o700),
		"fifo":    unix.Mkfifo(at("4"), 0o600),
		"rename":  unix.Rename(own, at("5")),
		"rename2": unix.Rename(os.Getenv("HOME"), at("6")),
	} {
		if err == nil {
			fmt.Println(what)
		}
	}
	for i := range 2000 {
		os.WriteFile(fmt.Sprintf("%s/junk-%s-%d", requestDir, args[0], i), []byte("content"), 0o666)
		os.WriteFile(fmt.Sprintf("%s/%d", requestDir, 1000+i), nil, 0o600)
	}
	return nil
}

// lease makes a request and holds a lease on it.
func lease([]string) error {
	name := fmt.Sprintf("%s/%d", requestDir, os.Getpid())
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return err
	}
	fmt.Println("leased")
	io.Copy(io.Discard, os.Stdin)
	return nil
}

// manyRequests asks under many names for itself.
func manyRequests(args []string) error {
	for i := range number(args[0]) {
		fd, err := unix.Open(fmt.Sprintf("%s/%d.%d", requestDir, os.Getpid(), i), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o600)
		if err == nil {
			unix.Close(fd)
		}
	}
	return nil
}

// seizeReaders tries to attach to every list reader of its own user that it sees,
// until it is killed, and says so when it could.
func seizeReaders([]string) error {
	runtime.LockOSThread()
	for {
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
			if string(cmd) != "agent-sandbox-execd\x00list-reader\x00" {
				continue
			}
			if unix.PtraceSeize(pid) == nil {
				fmt.Println("attached to a list reader")
				return nil
			}
			if f, err := os.OpenFile("/proc/"+e.Name()+"/mem", os.O_RDWR, 0); err == nil {
				fmt.Println("memory of a list reader")
				f.Close()
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				if _, err := unix.PidfdGetfd(fd, 0, 0); err == nil {
					fmt.Println("descriptor of a list reader")
				}
				unix.Close(fd)
			}
		}
	}
}

func writeOnly(args []string) error {
	fd, err := unix.Open(args[0], unix.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return syscall.Close(fd)
}

func rawOpen(path *byte) (uintptr, uintptr, unix.Errno) {
	return unix.RawSyscall6(unix.SYS_OPENAT, ^uintptr(99), uintptr(unsafe.Pointer(path)), unix.O_RDONLY, 0, 0, 0)
}
