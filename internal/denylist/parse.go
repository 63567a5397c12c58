package denylist

import (
	"bytes"
	"fmt"
	"strings"
)

// Limits of a list.
const (
	MaxSize  = 1 << 20 // bytes
	MaxLines = 8192    // paths
)

// A Line is one path of a list.
type Line struct {
	N    int // number of the line, from 1
	Path string
}

// A Warning says why a line has no or not the full effect.
type Warning struct {
	N      int    // number of the line, 0 for the whole list
	Reason string // never the line's content: it goes to the system's log, too
}

// Parse reads a list: one absolute path of a file a line, any bytes. Blank lines,
// lines that start with #, a byte order mark and carriage returns at the end of
// lines are ignored. A line that is no such path is a warning. Only a list that
// is too large is an error; then nothing of it is returned.
func Parse(data []byte) ([]Line, []Warning, error) {
	if len(data) > MaxSize {
		return nil, nil, fmt.Errorf("larger than %d bytes", MaxSize)
	}
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var lines []Line
	var warnings []Warning
	seen := map[string]bool{}
	for n := 1; len(data) > 0; n++ {
		raw, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		s := strings.TrimSuffix(string(raw), "\r")
		if strings.Trim(s, " \t") == "" || s[0] == '#' {
			continue
		}
		if reason := badPath(s); reason != "" {
			warnings = append(warnings, Warning{n, reason})
			continue
		}
		if seen[s] {
			continue
		}
		seen[s] = true
		if len(lines) == MaxLines {
			return nil, nil, fmt.Errorf("more than %d paths", MaxLines)
		}
		lines = append(lines, Line{n, s})
	}
	return lines, warnings, nil
}

// pathMax is PATH_MAX of limits.h without the NUL that ends a path.
const pathMax = 4095

func badPath(s string) string {
	switch {
	case strings.HasPrefix(s, "~"):
		return "not an absolute path (~ is not expanded)"
	case s[0] != '/':
		return "not an absolute path"
	case strings.IndexByte(s, 0) >= 0:
		return "has a NUL byte"
	case len(s) > pathMax:
		return "longer than a path can be"
	}
	switch s[strings.LastIndexByte(s, '/')+1:] {
	case "", ".", "..":
		return "names a folder, not a file"
	}
	return ""
}
