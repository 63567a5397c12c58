package execd

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/sys"
)

// Names below the cgroup2 mount.
const (
	parentName  = "agent-sandbox-exec"
	readersName = "readers"
	testName    = "self-test"
	boxPrefix   = "uid-"
)

// FindCgroup2 returns where the cgroup2 hierarchy is mounted as a whole.
func FindCgroup2() (string, error) {
	m, err := findCgroup2()
	return m.Point, err
}

func findCgroup2() (mountinfo.Mount, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return mountinfo.Mount{}, err
	}
	mounts, err := mountinfo.Parse(data)
	if err != nil {
		return mountinfo.Mount{}, err
	}
	for _, m := range mounts {
		// One that something else is mounted over has the type but not the magic.
		if m.FSType == "cgroup2" && m.Root == "/" && sys.Cgroup2(m.Point) {
			return m, nil
		}
	}
	return mountinfo.Mount{}, errors.New("no cgroup2 file system is mounted")
}

// favorDynMods is the option of cgroup2 since Linux 6.0 with which moving a process does not
// wait for an RCU grace period, which is most of a launch; before that it never did
// (Documentation/admin-guide/cgroup-v2.rst).
const favorDynMods = "favordynmods"

// FavorMoves turns the option on or off and says whether that changed anything. The kernel
// may not know it.
func FavorMoves(on bool) (bool, error) {
	m, err := findCgroup2()
	if err != nil {
		return false, err
	}
	var options []string
	for o := range strings.SplitSeq(m.Super, ",") {
		if o != "rw" && o != "ro" {
			options = append(options, o)
		}
	}
	if slices.Contains(options, favorDynMods) == on {
		return false, nil
	}
	if on {
		options = append(options, favorDynMods)
	} else {
		options = slices.DeleteFunc(options, func(o string) bool { return o == favorDynMods })
	}
	err = sys.SetOptions(m.Point, options)
	if errors.Is(err, sys.ErrNoOption) {
		return false, nil
	}
	return err == nil, err
}

// boxPath is the path of a uid's cgroup in the hierarchy, as in /proc/PID/cgroup.
func boxPath(uid uint32) string { return fmt.Sprintf("/%s/%s%d", parentName, boxPrefix, uid) }

// boxUID is the inverse of the last component of boxPath.
func boxUID(name string) (uint32, bool) {
	s, ok := strings.CutPrefix(name, boxPrefix)
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), ok && err == nil && strconv.FormatUint(n, 10) == s
}

// makeCgroup makes a cgroup if it is missing and returns its id, which is the
// inode number of its folder (kernfs). The id is asked for every time: root may
// have removed the cgroup and made it again.
func makeCgroup(dir string) (uint64, error) {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, err
	}
	st, err := sys.Lstat(dir)
	if err != nil {
		return 0, err
	}
	if !st.IsDir() || st.UID != 0 {
		return 0, fmt.Errorf("%s is not root's folder", dir)
	}
	return st.Ino, nil
}

// makeParent is makeCgroup for the folder that has the users' cgroups. Each of those
// gets a pids controller of its own where the machine has that switched on, as systemd
// does: it limits nothing. Without a controller all cgroups look the same to the kernel,
// which passes every one of them when a process is moved (find_existing_css_set in
// kernel/cgroup/cgroup.c): a launch would cost more with each user.
func makeParent(dir string) (uint64, error) {
	id, err := makeCgroup(dir)
	if err != nil {
		return 0, err
	}
	if has, err := sys.ReadFile(filepath.Join(dir, "cgroup.controllers")); err == nil && slices.Contains(strings.Fields(string(has)), "pids") {
		// A failure costs time only.
		if fd, err := sys.OpenFD(filepath.Join(dir, "cgroup.subtree_control"), os.O_WRONLY, 0); err == nil {
			sys.WriteFD(fd, []byte("+pids"))
			sys.CloseFD(fd)
		}
	}
	return id, nil
}

// populated says whether a cgroup or one below it has a process.
func populated(dir string) (bool, error) {
	data, err := sys.ReadFile(filepath.Join(dir, "cgroup.events"))
	if err != nil {
		return false, err
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if v, ok := strings.CutPrefix(line, "populated "); ok {
			return v != "0", nil
		}
	}
	return false, fmt.Errorf("%s/cgroup.events: no line populated", dir)
}

// cgroupOf is the path of a process's cgroup in the cgroup2 hierarchy.
func cgroupOf(pid int) (string, error) {
	data, err := sys.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", err
	}
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		if p, ok := bytes.CutPrefix(line, []byte("0::")); ok {
			return strings.TrimSuffix(string(p), " (deleted)"), nil
		}
	}
	return "", fmt.Errorf("process %d has no cgroup in the cgroup2 hierarchy", pid)
}

var errDied = errors.New("the process ended before it was moved")

// move moves a process into the cgroup at path and checks that it is there. The
// kernel takes only a number, which may by then be another process's: so the
// pidfd is asked again, and a stranger is put back.
func (d *Daemon) move(j job, path string) error {
	if j.cgroup == path {
		return nil // asked from there
	}
	err := d.enter(j.pid, path)
	if sys.PidfdDead(j.pidfd) {
		if err == nil {
			d.undo(j.pid, path)
		}
		return errDied
	}
	if err != nil {
		return fmt.Errorf("cannot move the process: %w", errors.Unwrap(err))
	}
	now, err := cgroupOf(j.pid)
	if sys.PidfdDead(j.pidfd) {
		return errDied
	}
	if err != nil || now != path {
		return fmt.Errorf("the process is in cgroup %q after the move", now)
	}
	return nil
}

func (d *Daemon) enter(pid int, path string) error {
	fd, err := sys.OpenFD(filepath.Join(d.cgroups, path, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer sys.CloseFD(fd)
	return sys.WriteFD(fd, strconv.AppendInt(nil, int64(pid), 10))
}

// undo moves a process that got the number of a dead one back to where it came
// from: it was started a moment ago, so it was where its parent is.
func (d *Daemon) undo(pid int, path string) {
	if now, err := cgroupOf(pid); err != nil || now != path {
		return
	}
	st, err := sys.ReadProcStat(pid)
	if err != nil {
		return
	}
	from, err := cgroupOf(st.PPID)
	if err == nil && from != path {
		err = d.enter(pid, from)
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		d.log.Errorf("process %d was moved by mistake and cannot be put back: %w", pid, err)
	}
}

// Members counts the processes in a uid's cgroup and those below it.
func Members(cgroups string, uid uint32) int {
	n := 0
	filepath.WalkDir(filepath.Join(cgroups, boxPath(uid)), func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == "cgroup.procs" {
			data, _ := os.ReadFile(path)
			n += bytes.Count(data, []byte{'\n'})
		}
		return nil
	})
	return n
}

// endReaders kills what runs in the readers' cgroup and waits for it to be gone.
// Not by cgroup.kill: on some kernels (6.1.129 and later of Debian 12) whatever
// clone3 starts in a cgroup after that is killed at once.
func endReaders(cgroups string) {
	path := "/" + parentName + "/" + readersName
	data, _ := os.ReadFile(filepath.Join(cgroups, path, "cgroup.procs"))
	for _, s := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(s)
		if err != nil {
			continue
		}
		pidfd, err := sys.PidfdOpen(pid)
		if err != nil {
			continue
		}
		if now, err := cgroupOf(pid); err == nil && now == path {
			sys.PidfdSignal(pidfd, syscall.SIGKILL)
			sys.ReadableWithin(int(pidfd.Fd()), time.Second)
		}
		pidfd.Close()
	}
}
