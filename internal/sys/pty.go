package sys

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenPTY makes a pseudo-terminal (pty(7)): its master, and its terminal, which
// becomes nobody's controlling terminal by being opened here.
func OpenPTY() (master, terminal *os.File, err error) {
	// Non-blocking, so that the runtime can wait for output and a close wakes a reader.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("pseudo-terminal: %w", err)
	}
	return master, terminal, nil
}

// SetWindowSize sets the size of a terminal, which sends SIGWINCH to its
// foreground process group.
func SetWindowSize(f *os.File, rows, cols uint16) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var e error
	if err := c.Control(func(fd uintptr) {
		e = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}); err != nil {
		return err
	}
	return e
}

// ForegroundGroupOf is ForegroundGroup of the terminal behind a master.
func ForegroundGroupOf(f *os.File) (pgrp int, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := c.Control(func(fd uintptr) { pgrp, err = ForegroundGroup(int(fd)) })
	if cerr != nil {
		err = cerr
	}
	return pgrp, err
}
