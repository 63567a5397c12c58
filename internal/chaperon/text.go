package chaperon

import (
	"fmt"
	"strings"

	"agent-sandbox/internal/cli"
)

// How much a log line has of a client's words: of each, and of all.
const (
	maxWord  = 256
	maxShown = 1 << 10
)

// clip is a client's word for the log.
func clip(s string) string {
	if len(s) > maxWord {
		return fmt.Sprintf("%s… (%d bytes)", s[:maxWord], len(s))
	}
	return s
}

func quote(s string) string { return cli.Quote(clip(s)) }

// clipped is an argument of a format for the log.
func clipped(arg any) any {
	switch v := arg.(type) {
	case string:
		return clip(v)
	case []string:
		var out []string
		for shown, w := range v {
			if size(out) > maxShown {
				return append(out, fmt.Sprintf("… %d more", len(v)-shown))
			}
			out = append(out, clip(w))
		}
		return out
	}
	return arg
}

func size(words []string) (n int) {
	for _, w := range words {
		n += len(w)
	}
	return n
}

// describe is a request as the log has it: command, arguments, working directory. Of
// a script it has the size alone, also of one in an argument.
func describe(q *request) string {
	var b strings.Builder
	b.WriteString(q.Command)
	script := false
	for i, a := range q.Args {
		if b.Len() > maxShown {
			fmt.Fprintf(&b, " … %d more", len(q.Args)-i)
			break
		}
		name, value, inline := strings.Cut(a, "=")
		switch {
		case script:
			fmt.Fprintf(&b, " (script of %d bytes)", len(a))
			script = false
		case q.Command == "sbatch" && isWrap(name) && inline:
			fmt.Fprintf(&b, " %s=(script of %d bytes)", quote(name), len(value))
		default:
			b.WriteString(" " + quote(a))
			script = q.Command == "sbatch" && isWrap(a)
		}
	}
	b.WriteString(" in " + quote(q.Cwd))
	if q.HasScript {
		fmt.Fprintf(&b, ", script of %d bytes", len(q.Script))
	}
	return b.String()
}

// isWrap says that a word is --wrap, or was likely meant to be: what is refused is
// logged as well.
func isWrap(word string) bool {
	name := strings.TrimLeft(word, "-")
	return name != word && strings.HasPrefix(strings.ToLower(name), "wr")
}
