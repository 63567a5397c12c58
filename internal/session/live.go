package session

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"agent-sandbox/internal/mountop"
	"agent-sandbox/internal/sys"
)

// Here is what tells this host, boot and pid namespace from others: pids in a
// record mean something only where all three are the same.
type Here struct {
	Host, Boot string
	PIDNS      uint64
}

// Place finds the host name, boot and pid namespace of this process.
func Place() (Here, error) {
	var h Here
	var err error
	if h.Host, err = os.Hostname(); err != nil {
		return h, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return h, err
	}
	h.Boot = strings.TrimSpace(string(boot))
	h.PIDNS, err = sys.NSInode("self", "pid")
	return h, err
}

// Self is this process.
var Self = sync.OnceValues(func() (Proc, error) { return ProcOf(os.Getpid()) })

// ProcOf names the process that has the pid now.
func ProcOf(pid int) (Proc, error) {
	st, err := sys.ReadProcStat(pid)
	return Proc{pid, st.Start}, err
}

// Alive says whether the process still runs: the same pid with the same start
// time, and not a zombie.
func (p Proc) Alive() bool {
	st, err := sys.ReadProcStat(p.PID)
	return err == nil && st.Start == p.Start && !st.Zombie
}

// Open gives a pidfd of the process, or fs.ErrNotExist where it is gone. The
// start time is compared after the pidfd is held, so that it is that process's.
func (p Proc) Open() (*os.File, error) {
	if p.PID == 0 {
		return nil, fs.ErrNotExist
	}
	f, err := sys.PidfdOpen(p.PID)
	if errors.Is(err, syscall.ESRCH) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	if !p.Alive() {
		f.Close()
		return nil, fs.ErrNotExist
	}
	return f, nil
}

// Signal sends sig to a helper of a session (guard, chaperon) where pid, start
// time and parent are those of the record; otherwise to nobody.
func (p Proc) Signal(parent Proc, sig syscall.Signal) error {
	f, err := p.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := sys.ReadProcStat(p.PID)
	if err != nil {
		return err
	}
	if st.Start != p.Start || st.PPID != parent.PID || !parent.Alive() {
		return fmt.Errorf("process %d is not the helper of process %d", p.PID, parent.PID)
	}
	return sys.PidfdSignal(f, sig)
}

// Live says how a recorded session stands, seen from here.
type Live int

const (
	Running  Live = iota // launcher and sandbox are there
	Orphaned             // the sandbox is there, its launcher is not
	Dead                 // both are gone, or the host was booted since
	Foreign              // of another host or pid namespace: not ours to judge
)

// Live compares a record with the processes of this host.
func (r Record) Live(h Here) Live {
	if r.Host != h.Host {
		return Foreign
	}
	if r.Boot != h.Boot {
		return Dead
	}
	if r.PIDNS != h.PIDNS {
		return Foreign
	}
	switch launcher, sandbox := r.Launcher.Alive(), r.Sandbox.Alive(); {
	case launcher:
		return Running
	case sandbox:
		return Orphaned
	}
	return Dead
}

// Kill ends the sandbox of an orphaned session. Its first process is killed only
// where it is what the record says: same start time, first of a pid namespace
// of its own, same mount namespace.
func (r Record) Kill() error {
	f, err := r.Sandbox.Open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if !firstOfNamespace(r.Sandbox.PID) {
		return fmt.Errorf("process %d is not the first of a sandbox", r.Sandbox.PID)
	}
	if ns, err := sys.NSInode(strconv.Itoa(r.Sandbox.PID), "mnt"); err == nil && ns != r.MountNS {
		return fmt.Errorf("process %d is in another mount namespace than the session", r.Sandbox.PID)
	}
	return sys.PidfdSignal(f, syscall.SIGKILL)
}

// firstOfNamespace reads NSpid of proc_pid_status(5): the pids of the process in
// its namespaces, outermost first.
func firstOfNamespace(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	_, rest, ok := bytes.Cut(data, []byte("\nNSpid:"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	f := bytes.Fields(line)
	return ok && len(f) >= 2 && string(f[len(f)-1]) == "1"
}

// Target is the session as mount-repair is told it.
func (r Record) Target() mountop.Target {
	return mountop.Target{PID: r.Sandbox.PID, Start: r.Sandbox.Start, MountNS: r.MountNS}
}
