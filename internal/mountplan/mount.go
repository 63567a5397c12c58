// Package mountplan turns validated settings into the ordered list of mounts of
// a session, and compares two such lists. It is pure: what it has to know of the
// host it asks through the Host interface.
package mountplan

import (
	"fmt"
	"strconv"
	"strings"

	"agent-sandbox/internal/record"
)

// Kind is what a mount is; the names are those of the session record.
type Kind string

const (
	RO       Kind = "ro"        // bind, read-only, with everything mounted below it
	RW       Kind = "rw"        // bind, writable
	Dev      Kind = "dev"       // bind of a device node
	Tmpfs    Kind = "tmpfs"     // fresh tmpfs
	MaskFile Kind = "mask-file" // empty regular file, mode 0444, read-only
	MaskDir  Kind = "mask-dir"  // empty read-only tmpfs
	Data     Kind = "data"      // file whose content the launcher made
	Symlink  Kind = "symlink"   // a symbolic link, not a mount
	Proc     Kind = "proc"      // proc of the session's pid namespace
	DevFS    Kind = "devfs"     // bwrap's minimal /dev
)

// DataMode is how a Data mount behaves inside.
type DataMode string

const (
	DataRO   DataMode = ""     // bound read-only
	DataRW   DataMode = "rw"   // bound writable: a private copy
	DataCopy DataMode = "copy" // a plain file in a tmpfs, not a mount: can be renamed over
)

// Mount is one item of a plan. Paths are absolute, clean, any bytes but NUL.
type Mount struct {
	Kind    Kind
	Path    string   // where it shows in the sandbox; no component is a symlink there
	Source  string   // host path of a bind where it is not Path, else empty
	Target  string   // what a Symlink points to
	Options string   // of a Tmpfs: "mode=0755"; with ",ro" it is read-only once everything below it is mounted
	Digest  string   // of Data: sha256 of Content, hex
	N       int      // of Data: number of the file <id>.d/<N> that keeps Content
	Mode    DataMode // of Data
	Content []byte   // of Data; not in the record
	Dev     uint64   // of a bind, with Ino: the object the plan looked at; 0 where it is still to be made; not in the record
	Ino     uint64
	Via     []string // symlinks of the host that led from the configured path to Path: of RW, and of a protection of what does not exist; not in the record
	Absent  bool     // a protection of what is not there and cannot be made: mounted by the guard when it appears; not in the record
}

// From is the host path that a bind shows.
func (m Mount) From() string {
	if m.Source != "" {
		return m.Source
	}
	return m.Path
}

// Protection says whether the mount takes access away: a mask, a read-only
// bind, or a file put over another.
func (m Mount) Protection() bool {
	return m.Kind == RO || m.Kind == MaskFile || m.Kind == MaskDir || m.Kind == Data && m.Mode == DataRO
}

// Marshal returns the mount as `KIND PATH[<TAB>MORE]`, the value of a `mount`
// line of the session record (agent-sandbox-session(5)).
func (m Mount) Marshal() string {
	more := ""
	switch m.Kind {
	case RO, RW, Dev:
		more = record.Escape(m.Source)
	case Symlink:
		more = record.Escape(m.Target)
	case Tmpfs:
		more = m.Options
	case Data:
		more = "sha256:" + m.Digest + " " + strconv.Itoa(m.N)
		if m.Mode != DataRO {
			more += " " + string(m.Mode)
		}
	}
	s := string(m.Kind) + " " + record.Escape(m.Path)
	if more != "" {
		s += "\t" + more
	}
	return s
}

// Unmarshal is the strict inverse of Marshal.
func Unmarshal(line string) (Mount, error) {
	var m Mount
	kind, rest, ok := strings.Cut(line, " ")
	if !ok {
		return m, fmt.Errorf("mount %q: no path", line)
	}
	path, more, hasMore := strings.Cut(rest, "\t")
	if hasMore && more == "" {
		return m, fmt.Errorf("mount %q: empty field", line)
	}
	var err error
	m.Kind = Kind(kind)
	if m.Path, err = record.Unescape(path); err != nil {
		return m, fmt.Errorf("mount path %q: %w", path, err)
	}
	if !CleanAbs(m.Path) {
		return m, fmt.Errorf("mount path %q: not absolute and clean", path)
	}
	switch m.Kind {
	case RO, RW, Dev:
		if hasMore {
			if m.Source, err = record.Unescape(more); err != nil || !CleanAbs(m.Source) || m.Source == m.Path {
				return m, fmt.Errorf("mount source %q: not a path", more)
			}
		}
	case Symlink:
		if m.Target, err = record.Unescape(more); err != nil || m.Target == "" || strings.ContainsRune(m.Target, 0) {
			return m, fmt.Errorf("link target %q", more)
		}
	case Tmpfs:
		if more != "" && !validTmpfsOptions(more) {
			return m, fmt.Errorf("tmpfs options %q", more)
		}
		m.Options = more
	case Data:
		f := strings.Split(more, " ")
		if len(f) < 2 || len(f) > 3 || !strings.HasPrefix(f[0], "sha256:") || !hex64(f[0][len("sha256:"):]) {
			return m, fmt.Errorf("data %q", more)
		}
		m.Digest = f[0][len("sha256:"):]
		if m.N, err = strconv.Atoi(f[1]); err != nil || m.N < 0 || strconv.Itoa(m.N) != f[1] {
			return m, fmt.Errorf("data file number %q", f[1])
		}
		if len(f) == 3 {
			m.Mode = DataMode(f[2])
			if m.Mode != DataRW && m.Mode != DataCopy {
				return m, fmt.Errorf("data mode %q", f[2])
			}
		}
	case MaskFile, MaskDir, Proc, DevFS:
		if hasMore {
			return m, fmt.Errorf("mount %q: field after the path", line)
		}
	default:
		return m, fmt.Errorf("mount kind %q is not known", kind)
	}
	return m, nil
}

func validTmpfsOptions(s string) bool {
	v, ok := strings.CutPrefix(strings.TrimSuffix(s, ",ro"), "mode=")
	return ok && len(v) == 4 && strings.Trim(v, "01234567") == ""
}

func hex64(s string) bool {
	if len(s) != 64 {
		return false
	}
	for _, c := range s {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}

// CleanAbs says whether p is an absolute path in its shortest form: it starts
// with a slash, has no empty, `.` or `..` component, no trailing slash, no NUL.
func CleanAbs(p string) bool {
	if p == "/" {
		return true
	}
	if p == "" || p[0] != '/' || strings.ContainsRune(p, 0) {
		return false
	}
	for c := range strings.SplitSeq(p[1:], "/") {
		if c == "" || c == "." || c == ".." {
			return false
		}
	}
	return true
}

// Under says whether p is dir or lies below it, by components.
func Under(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir) && p[len(dir)] == '/'
}
