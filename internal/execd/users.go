package execd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"agent-sandbox/internal/sys"
)

const passwdFile = "/etc/passwd"

// users finds the homes of users: in /etc/passwd, read again when it changes,
// and through getent(1) for those that are kept elsewhere.
type users struct {
	mu    sync.Mutex
	ino   uint64
	mtime int64
	homes map[uint32]string
	other map[uint32]otherHome
}

type otherHome struct {
	home  string
	until time.Time
}

const (
	otherTime  = time.Minute     // how long an answer of getent is believed
	getentTime = 2 * time.Second // how long it may take
)

var errNoUser = errors.New("is not in the user database")

// home is the home folder of a user.
func (u *users) home(uid uint32) (string, error) {
	if home, ok, err := u.local(uid); err != nil || ok {
		return home, err
	}
	u.mu.Lock()
	o, ok := u.other[uid]
	u.mu.Unlock()
	if ok && time.Now().Before(o.until) {
		return o.home, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), getentTime)
	defer cancel()
	out, err := exec.CommandContext(ctx, "/usr/bin/getent", "passwd", strconv.FormatUint(uint64(uid), 10)).Output()
	if err != nil {
		return "", fmt.Errorf("uid %d %w", uid, errNoUser)
	}
	home, ok := parsePasswd(out)[uid]
	if !ok {
		return "", fmt.Errorf("uid %d %w", uid, errNoUser)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	for k, v := range u.other {
		if now.After(v.until) {
			delete(u.other, k)
		}
	}
	u.other[uid] = otherHome{home, now.Add(otherTime)}
	return home, nil
}

func (u *users) local(uid uint32) (home string, ok bool, err error) {
	st, err := sys.Lstat(passwdFile)
	if err != nil {
		return "", false, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.homes == nil || st.Ino != u.ino || st.MtimeNs != u.mtime {
		data, err := os.ReadFile(passwdFile)
		if err != nil {
			return "", false, err
		}
		u.homes, u.ino, u.mtime = parsePasswd(data), st.Ino, st.MtimeNs
	}
	home, ok = u.homes[uid]
	return home, ok, nil
}

// parsePasswd returns the homes of passwd(5) lines; of several lines with one
// uid the first counts.
func parsePasswd(data []byte) map[uint32]string {
	out := map[uint32]string{}
	for line := range bytes.SplitSeq(data, []byte{'\n'}) {
		f := strings.Split(string(line), ":")
		if len(f) != 7 || !strings.HasPrefix(f[5], "/") {
			continue
		}
		uid, err := strconv.ParseUint(f[2], 10, 32)
		if _, dup := out[uint32(uid)]; err != nil || dup {
			continue
		}
		out[uint32(uid)] = f[5]
	}
	return out
}
