package mountplan

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"agent-sandbox/internal/mountinfo"
)

// FileType is what an object of the host is.
type FileType int

const (
	Regular FileType = iota
	Dir
	Link
	Other // device, FIFO, socket
)

// Info is what the plan has to know of an object.
type Info struct {
	Type     FileType
	Device   bool // a character or block device
	Socket   bool
	UID      uint32
	Dev, Ino uint64
	Nlink    uint64
	Size     int64
}

// Host is the plan's view of the machine. Errors are those of the os package;
// ErrNoAnswer stands for a file system that does not answer.
type Host interface {
	Lstat(path string) (Info, error)
	Readlink(path string) (string, error)
	ReadFile(path string, limit int64) ([]byte, error)
	// ReadDir gives the names in a folder, sorted.
	ReadDir(path string) ([]string, error)
	// MayCreate says whether the caller may make an entry in the folder.
	MayCreate(dir string) bool
	Mounts() ([]mountinfo.Mount, error)
}

// ErrNoAnswer says that a path lies on a file system that does not answer (a
// stale NFS mount, an automounter).
var ErrNoAnswer = errors.New("file system does not answer")

// A link met on the way to an object: at Path, with the text Target.
type link struct{ path, target string }

// resolved is a path of the host with every symlink followed.
type resolved struct {
	path  string // no component is a link; components that do not exist are kept
	info  Info   // of the object, where it exists
	found bool
	// exists is the deepest folder on the way that exists; path itself where found.
	exists string
	links  []link
}

const maxLinks = 40 // as the kernel (path_resolution(7))

// resolve follows every symlink in an absolute path. What does not exist is not
// an error: found is false and the rest of the path is kept as it is.
func resolve(h Host, path string) (resolved, error) {
	r := resolved{path: "/", exists: "/", found: true}
	todo := strings.Split(strings.Trim(path, "/"), "/")
	for n := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			// Only met in the text of a link: the parent of what was resolved.
			r.path = parent(r.path)
			continue
		}
		next := join(r.path, name)
		info, err := h.Lstat(next)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
			r.found = false
			for _, c := range append([]string{name}, todo...) {
				if c == ".." {
					return r, fmt.Errorf("%q: %w", path, fs.ErrNotExist)
				}
				if c != "" && c != "." {
					r.path = join(r.path, c)
				}
			}
			return r, nil
		}
		if err != nil {
			return r, err
		}
		if info.Type != Link {
			r.path, r.exists, r.info = next, next, info
			continue
		}
		if n++; n > maxLinks {
			return r, fmt.Errorf("%q: too many levels of symbolic links", path)
		}
		target, err := h.Readlink(next)
		if err != nil {
			return r, err
		}
		r.links = append(r.links, link{next, target})
		todo = append(strings.Split(target, "/"), todo...)
		if strings.HasPrefix(target, "/") {
			r.path = "/"
		}
	}
	if r.path == "/" || r.exists != r.path {
		info, err := h.Lstat(r.path)
		if err != nil {
			return r, err
		}
		r.info, r.exists = info, r.path
	}
	return r, nil
}

func join(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}

func parent(p string) string {
	i := strings.LastIndexByte(p, '/')
	if i <= 0 {
		return "/"
	}
	return p[:i]
}

// between gives the folders strictly between top and p, upper ones first.
func between(top, p string) []string {
	var out []string
	for d := parent(p); d != top && Under(d, top); d = parent(d) {
		out = append([]string{d}, out...)
	}
	return out
}
