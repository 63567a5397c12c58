package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"agent-sandbox/internal/sys"
)

// noListedFile fails where a descriptor that the command would inherit is a
// listed file: opening is denied, what is open already is not. Each regular file
// is sent through a socket to this process itself, for the kernel checks on
// receipt, whatever the permissions of the file are.
func noListedFile() error {
	self, err := sys.OpenFD("/proc/self/fd", os.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("cannot see the own descriptors: %w", err)
	}
	dir := os.NewFile(uintptr(self), "/proc/self/fd")
	names, err := dir.Readdirnames(-1)
	dir.Close()
	if err != nil {
		return fmt.Errorf("cannot see the own descriptors: %w", err)
	}
	var files []int
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == self {
			continue
		}
		var st syscall.Stat_t
		if syscall.Fstat(fd, &st) == nil && st.Mode&syscall.S_IFMT == syscall.S_IFREG {
			files = append(files, fd)
		}
	}
	if len(files) == 0 {
		return nil
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot check the inherited descriptors: %w", err)
	}
	defer syscall.Close(pair[0])
	defer syscall.Close(pair[1])
	for _, fd := range files {
		ok, err := receivable(pair, fd)
		if err != nil {
			return fmt.Errorf("cannot check descriptor %d: %w", fd, err)
		}
		if !ok {
			return fmt.Errorf("descriptor %d is a listed file: close it before the launch", fd)
		}
	}
	return nil
}

// receivable says whether a descriptor can be received from oneself.
func receivable(pair [2]int, fd int) (bool, error) {
	if err := syscall.Sendmsg(pair[0], []byte{0}, syscall.UnixRights(fd), nil, 0); err != nil {
		return false, err
	}
	oob := make([]byte, syscall.CmsgSpace(4))
	_, n, _, _, err := syscall.Recvmsg(pair[1], make([]byte, 1), oob, syscall.MSG_CMSG_CLOEXEC)
	if errors.Is(err, syscall.EPERM) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	messages, err := syscall.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return false, err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			return false, err
		}
		for _, f := range fds {
			syscall.Close(f)
			return true, nil
		}
	}
	return false, nil
}
