// Package sessionlog keeps the logs of a session's helpers (mount-guard, chaperon):
// one line an event, of time, level and text, in a folder of the user's state that
// every sandbox masks. The agent's terminal sees nothing of it.
package sessionlog

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

// Levels, the least first.
const (
	Debug = "debug"
	Info  = "info"
	Warn  = "warn"
	Error = "error"
)

var levels = []string{Debug, Info, Warn, Error}

// Options say which log, and how much is kept.
type Options struct {
	StateHome string
	UID       int
	Folder    []string      // below StateHome
	ID        string        // of the session: the file is ID.log, and ID.old.log before it
	Level     string        // least level that is written
	Keep      time.Duration // logs that have not been written for so long are removed
	Max       int64         // bytes of the two files of a session
	Total     int64         // bytes of all files in the folder; 0 for no limit
}

// A Log is one session's. The file is made with its first line: a session in which
// nothing happens writes nothing to the home. It may be used by several goroutines.
type Log struct {
	Options
	mu     sync.Mutex
	dir    *os.File
	file   *os.File
	size   int64
	failed bool
}

// New is a log that is not open yet.
func New(o Options) *Log { return &Log{Options: o} }

// maxLine is how long a line may be; what a client sends is cut there.
const maxLine = 16 << 10

// Line writes a line. Control bytes in it are escaped. What cannot be logged is
// lost: the work goes on.
func (l *Log) Line(level, format string, args ...any) {
	if slices.Index(levels, level) < slices.Index(levels, l.Level) {
		return
	}
	text := fmt.Sprintf(format, args...)
	if len(text) > maxLine {
		text = text[:maxLine] + "…"
	}
	s := fmt.Sprintf("%s %s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), level, record.Escape(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed {
		return
	}
	if l.file != nil && l.size+int64(len(s)) > l.Max/2 {
		l.rotate()
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			l.failed = true
			return
		}
	}
	l.size += int64(len(s))
	io.WriteString(l.file, s)
}

// open opens the file, one component at a time and following no link.
func (l *Log) open() error {
	if l.dir == nil {
		if err := os.MkdirAll(l.StateHome, 0o700); err != nil {
			return err
		}
		dir, err := sys.OpenPrivateDir(l.StateHome, l.UID, true, l.Folder...)
		if err != nil {
			return err
		}
		l.dir = dir
	}
	l.prune()
	f, err := sys.OpenAt(l.dir, l.ID+".log", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o600)
	if err != nil {
		return err
	}
	st, err := sys.Fstat(f)
	if err == nil && !st.IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err == nil {
		err = sys.CheckPrivate(f, l.UID)
	}
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.size = f, st.Size
	return nil
}

// rotate starts the file anew and keeps the one before: a client that says much
// must fill no disk.
func (l *Log) rotate() {
	sys.RenameAt(l.dir, l.ID+".log", l.ID+".old.log")
	l.file.Close()
	l.file = nil
}

// prune removes logs that are too old, and where this one has no room to grow until
// the next time the largest: a session that says much takes from what it has said
// itself and from its like, and not from the many that have said little.
func (l *Log) prune() {
	dir, err := sys.OpenAt(l.dir, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	type file struct {
		name string
		st   sys.Stat
	}
	var files []file
	total := l.Max / 2
	for _, n := range names {
		st, err := sys.StatAt(dir, n)
		if err != nil || !strings.HasSuffix(n, ".log") || !st.IsRegular() {
			continue
		}
		if time.Since(time.Unix(0, st.MtimeNs)) > l.Keep {
			sys.UnlinkAt(dir, n, false)
			continue
		}
		files = append(files, file{n, st})
		total += st.Size
	}
	if l.Total == 0 {
		return
	}
	slices.SortFunc(files, func(a, b file) int {
		return cmp.Or(cmp.Compare(b.st.Size, a.st.Size), cmp.Compare(a.st.MtimeNs, b.st.MtimeNs))
	})
	for _, f := range files {
		if total <= l.Total {
			break
		}
		if sys.UnlinkAt(dir, f.name, false) == nil {
			total -= f.st.Size
		}
	}
}
