package sys

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ProcStat is what /proc/PID/stat says (proc_pid_stat(5)).
type ProcStat struct {
	State  byte
	PPID   int
	Start  uint64 // clock ticks after boot, field 22
	Zombie bool
}

// ReadProcStat reads /proc/PID/stat.
func ReadProcStat(pid int) (ProcStat, error) {
	var p ProcStat
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	// The command in field 2 may hold spaces and parentheses; the last
	// closing one ends it.
	i := bytes.LastIndexByte(data, ')')
	f := bytes.Fields(data[max(i+1, 0):])
	if i < 0 || len(f) < 20 {
		return p, fmt.Errorf("/proc/%d/stat: not of the documented form", pid)
	}
	p.State = f[0][0]
	p.Zombie = p.State == 'Z' || p.State == 'X'
	if p.PPID, err = strconv.Atoi(string(f[1])); err != nil {
		return p, err
	}
	p.Start, err = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err
}

// PidfdOpen is pidfd_open(2).
func PidfdOpen(pid int) (*os.File, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open %d: %w", pid, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("pidfd:%d", pid)), nil
}

// PidfdSignal is pidfd_send_signal(2).
func PidfdSignal(pidfd *os.File, sig unix.Signal) error {
	return unix.PidfdSendSignal(int(pidfd.Fd()), sig, nil, 0)
}

// NSInode is the inode of a namespace of a process: kind is the name in
// /proc/PID/ns.
func NSInode(pid, kind string) (uint64, error) {
	st, err := statFollow("/proc/" + pid + "/ns/" + kind)
	return st.Ino, err
}

func statFollow(path string) (Stat, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Stat{}, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fromStat(&st), nil
}
