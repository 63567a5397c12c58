package guard

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

const (
	keepLogs = 7 * 24 * time.Hour
	// maxLog bounds one session's log: a host that renames a file a thousand
	// times a second must not fill the disk.
	maxLog = 1 << 20
)

// A Log is the file log/<id>.log in the state folder: one line an event, of
// time, level and text. The agent's terminal sees nothing of it, and the folder
// is masked in every sandbox. The file is made with its first line: a session in
// which nothing happens writes nothing to the home.
type Log struct {
	stateHome string
	uid       int
	id        string
	file      *os.File
	left      int64
	failed    bool
}

// NewLog is the log of a session below the state folder.
func NewLog(stateHome string, uid int, id string) *Log {
	return &Log{stateHome: stateHome, uid: uid, id: id}
}

// open opens the file, one component at a time and following no link, and removes
// logs that have not been written for seven days.
func (l *Log) open() error {
	if err := os.MkdirAll(l.stateHome, 0o700); err != nil {
		return err
	}
	dir, err := sys.OpenPrivateDir(l.stateHome, l.uid, true, "agent-sandbox", "log")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		st, err := sys.StatAt(dir, n)
		if err == nil && strings.HasSuffix(n, ".log") && time.Since(time.Unix(0, st.MtimeNs)) > keepLogs {
			sys.UnlinkAt(dir, n, false)
		}
	}
	f, err := sys.OpenAt(dir, l.id+".log", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o600)
	if err != nil {
		return err
	}
	st, err := sys.Fstat(f)
	if err == nil && !st.IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err == nil {
		err = sys.CheckPrivate(f, l.uid)
	}
	if err != nil {
		f.Close()
		return err
	}
	l.file, l.left = f, maxLog-st.Size
	return nil
}

// Levels.
const (
	info  = "info"
	warn  = "warn"
	fault = "error"
)

func (l *Log) line(level, format string, args ...any) {
	if l.failed {
		return
	}
	if l.file == nil && l.open() != nil {
		// A session whose log cannot be kept is guarded all the same.
		l.failed = true
		return
	}
	if l.left <= 0 {
		return
	}
	text := record.Escape(fmt.Sprintf(format, args...))
	s := fmt.Sprintf("%s %s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), level, text)
	if l.left -= int64(len(s)); l.left <= 0 {
		s = fmt.Sprintf("%s %s the log is full\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), warn)
	}
	l.file.WriteString(s)
}
