package sessionlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func newLog(t *testing.T, id string) (*Log, string) {
	t.Helper()
	top := t.TempDir()
	return New(Options{StateHome: top, UID: os.Getuid(), Folder: []string{"a", "log"}, ID: id, Level: Info, Keep: 24 * time.Hour, Max: 4000, Total: 20000}), top + "/a/log"
}

func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if st, err := f.Info(); err == nil {
			n += st.Size()
		}
	}
	return n
}

func TestOneLineAnEventFromALevelOn(t *testing.T) {
	l, dir := newLog(t, "x")
	l.Max = 1 << 20
	l.Line(Debug, "not this")
	if _, err := os.Stat(dir); err == nil {
		t.Error("a folder for nothing")
	}
	l.Line(Info, "a\nb\x1b %s", strings.Repeat("x", 2*maxLine))
	l.Line(Error, "c")
	data, _ := os.ReadFile(dir + "/x.log")
	if n := strings.Count(string(data), "\n"); n != 2 || strings.ContainsAny(string(data), "\x1b") || !strings.Contains(string(data), ` info a\nb\x1b x`) {
		t.Errorf("%d lines: %.200q", n, data)
	}
}

func TestALogHasABound(t *testing.T) {
	l, dir := newLog(t, "x")
	for i := range 1000 {
		l.Line(Warn, "line %d", i)
	}
	if n := size(t, dir); n > 4000 {
		t.Errorf("%d bytes", n)
	}
	data, _ := os.ReadFile(dir + "/x.log")
	if !strings.HasSuffix(string(data), "line 999\n") {
		t.Errorf("the last line is lost: %q", data)
	}
}

func TestTooManyLogsAreRemoved(t *testing.T) {
	l, dir := newLog(t, "x")
	os.MkdirAll(dir, 0o700)
	os.Chmod(filepath.Dir(dir), 0o700)
	write := func(name string, age time.Duration, n int) {
		t.Helper()
		if err := os.WriteFile(dir+"/"+name, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
		os.Chtimes(dir+"/"+name, time.Time{}, time.Now().Add(-age))
	}
	write("other.txt", 25*time.Hour, 1)
	for i := range 10 {
		write(fmt.Sprintf("%d.log", i), time.Duration(i)*time.Hour, 3000)
	}
	l.Line(Info, "x")
	for name, kept := range map[string]bool{"other.txt": true, "0.log": true, "5.log": true, "6.log": false, "9.log": false} {
		if _, err := os.Stat(dir + "/" + name); (err == nil) != kept {
			t.Errorf("%s: kept %v", name, err == nil)
		}
	}
}

// A session, or many of them, that writes all it can takes no room from those that
// wrote little, be they older.
func TestALoudLogTakesItsOwnRoom(t *testing.T) {
	_, top := newLog(t, "")
	open := func(id string) *Log {
		return New(Options{StateHome: filepath.Dir(filepath.Dir(top)), UID: os.Getuid(), Folder: []string{"a", "log"}, ID: id, Level: Info, Keep: 24 * time.Hour, Max: 4000, Total: 20000})
	}
	var quiet []string
	for i := range 30 {
		id := fmt.Sprintf("quiet%d", i)
		open(id).Line(Info, "evidence of %d", i)
		os.Chtimes(top+"/"+id+".log", time.Time{}, time.Now().Add(-time.Hour))
		quiet = append(quiet, id)
	}
	for i := range 24 {
		l := open(fmt.Sprintf("loud%d", i))
		for j := range 300 {
			l.Line(Warn, "line %d", j)
			if n := size(t, top); n > 20000 {
				t.Fatalf("%d bytes", n)
			}
		}
	}
	for _, id := range quiet {
		if data, _ := os.ReadFile(top + "/" + id + ".log"); !strings.Contains(string(data), "evidence") {
			t.Errorf("the log of %s: %q", id, data)
		}
	}
	if _, err := os.Stat(top + "/loud23.log"); err != nil {
		t.Error(err)
	}
}

func TestOldLogsAreRemoved(t *testing.T) {
	l, dir := newLog(t, "x")
	l.Total = 0
	os.MkdirAll(dir, 0o700)
	os.Chmod(filepath.Dir(dir), 0o700)
	for _, name := range []string{"new.log", "old.log"} {
		os.WriteFile(dir+"/"+name, nil, 0o600)
	}
	os.Chtimes(dir+"/old.log", time.Time{}, time.Now().Add(-25*time.Hour))
	l.Line(Info, "x")
	if files, _ := filepath.Glob(dir + "/*"); len(files) != 2 || filepath.Base(files[0]) != "new.log" {
		t.Errorf("left: %q", files)
	}
}

func TestALinkIsNotFollowed(t *testing.T) {
	l, dir := newLog(t, "x")
	os.MkdirAll(dir, 0o700)
	os.Chmod(filepath.Dir(dir), 0o700)
	victim := filepath.Dir(dir) + "/victim"
	os.WriteFile(victim, []byte("untouched"), 0o600)
	os.Symlink(victim, dir+"/x.log")
	l.Line(Info, "x")
	if data, _ := os.ReadFile(victim); string(data) != "untouched" {
		t.Errorf("%q", data)
	}
}
