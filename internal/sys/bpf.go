package sys

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// BPFTaskFiles starts the iter/task_file program prog over the descriptors of
// one thread group's leader and returns the stream of what the program writes
// (bpf(2), BPF_LINK_CREATE with bpf_iter_link_info.task and BPF_ITER_CREATE).
// Before Linux 6.1 the kernel knows no such filter, and the stream has the
// descriptors of every process.
func BPFTaskFiles(prog int, pid int) (*os.File, error) {
	info := struct{ tid, pid, pidfd uint32 }{tid: uint32(pid)}
	link, err := bpfIterLink(prog, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)))
	runtime.KeepAlive(&info)
	if err != nil {
		return nil, fmt.Errorf("bpf iterator over descriptors: %w", err)
	}
	defer unix.Close(link)
	create := struct{ link, flags uint32 }{uint32(link), 0}
	fd, err := bpfCall(unix.BPF_ITER_CREATE, unsafe.Pointer(&create), unsafe.Sizeof(create))
	if err != nil {
		return nil, fmt.Errorf("bpf iterator over descriptors: %w", err)
	}
	return os.NewFile(uintptr(fd), "bpf_iter"), nil
}

func bpfIterLink(prog int, info unsafe.Pointer, size uint32) (int, error) {
	attr := struct {
		prog, target, attachType, flags uint32
		info                            unsafe.Pointer
		infoLen                         uint32
		_                               uint32
	}{prog: uint32(prog), attachType: unix.BPF_TRACE_ITER, info: info, infoLen: size}
	return bpfCall(unix.BPF_LINK_CREATE, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
}

func bpfCall(cmd int, attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(cmd), uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
