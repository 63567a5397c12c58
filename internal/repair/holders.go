package repair

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// A process of the session, seen from the host.
type process struct {
	pid    int
	name   string
	hidden bool // the kernel does not let the caller look at it
}

// A holding is what a process has of a file system: its working directory, its
// root, or an open file.
type holding struct {
	process
	what  string // "cwd", "root", "fd 3"
	link  string // path, as /proc has it
	fd    int    // O_PATH
	obj   sys.Object
	write bool
}

func (h holding) String() string {
	return fmt.Sprintf("%d %s %s %s", h.pid, h.name, h.what, h.link)
}

// members are the processes of the session: the descendants of its init. An
// orphan in a pid namespace is adopted by the init of that namespace, so nothing
// in there leaves the tree, nested namespaces included.
func members(init int) ([]process, error) {
	pids := map[int]bool{init: true}
	// Twice: a list read while a child ends may lack others (proc_pid_children(5)).
	for range 2 {
		for todo := slices.Collect(maps.Keys(pids)); len(todo) > 0; {
			kids, err := children(todo[0])
			if err != nil {
				return nil, err
			}
			todo = todo[1:]
			for _, k := range kids {
				if !pids[k] {
					pids[k] = true
					todo = append(todo, k)
				}
			}
		}
	}
	var out []process
	for pid := range pids {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err == nil {
			out = append(out, process{pid: pid, name: string(bytes.TrimSpace(name))})
		}
	}
	return out, nil
}

// children are the processes whose parent is pid. Reading them of one process,
// not the parents of all, costs nothing where the host has many.
func children(pid int) ([]int, error) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return nil, nil // it has ended
	}
	var out []int
	for _, t := range tasks {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, t.Name()))
		if os.IsNotExist(err) {
			if _, gone := os.Stat(fmt.Sprintf("/proc/%d/task/%s", pid, t.Name())); gone == nil {
				return nil, errors.New("the kernel does not list children (CONFIG_PROC_CHILDREN)")
			}
		}
		for f := range strings.FieldsSeq(string(data)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out, nil
}

// A sight is all that processes of a session hold at one moment.
type sight struct {
	procs []process
	held  []holding
	// Sockets with descriptors that were sent and not yet received: what those hold
	// cannot be looked at.
	inFlight []string
	// Links to mount namespaces, by inode: those the processes are in, and
	// descriptors of others.
	namespaces map[uint64]string
}

// look opens what the processes of the session hold of the file systems that
// wanted says. The caller closes it.
func look(init int, wanted func(sys.Object) bool) (*sight, error) {
	procs, err := members(init)
	if err != nil {
		return nil, err
	}
	s := &sight{procs: procs, namespaces: map[uint64]string{}}
	for i := range procs {
		s.process(&procs[i], wanted)
	}
	return s, nil
}

func (s *sight) process(p *process, wanted func(sys.Object) bool) {
	dir := fmt.Sprintf("/proc/%d/", p.pid)
	add := func(what, name string) {
		link, err := os.Readlink(dir + name)
		if err != nil {
			p.hidden = p.hidden || os.IsPermission(err)
			return
		}
		if inode, ok := strings.CutPrefix(link, "mnt:["); ok {
			if n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64); err == nil {
				s.namespaces[n] = dir + name
			}
		}
		if strings.HasPrefix(link, "socket:") && sentDescriptors(dir+"fdinfo/"+name[len("fd/"):]) {
			s.inFlight = append(s.inFlight, fmt.Sprintf("%d %s %s descriptors under way in a socket", p.pid, p.name, what))
		}
		if !strings.HasPrefix(link, "/") {
			return
		}
		fd, err := sys.OpenLink(dir + name)
		if err != nil {
			return
		}
		o, err := sys.ObjectOf(fd)
		if err != nil || !wanted(o) {
			syscall.Close(fd)
			return
		}
		write := strings.HasPrefix(name, "fd/") && openForWriting(dir+"fdinfo/"+name[len("fd/"):])
		s.held = append(s.held, holding{process: *p, what: what, link: link, fd: fd, obj: o, write: write})
	}
	add("", "ns/mnt")
	add("cwd", "cwd")
	add("root", "root")
	fds, err := os.ReadDir(dir + "fd")
	p.hidden = p.hidden || os.IsPermission(err)
	for _, f := range fds {
		add("fd "+f.Name(), "fd/"+f.Name())
	}
}

// sentDescriptors says whether a unix socket holds descriptors that were sent to
// it (unix_show_fdinfo in the kernel, Linux 5.12; before that nothing tells).
func sentDescriptors(fdinfo string) bool {
	data, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "scm_fds:"); ok {
			return strings.TrimSpace(v) != "0"
		}
	}
	return false
}

func (s *sight) close() {
	for _, h := range s.held {
		syscall.Close(h.fd)
	}
}

func openForWriting(fdinfo string) bool {
	data, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseInt(strings.TrimSpace(v), 8, 64)
			return err == nil && flags&syscall.O_ACCMODE != syscall.O_RDONLY
		}
	}
	return false
}

// writers describes who keeps the kernel from making a mount read-only:
// descriptors open for writing, and shared mappings, whose descriptor may be
// closed. A mapping's mount is not shown by the kernel: its device and path are.
func (s *sight) writers(b busyMount) []string {
	var out []string
	for _, h := range s.held {
		if h.write && h.obj.MountID == uint64(b.ID) {
			out = append(out, h.String())
		}
	}
	for _, p := range s.procs {
		areas, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
		if err != nil {
			continue
		}
		seen := map[string]bool{}
		for line := range strings.Lines(string(areas)) {
			// address perms offset dev inode path
			f := strings.SplitN(strings.TrimRight(line, "\n"), " ", 6)
			if len(f) < 6 || len(f[1]) < 4 || f[1][3] != 's' {
				continue
			}
			file := strings.TrimLeft(f[5], " ")
			var major, minor uint32
			if n, _ := fmt.Sscanf(f[3], "%x:%x", &major, &minor); n != 2 || major != b.Major || minor != b.Minor {
				continue
			}
			if !mountplan.Under(file, string(b.Point)) || seen[file] {
				continue
			}
			seen[file] = true
			out = append(out, fmt.Sprintf("%d %s mapping %s", p.pid, p.name, file))
		}
	}
	return out
}

func (s *sight) writersOrUnknown(b busyMount) []string {
	out := s.writers(b)
	if len(out) > 0 {
		return out
	}
	for _, p := range s.procs {
		if p.hidden {
			out = append(out, fmt.Sprintf("%d %s cannot be looked at", p.pid, p.name))
		}
	}
	if len(out) == 0 {
		out = []string{"held by what cannot be seen at " + string(b.Point)}
	}
	return out
}
