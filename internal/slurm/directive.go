package slurm

import (
	"bytes"
	"fmt"
	"strings"
)

// magic begins a line of a batch script that holds flags.
const magic = "#SBATCH"

// A directive is a #SBATCH line.
type directive struct {
	line  int // counted from 1
	words []string
}

// directives finds the #SBATCH lines as sbatch does (next_line, _get_argument
// and _opt_batch_script in Slurm's sbatch/opt.c): up to the first line that is
// neither empty nor a comment, each line's words apart, quotes and backslashes
// taken away, the rest after a # left out. Lines of other batch systems, which
// sbatch reads as well, are counted in pbs.
func directives(script []byte) (found []directive, pbs []int, err error) {
	var commands bool
	for n := 1; len(script) > 0; n++ {
		line, rest, _ := bytes.Cut(script, []byte("\n"))
		script = rest
		// sbatch looks for these in the whole script.
		if bytes.HasPrefix(line, []byte("#PBS")) || bytes.HasPrefix(line, []byte("#BSUB")) {
			pbs = append(pbs, n)
			continue
		}
		if commands {
			continue
		}
		if s, ok := bytes.CutPrefix(line, []byte(magic)); ok {
			words, err := directiveWords(string(s))
			if err != nil {
				return nil, nil, refuse("", "line %d of the script: %v", n, err)
			}
			found = append(found, directive{n, words})
			continue
		}
		if t := bytes.TrimLeft(line, spaces); len(t) > 0 && t[0] != '#' {
			commands = true
		}
	}
	return found, pbs, nil
}

// spaces are those of isspace(3) in the C locale.
const spaces = " \t\n\v\f\r"

func isSpace(c byte) bool { return strings.IndexByte(spaces, c) >= 0 }

func directiveWords(s string) ([]string, error) {
	var words []string
	for i := 0; ; {
		for i < len(s) && isSpace(s[i]) {
			i++
		}
		if i == len(s) {
			return words, nil
		}
		var word strings.Builder
		var q byte
		start := i
	scan:
		for ; i < len(s) && (q != 0 || !isSpace(s[i])); i++ {
			switch c := s[i]; {
			case c == '\\':
				// A blank outside quotes ends the word all the same.
				if i+1 < len(s) && (q != 0 || !isSpace(s[i+1])) {
					i++
					word.WriteByte(s[i])
				}
			case q == 0 && (c == '"' || c == '\''):
				q = c
			case q != 0 && c == q:
				q = 0
			case q == 0 && c == '#':
				break scan
			default:
				word.WriteByte(c)
			}
		}
		if q != 0 {
			return nil, fmt.Errorf("the quote %c is not closed", q)
		}
		if i < len(s) && s[i] == '#' {
			// A word may end where the comment begins.
			if i > start {
				words = append(words, word.String())
			}
			return words, nil
		}
		words = append(words, word.String())
	}
}

// scriptFlags parses the directives of a script, line by line: no flag's value
// comes from another line, and no word is left over.
func scriptFlags(t table, script []byte) (*set, []int, error) {
	all := &set{}
	found, pbs, err := directives(script)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range found {
		s, rest, err := t.parse(d.words, true)
		if err != nil {
			if r, ok := err.(*refusal); ok {
				err = &refusal{fmt.Sprintf("line %d of the script: %s", d.line, r.text), r.hint}
			}
			return nil, nil, err
		}
		if len(rest) > 0 {
			return nil, nil, refuse("one flag with its value a line", "line %d of the script: %s is no flag", d.line, quote(rest[0]))
		}
		for _, only := range []string{"wrap", "help", "usage", "version"} {
			if s.has(only) {
				return nil, nil, refuse("", "line %d of the script: --%s belongs on the command line", d.line, only)
			}
		}
		for _, n := range s.names {
			all.put(n, s.values[n])
		}
	}
	return all, pbs, nil
}
