package chaperon

import (
	"strconv"
	"strings"

	"agent-sandbox/internal/cli"
)

// maxShown is how many bytes of a client's words a log line has.
const maxShown = 4 << 10

func quote(s string) string {
	if len(s) > maxShown {
		return cli.Quote(s[:maxShown]) + "…"
	}
	return cli.Quote(s)
}

// describe is a request as the log has it: command, arguments, working directory. Of
// a script it has the size alone.
func describe(q *request) string {
	var b strings.Builder
	b.WriteString(q.Command)
	for i, a := range q.Args {
		if b.Len() > maxShown {
			b.WriteString(" … " + strconv.Itoa(len(q.Args)-i) + " more")
			break
		}
		b.WriteString(" " + quote(a))
	}
	b.WriteString(" in " + quote(q.Cwd))
	if q.HasScript {
		b.WriteString(", script of " + strconv.Itoa(len(q.Script)) + " bytes")
	}
	return b.String()
}
