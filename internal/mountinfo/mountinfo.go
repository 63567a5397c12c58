// Package mountinfo parses /proc/PID/mountinfo (proc_pid_mountinfo(5)): pure,
// exact to the byte, lines of any length.
package mountinfo

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// Mount is one line of mountinfo.
type Mount struct {
	ID, Parent   int
	Major, Minor uint32
	Root         string // path of the mount's root in its file system
	Point        string // mount point, relative to the reader's root
	Options      string // per-mount options: rw or ro, nosuid, ...
	Shared       bool   // has the optional field shared:N
	Master       bool   // has the optional field master:N
	FSType       string
	Source       string
	Super        string // per-super-block options
}

// ReadOnly says whether the mount itself (not its super block) is read-only.
func (m Mount) ReadOnly() bool { return hasOption(m.Options, "ro") }

// SuperReadOnly says whether the file system is read-only, whatever its mounts are.
func (m Mount) SuperReadOnly() bool { return hasOption(m.Super, "ro") }

func hasOption(list, want string) bool {
	for o := range strings.SplitSeq(list, ",") {
		if o == want {
			return true
		}
	}
	return false
}

// Parse reads a whole mountinfo file. A line that does not have the documented
// form is an error naming the line: a mount that was passed over could be the
// one that matters.
func Parse(data []byte) ([]Mount, error) {
	var out []Mount
	for n := 1; len(data) > 0; n++ {
		line, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		if len(line) == 0 {
			continue
		}
		m, err := parseLine(string(line))
		if err != nil {
			return nil, fmt.Errorf("mountinfo line %d: %w", n, err)
		}
		out = append(out, m)
	}
	return out, nil
}

func parseLine(line string) (Mount, error) {
	var m Mount
	f := strings.Split(line, " ")
	sep := -1
	for i := 6; i < len(f); i++ {
		if f[i] == "-" {
			sep = i
			break
		}
	}
	// The super options may hold spaces (a sloppy file system); everything
	// after the source is theirs.
	if sep < 0 || len(f) < sep+4 {
		return m, fmt.Errorf("%d fields", len(f))
	}
	var err error
	if m.ID, err = strconv.Atoi(f[0]); err != nil {
		return m, fmt.Errorf("mount id: %w", err)
	}
	if m.Parent, err = strconv.Atoi(f[1]); err != nil {
		return m, fmt.Errorf("parent id: %w", err)
	}
	maj, min, ok := strings.Cut(f[2], ":")
	if !ok {
		return m, fmt.Errorf("device %q", f[2])
	}
	a, err := strconv.ParseUint(maj, 10, 32)
	if err != nil {
		return m, fmt.Errorf("device: %w", err)
	}
	b, err := strconv.ParseUint(min, 10, 32)
	if err != nil {
		return m, fmt.Errorf("device: %w", err)
	}
	m.Major, m.Minor = uint32(a), uint32(b)
	m.Root, m.Point, m.Options = unescape(f[3]), unescape(f[4]), f[5]
	for _, o := range f[6:sep] {
		switch {
		case strings.HasPrefix(o, "shared:"):
			m.Shared = true
		case strings.HasPrefix(o, "master:"):
			m.Master = true
		}
	}
	m.FSType, m.Source, m.Super = unescape(f[sep+1]), unescape(f[sep+2]), strings.Join(f[sep+3:], " ")
	return m, nil
}

// unescape undoes the kernel's mangling (seq_path, mangle): `\` and three octal
// digits. Anything else stays as it is.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
