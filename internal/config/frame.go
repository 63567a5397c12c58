package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// An answer is what the bash says of the files that it sourced: a sequence of
// tokens, each ended by NUL, which no variable can hold.
//
//	NONCE begin N                       before file N
//	NONCE exit LINE                     instead of what follows: the bash ended
//	NONCE end N STATUS LINE
//	      NAME ATTRS COUNT KEY... VALUE...   for each variable of Vars
//	NONCE names NAME...                 after the last file
//	NONCE done
type answer struct {
	frames   []frame  // of the files that came to their end
	names    []string // all set variables that begin with a capital
	complete bool

	// How far the bash came: the file that was running or was the last to run, -1
	// where none began, and the line that ended the bash, 0 where it is not known.
	file, line int
}

// A frame is what the variables are after one file.
type frame struct {
	status int // of the file
	line   int // of its last command, 0 where that is not known
	vars   map[string]value
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

// parse reads the answer for n files. One that ends early is returned as far as it
// goes; one that is not of the documented form is an error.
func parse(data []byte, nonce string, n int) (*answer, error) {
	a := &answer{file: -1}
	p := &tokens{rest: string(data)}
	for i := range n {
		num := strconv.Itoa(i)
		if !p.expect(nonce, "begin", num) {
			return a, p.err()
		}
		a.file = i
		if p.skip(nonce, "exit") {
			a.line = p.line()
			return a, nil
		}
		if !p.expect(nonce, "end", num) {
			return a, p.err()
		}
		f, ok := p.frame()
		if !ok {
			return a, p.err()
		}
		a.frames = append(a.frames, f)
	}
	if !p.expect(nonce, "names") {
		return a, p.err()
	}
	for tok, ok := p.next(); tok != nonce; tok, ok = p.next() {
		if !ok {
			return a, p.err()
		}
		a.names = append(a.names, tok)
	}
	if !p.expect("done") || p.rest != "" {
		return a, p.err()
	}
	a.complete = true
	return a, nil
}

func (p *tokens) frame() (frame, bool) {
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
	return f, true
}

// tokens reads NUL-ended words. short is set where the data ends within what is
// expected: the bash ended early. wrong is set where something else stands there.
type tokens struct {
	rest  string
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
