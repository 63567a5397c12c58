package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A frame is what the bash says after one file: the file's status, the variables
// of Vars, and the names of all variables that begin with a capital.
//
// The answer is a sequence of tokens, each ended by NUL, which no variable can
// hold:
//
//	NONCE start NAME... NONCE
//	NONCE begin N                       before file N
//	NONCE exit LINE                     instead of what follows: the bash ended
//	NONCE end N STATUS LINE
//	      NAME ATTRS COUNT KEY... VALUE...   for each variable of Vars
//	      NAME... NONCE                      all names
//	NONCE done
type frame struct {
	status int
	line   int // of its last command, 0 where that is not known
	vars   map[string]value
	fresh  []string // names that were not set before this file
}

type kind byte

const (
	isScalar kind = iota
	isList
	isMap
)

// value is a variable as bash has it.
type value struct {
	kind   kind // means nothing where there are no values: unset, or an empty array
	keys   []string
	values []string
}

// endFrame is the last thing in a complete answer.
func endFrame(nonce string) string { return nonce + "\x00done\x00" }

var errFrame = errors.New("what came is not the answer")

// position is how far the bash came: the file that was running or was the last
// to run, -1 where none began, and the line that ended the bash, 0 where it is
// not known.
type position struct{ file, line int }

// parse reads an answer for n files. Where it ends early, the frames of the files
// that ended are returned, and last says how far the bash came. An answer that is
// not of the documented form is an error.
func parse(data []byte, nonce string, n int) (frames []frame, last position, err error) {
	last.file = -1
	p := &tokens{rest: string(data), nonce: nonce}
	seen := map[string]bool{}
	if !p.expect(nonce, "start") {
		return nil, last, p.err()
	}
	if _, ok := p.names(seen); !ok {
		return nil, last, p.err()
	}
	for i := range n {
		num := strconv.Itoa(i)
		if !p.expect(nonce, "begin", num) {
			return frames, last, p.err()
		}
		last.file = i
		if p.skip(nonce, "exit") {
			last.line = p.line()
			return frames, last, nil
		}
		if !p.expect(nonce, "end", num) {
			return frames, last, p.err()
		}
		f, ok := p.frame(seen)
		if !ok {
			return frames, last, p.err()
		}
		frames = append(frames, f)
	}
	if !p.expect(nonce, "done") || p.rest != "" {
		return frames[:max(0, n-1)], last, p.err()
	}
	return frames, last, nil
}

func (p *tokens) frame(seen map[string]bool) (frame, bool) {
	f := frame{vars: make(map[string]value, len(Vars))}
	var ok bool
	if f.status, ok = p.number(255); !ok {
		return f, false
	}
	f.line = p.line()
	for _, v := range Vars {
		if f.vars[v.Name], ok = p.value(v.Name); !ok {
			return f, false
		}
	}
	f.fresh, ok = p.names(seen)
	return f, ok
}

// tokens reads NUL-ended words. short is set where the data ends within what is
// expected: the bash ended early. wrong is set where something else stands there.
type tokens struct {
	rest  string
	nonce string
	short bool
	wrong bool
	bad   string // what stands there
}

func (p *tokens) next() (string, bool) {
	tok, rest, ok := strings.Cut(p.rest, "\x00")
	if !ok {
		p.short = true
		return "", false
	}
	p.rest = rest
	return tok, true
}

func (p *tokens) expect(want ...string) bool {
	for _, w := range want {
		tok, ok := p.next()
		if !ok {
			return false
		}
		if tok != w {
			p.wrong, p.bad = true, tok
			return false
		}
	}
	return true
}

// skip passes over the given tokens if they come next.
func (p *tokens) skip(want ...string) bool {
	rest, ok := strings.CutPrefix(p.rest, strings.Join(want, "\x00")+"\x00")
	if ok {
		p.rest = rest
	}
	return ok
}

// line is a number that the files may have tampered with: anything else is 0.
func (p *tokens) line() int {
	tok, _ := p.next()
	n, err := strconv.Atoi(tok)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

func (p *tokens) number(limit int) (int, bool) {
	tok, ok := p.next()
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(tok)
	if err != nil || n < 0 || n > limit || strconv.Itoa(n) != tok {
		p.wrong, p.bad = true, tok
		return 0, false
	}
	return n, true
}

func (p *tokens) value(name string) (value, bool) {
	var v value
	if !p.expect(name) {
		return v, false
	}
	attrs, ok := p.next()
	if !ok {
		return v, false
	}
	switch {
	case strings.Contains(attrs, "A"):
		v.kind = isMap
	case strings.Contains(attrs, "a"):
		v.kind = isList
	}
	// Every element has two tokens of at least a byte each still to come.
	count, ok := p.number(len(p.rest))
	if !ok {
		return v, false
	}
	for _, list := range []*[]string{&v.keys, &v.values} {
		for range count {
			tok, ok := p.next()
			if !ok {
				return v, false
			}
			*list = append(*list, tok)
		}
	}
	return v, true
}

// names reads names up to the nonce, adds them to seen and returns the new ones.
func (p *tokens) names(seen map[string]bool) ([]string, bool) {
	var fresh []string
	for {
		tok, ok := p.next()
		if !ok {
			return nil, false
		}
		if tok == p.nonce {
			return fresh, true
		}
		if !seen[tok] {
			seen[tok] = true
			fresh = append(fresh, tok)
		}
	}
}

// err is nil where the data only ended early.
func (p *tokens) err() error {
	switch {
	case p.short:
		return nil
	case p.wrong:
		return fmt.Errorf("%w: %.40q", errFrame, p.bad)
	}
	return errFrame
}
