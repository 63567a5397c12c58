package repair

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
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
// orphan in a pid namespace is adopted by the init of that namespace, so
// nothing in there leaves the tree, nested namespaces included.
func members(init int) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	parent := map[int]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if st, err := sys.ReadProcStat(pid); err == nil && !st.Zombie {
			parent[pid] = st.PPID
		}
	}
	var out []process
	for pid := range parent {
		for p := pid; p != 0; p = parent[p] {
			if p == init {
				name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
				out = append(out, process{pid: pid, name: string(bytes.TrimSpace(name))})
				break
			}
		}
	}
	return out, nil
}

// look opens everything that the processes hold. The caller closes it.
func look(procs []process) []holding {
	var out []holding
	for i := range procs {
		p := &procs[i]
		dir := fmt.Sprintf("/proc/%d/", p.pid)
		add := func(what, name string, write bool) {
			link, err := os.Readlink(dir + name)
			if err != nil {
				p.hidden = p.hidden || os.IsPermission(err)
				return
			}
			if !strings.HasPrefix(link, "/") {
				return
			}
			fd, err := sys.OpenLink(dir + name)
			if err != nil {
				return
			}
			o, err := sys.ObjectOf(fd)
			if err != nil {
				syscall.Close(fd)
				return
			}
			out = append(out, holding{process: *p, what: what, link: link, fd: fd, obj: o, write: write})
		}
		add("cwd", "cwd", false)
		add("root", "root", false)
		fds, err := os.ReadDir(dir + "fd")
		if err != nil {
			p.hidden = p.hidden || os.IsPermission(err)
			continue
		}
		for _, f := range fds {
			add("fd "+f.Name(), "fd/"+f.Name(), openForWriting(dir+"fdinfo/"+f.Name()))
		}
	}
	return out
}

func closeHoldings(hs []holding) {
	for _, h := range hs {
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
func writers(b busyMount, procs []process, held []holding) []string {
	var out []string
	for _, h := range held {
		if h.write && h.obj.MountID == uint64(b.ID) {
			out = append(out, h.String())
		}
	}
	for _, p := range procs {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.pid))
		if err != nil {
			continue
		}
		seen := map[string]bool{}
		for line := range strings.Lines(string(maps)) {
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

// mountNamespaces are the mount namespaces other than known that the processes
// are in or hold a descriptor of, opened; by inode.
func mountNamespaces(procs []process, known map[uint64]bool) map[uint64]*os.File {
	out := map[uint64]*os.File{}
	try := func(link string) {
		text, err := os.Readlink(link)
		if err != nil {
			return
		}
		inode, ok := strings.CutPrefix(text, "mnt:[")
		if !ok {
			return
		}
		n, err := strconv.ParseUint(strings.TrimSuffix(inode, "]"), 10, 64)
		if err != nil || known[n] || out[n] != nil {
			return
		}
		if f, err := os.Open(link); err == nil {
			out[n] = f
		}
	}
	for _, p := range procs {
		dir := fmt.Sprintf("/proc/%d/", p.pid)
		try(dir + "ns/mnt")
		names, _ := filepath.Glob(dir + "fd/*")
		for _, n := range names {
			try(n)
		}
	}
	return out
}
