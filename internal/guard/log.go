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
// is masked in every sandbox.
type Log struct {
	file *os.File
	left int64
}

// OpenLog opens the log of a session below the state folder, one component at a
// time and following no link, and removes logs that have not been written for
// seven days.
func OpenLog(stateHome string, uid int, id string) (*Log, error) {
	if err := os.MkdirAll(stateHome, 0o700); err != nil {
		return nil, err
	}
	dir, err := sys.OpenPrivateDir(stateHome, uid, true, "agent-sandbox", "log")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		st, err := sys.StatAt(dir, n)
		if err == nil && strings.HasSuffix(n, ".log") && time.Since(time.Unix(0, st.MtimeNs)) > keepLogs {
			sys.UnlinkAt(dir, n, false)
		}
	}
	f, err := sys.OpenAt(dir, id+".log", syscall.O_WRONLY|syscall.O_CREAT|syscall.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := sys.Fstat(f)
	if err == nil && !st.IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err == nil {
		err = sys.CheckPrivate(f, uid)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Log{f, maxLog - st.Size}, nil
}

// Levels.
const (
	info  = "info"
	warn  = "warn"
	fault = "error"
)

func (l *Log) line(level, format string, args ...any) {
	if l == nil || l.left <= 0 {
		return
	}
	text := record.Escape(fmt.Sprintf(format, args...))
	s := fmt.Sprintf("%s %s %s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), level, text)
	if l.left -= int64(len(s)); l.left <= 0 {
		s = fmt.Sprintf("%s %s the log is full\n", time.Now().UTC().Format("2006-01-02T15:04:05.000Z"), warn)
	}
	l.file.WriteString(s)
}
