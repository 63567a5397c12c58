package reload

import (
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// write prints the lines: tab-separated, aligned on a terminal.
func write(w io.Writer, lines []Line) error {
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(string(l.Word) + "\t" + l.Kind + "\t" + record.Escape(l.Subject))
		if l.Detail != "" {
			b.WriteString("\t" + record.Escape(l.Detail))
		}
		b.WriteByte('\n')
	}
	if f, ok := w.(*os.File); ok && sys.IsTerminal(int(f.Fd())) {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		io.WriteString(t, b.String())
		return t.Flush()
	}
	_, err := io.WriteString(w, b.String())
	return err
}
