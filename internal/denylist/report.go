package denylist

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"agent-sandbox/internal/record"
)

// A Report is what a list reader found: which of its descriptors are what. The
// reader writes it as lines; the daemon asks the kernel what the descriptors are
// (bpf.Kernel.Descriptors) and makes a Set of both.
type Report struct {
	Refused  string // why the list cannot be used; the rest is then empty
	Lines    []uint64
	Files    []File
	Names    []Name
	Keep     []int // folders above a listed path
	Frozen   []int // the list and its folder
	Warnings []Warning
}

// A File is a listed regular file.
type File struct {
	Line    uint64 // LineID
	FD      int
	Overlay bool // on overlayfs: the reader opened it, to show what lies below
}

// A Name is an entry of a folder that must stay as it is.
type Name struct {
	Line uint64
	Dir  int // descriptor of the folder
	Name string
	Deny bool // what has this name is not to be opened either
}

// Lines of the report: a keyword and its fields. `end` is the last: a reader
// that dies before it has reported nothing.
const (
	wordLine   = "line"
	wordFile   = "file"
	wordName   = "name"
	wordKeep   = "keep"
	wordFrozen = "frozen"
	wordWarn   = "warn"
	wordRefuse = "refuse"
	wordEnd    = "end"
)

// Write writes the report's lines.
func (r *Report) Write(out io.Writer) error {
	var b []byte
	if r.Refused != "" {
		b = fmt.Appendf(b, "%s %s\n", wordRefuse, record.Escape(r.Refused))
	} else {
		num := func(v uint64) { b = strconv.AppendUint(append(b, ' '), v, 10) }
		line := func(word string, numbers ...uint64) {
			b = append(b, word...)
			for _, v := range numbers {
				num(v)
			}
		}
		for _, id := range r.Lines {
			line(wordLine, id)
			b = append(b, '\n')
		}
		for _, f := range r.Files {
			line(wordFile, f.Line, uint64(f.FD), bit(f.Overlay))
			b = append(b, '\n')
		}
		for _, n := range r.Names {
			line(wordName, n.Line, uint64(n.Dir), bit(n.Deny))
			b = append(append(append(b, ' '), record.Escape(n.Name)...), '\n')
		}
		for _, fd := range r.Keep {
			line(wordKeep, uint64(fd))
			b = append(b, '\n')
		}
		for _, fd := range r.Frozen {
			line(wordFrozen, uint64(fd))
			b = append(b, '\n')
		}
		for _, x := range r.Warnings {
			line(wordWarn, uint64(x.N))
			b = append(append(append(b, ' '), record.Escape(x.Reason)...), '\n')
		}
	}
	_, err := out.Write(append(b, wordEnd+"\n"...))
	return err
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// ReadReport reads the lines of one report, up to `end`.
func ReadReport(in *bufio.Reader) (*Report, error) {
	r := &Report{}
	for {
		s, err := in.ReadString('\n')
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		word, rest, _ := strings.Cut(strings.TrimSuffix(s, "\n"), " ")
		if word == wordEnd {
			return r, nil
		}
		if err := r.add(word, rest); err != nil {
			return nil, fmt.Errorf("list reader said %s: %w", strconv.Quote(word), err)
		}
	}
}

func (r *Report) add(word, rest string) error {
	f := fields{rest: rest}
	switch word {
	case wordLine:
		r.Lines = append(r.Lines, f.number())
	case wordFile:
		r.Files = append(r.Files, File{f.number(), int(f.number()), f.number() == 1})
	case wordName:
		r.Names = append(r.Names, Name{Line: f.number(), Dir: int(f.number()), Deny: f.number() == 1, Name: f.text()})
	case wordKeep:
		r.Keep = append(r.Keep, int(f.number()))
	case wordFrozen:
		r.Frozen = append(r.Frozen, int(f.number()))
	case wordWarn:
		r.Warnings = append(r.Warnings, Warning{int(f.number()), f.text()})
	case wordRefuse:
		r.Refused = f.text()
	default:
		return fmt.Errorf("unknown word")
	}
	if f.err == nil && f.rest != "" {
		return fmt.Errorf("too many fields")
	}
	return f.err
}

type fields struct {
	rest string
	err  error
}

func (f *fields) number() uint64 {
	s, rest, _ := strings.Cut(f.rest, " ")
	f.rest = rest
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && f.err == nil {
		f.err = err
	}
	return n
}

func (f *fields) text() string {
	s, err := record.Unescape(f.rest)
	f.rest = ""
	if err != nil && f.err == nil {
		f.err = err
	}
	return s
}
