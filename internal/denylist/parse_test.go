package denylist

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	data := "\xef\xbb\xbf/bom\r\n" + // 1
		"# comment\n\n   \n" + // 2, 3, 4
		"/with space \n" + // 5: the space is part of the name
		"relative\n~/home\n/dir/\n/dir/..\n/nul\x00\n" + // 6 to 10
		"/bom\n" + // 11: again
		"/bytes\xff\x01\n" + // 12
		"/" + strings.Repeat("x", 5000) + "\n" + // 13
		"/no final newline" // 14
	lines, warnings, err := Parse([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	want := []Line{{1, "/bom"}, {5, "/with space "}, {12, "/bytes\xff\x01"}, {14, "/no final newline"}}
	if fmt.Sprint(lines) != fmt.Sprint(want) {
		t.Errorf("lines %+v, want %+v", lines, want)
	}
	var at []int
	for _, w := range warnings {
		at = append(at, w.N)
	}
	if fmt.Sprint(at) != "[6 7 8 9 10 13]" {
		t.Errorf("warnings %v", warnings)
	}
}

func TestParseLimits(t *testing.T) {
	if _, _, err := Parse(make([]byte, MaxSize+1)); err == nil {
		t.Error("a list of more than MaxSize bytes is taken")
	}
	var b bytes.Buffer
	for i := range MaxLines {
		fmt.Fprintf(&b, "/%d\n", i)
	}
	if lines, _, err := Parse(b.Bytes()); err != nil || len(lines) != MaxLines {
		t.Errorf("MaxLines paths: %d, %v", len(lines), err)
	}
	if lines, _, err := Parse(append(b.Bytes(), "/more\n"...)); err == nil || lines != nil {
		t.Errorf("more than MaxLines paths: %d, %v", len(lines), err)
	}
}

// FuzzParse: whatever the bytes, a path that comes back can be looked up as it is,
// stands in the list, and gives itself when it is a list of its own.
func FuzzParse(f *testing.F) {
	f.Add([]byte("/a\n#b\r\n/c d\n~\n"))
	f.Add([]byte("\xef\xbb\xbf/a\x00\n//\n/./..\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines, warnings, err := Parse(data)
		if err != nil && (lines != nil || warnings != nil) {
			t.Error("an error with lines")
		}
		for _, l := range lines {
			if l.Path[0] != '/' || strings.ContainsAny(l.Path, "\x00\n") || len(l.Path) > pathMax || l.N < 1 {
				t.Errorf("line %+v", l)
			}
			if !bytes.Contains(data, []byte(l.Path)) {
				t.Errorf("path %q is not in the list", l.Path)
			}
			again, w, err := Parse([]byte(l.Path + "\n"))
			if err != nil || len(w) != 0 || len(again) != 1 || again[0].Path != l.Path {
				t.Errorf("path %q alone gives %+v, %v, %v", l.Path, again, w, err)
			}
		}
		for _, w := range warnings {
			if w.N < 1 || w.N > bytes.Count(data, []byte{'\n'})+1 || w.Reason == "" {
				t.Errorf("warning %+v", w)
			}
		}
	})
}

// FuzzReport: what a reader writes is what the daemon reads.
func FuzzReport(f *testing.F) {
	f.Add("name \n\\", "reason\xff", uint64(7), 3)
	f.Fuzz(func(t *testing.T, name, reason string, line uint64, fd int) {
		fd &= 1<<31 - 1
		r := &Report{Lines: []uint64{line}, Files: []File{{line, fd, true}}, Names: []Name{{line, fd, name, true}},
			Keep: []int{fd}, Frozen: []int{fd}, Warnings: []Warning{{fd, reason}}}
		for _, want := range []*Report{r, {Refused: "x" + reason}} {
			var b bytes.Buffer
			if err := want.Write(&b); err != nil {
				t.Fatal(err)
			}
			got, err := ReadReport(bufioReader(&b))
			if err != nil || fmt.Sprintf("%+v", *got) != fmt.Sprintf("%+v", *want) {
				t.Errorf("%+v comes back as %+v, %v", *want, got, err)
			}
		}
	})
}

func TestHalfAReportIsNone(t *testing.T) {
	if r, err := ReadReport(bufioReader(strings.NewReader("line 3\n"))); err == nil {
		t.Errorf("a report without end: %+v", r)
	}
}
