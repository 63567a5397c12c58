// Package mountop has the operations of mount-repair(8): their lines, their
// results, and running the program on a session.
package mountop

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/record"
)

// Operations, the first word of a line (mount-repair(8)).
const (
	RO        = "ro"
	RW        = "rw"
	MaskFile  = "mask-file"
	MaskDir   = "mask-dir"
	Data      = "data"
	Dev       = "dev"
	Tmpfs     = "tmpfs"
	Private   = "private"
	RemountRO = "remount-ro"
	RemountRW = "remount-rw"
	Detach    = "detach"
	Keep      = "keep"
)

// An Op is one line of input.
type Op struct {
	Do     string
	Path   string
	Source string   // host path of the object, of data the file with the content
	Mode   string   // of tmpfs: octal mode; of data: "rw" or empty
	Skip   []string // of private
	Kind   string   // of keep: what the mount is, the operation that made it; or empty
}

// maxInput bounds the operations of one run: 100,000 of 600 bytes.
const maxInput = 64 << 20

// ReadOps reads all operations. A line that is not one is kept as an error in
// its place, so that every line has one result.
func ReadOps(r io.Reader) (ops []Op, errs map[int]error, err error) {
	errs = map[int]error{}
	br := bufio.NewReader(io.LimitReader(r, maxInput+1))
	for total := 0; ; {
		line, err := br.ReadString('\n')
		if total += len(line); total > maxInput {
			return nil, nil, fmt.Errorf("more than %d bytes of operations", maxInput)
		}
		if errors.Is(err, io.EOF) {
			if line != "" {
				// The writer died in the middle of it.
				return nil, nil, errors.New("the last operation has no end of line")
			}
			return ops, errs, nil
		}
		if err != nil {
			return nil, nil, err
		}
		op, err := ParseOp(line[:len(line)-1])
		if err != nil {
			errs[len(ops)] = err
		}
		ops = append(ops, op)
	}
}

// ParseOp reads one line without its newline.
func ParseOp(line string) (Op, error) {
	word, rest, ok := strings.Cut(line, " ")
	op := Op{Do: word}
	if !ok {
		return op, errors.New("not OPERATION PATH")
	}
	fields := strings.Split(rest, "\t")
	for i, f := range fields {
		v, err := record.Unescape(f)
		if err != nil {
			return op, fmt.Errorf("field %d: %w", i+1, err)
		}
		fields[i] = v
	}
	op.Path, fields = fields[0], fields[1:]
	paths := []string{op.Path}
	most := 1
	switch word {
	case RO, RW, Dev, MaskFile, MaskDir, RemountRW:
		if len(fields) > 0 {
			op.Source = fields[0]
			paths = append(paths, op.Source)
		}
	case RemountRO, Detach:
		most = 0
	case Keep:
		most = 3
		if len(fields) > 0 {
			switch op.Kind = fields[0]; op.Kind {
			case RO, RW, Dev, MaskFile, MaskDir, Data, Tmpfs:
			default:
				return op, errors.New("kind is not that of a mount")
			}
		}
		if len(fields) > 1 {
			op.Source = fields[1]
			paths = append(paths, op.Source)
		}
		if len(fields) > 2 {
			if op.Mode = fields[2]; op.Mode != "rw" || op.Kind != Data {
				return op, errors.New("mode is not rw")
			}
		}
	case Data:
		most = 2
		if len(fields) == 0 {
			return op, errors.New("no file with the content")
		}
		op.Source = fields[0]
		paths = append(paths, op.Source)
		if len(fields) > 1 {
			if op.Mode = fields[1]; op.Mode != "rw" {
				return op, errors.New("mode is not rw")
			}
		}
	case Tmpfs:
		op.Mode = "0755"
		if len(fields) > 0 {
			if op.Mode, ok = strings.CutPrefix(fields[0], "mode="); !ok || !octal(op.Mode) {
				return op, errors.New("option is not mode=OCTAL")
			}
		}
	case Private:
		most = len(fields)
		op.Skip = fields
		paths = append(paths, fields...)
	default:
		return op, errors.New("no such operation")
	}
	if len(fields) > most {
		return op, errors.New("too many fields")
	}
	for _, p := range paths {
		if !mountplan.CleanAbs(p) {
			return op, errors.New("path is not absolute and clean")
		}
	}
	if op.Source == "" {
		op.Source = op.Path
	}
	return op, nil
}

// Line is the inverse of ParseOp.
func (op Op) Line() string {
	fields := []string{op.Path}
	switch op.Do {
	case Data:
		fields = append(fields, op.Source)
		if op.Mode != "" {
			fields = append(fields, op.Mode)
		}
	case Tmpfs:
		if op.Mode != "" && op.Mode != "0755" {
			fields = append(fields, "mode="+op.Mode)
		}
	case Private:
		fields = append(fields, op.Skip...)
	case Keep:
		if op.Kind != "" {
			fields = append(fields, op.Kind)
			if op.Source != "" && op.Source != op.Path {
				fields = append(fields, op.Source)
			}
			if op.Kind == Data && op.Mode != "" {
				fields = append(fields, op.Mode)
			}
		}
	default:
		if op.Source != "" && op.Source != op.Path {
			fields = append(fields, op.Source)
		}
	}
	for i, f := range fields {
		fields[i] = record.Escape(f)
	}
	return op.Do + " " + strings.Join(fields, "\t")
}

func octal(s string) bool {
	if len(s) < 3 || len(s) > 5 {
		return false
	}
	for _, c := range s {
		if c < '0' || c > '7' {
			return false
		}
	}
	return true
}

// Results of an operation, the first word of its line.
const (
	OK          = "ok"
	Busy        = "busy"
	Refused     = "refused"
	Unsupported = "unsupported"
)

// A Result is one line of output.
type Result struct {
	Status string // OK, Busy, Refused or Unsupported
	Text   string // reason, or who keeps it busy
}

// Line is the result as mount-repair writes it.
func (r Result) Line() string {
	switch {
	case r.Text == "":
		return r.Status
	case r.Status == Busy:
		return r.Status + "\t" + record.Escape(r.Text)
	}
	return r.Status + " " + record.Escape(r.Text)
}

// ParseResult is the inverse of Result.Line.
func ParseResult(line string) (Result, error) {
	var r Result
	var text string
	i := strings.IndexAny(line, " \t")
	if i < 0 {
		r.Status = line
	} else {
		r.Status, text = line[:i], line[i+1:]
	}
	var err error
	if r.Text, err = record.Unescape(text); err != nil {
		return r, err
	}
	if s := r.Status; s != OK && s != Busy && s != Refused && s != Unsupported || s == OK && r.Text != "" || r.Line() != line {
		return r, fmt.Errorf("result %q is not known", line)
	}
	return r, nil
}
