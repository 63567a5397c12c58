package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/execpath"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// User is who runs the suite, and the folders that are theirs.
type User struct {
	UID        int
	Name       string
	Home       string // $HOME
	PasswdHome string // home of the user database
	passwd     string // the user's line of it
	ConfigHome string // ${XDG_CONFIG_HOME:-~/.config}
	StateHome  string // ${XDG_STATE_HOME:-~/.local/state}
	RuntimeDir string // $XDG_RUNTIME_DIR where it is a folder of the user's alone, else empty
}

// Current finds the user of this process. The user database is asked through
// getent(1) where /etc/passwd does not have the user.
func Current() (User, error) {
	u := User{UID: os.Getuid(), Home: os.Getenv("HOME")}
	line, err := passwdLine(u.UID)
	if err == nil {
		f := strings.Split(line, ":")
		u.Name, u.PasswdHome, u.passwd = f[0], f[5], line
	}
	if u.Home == "" {
		u.Home = u.PasswdHome
	}
	if u.Name == "" {
		u.Name = strconv.Itoa(u.UID)
	}
	u.Home = cleanDir(u.Home)
	u.PasswdHome = cleanDir(u.PasswdHome)
	if !mountplan.CleanAbs(u.Home) || u.Home == "/" {
		return u, fmt.Errorf("HOME is %q: it has to be the absolute path of a folder other than /", u.Home)
	}
	u.ConfigHome = xdg("XDG_CONFIG_HOME", u.Home+"/.config")
	u.StateHome = xdg("XDG_STATE_HOME", u.Home+"/.local/state")
	u.RuntimeDir = runtimeDir(u.UID)
	return u, nil
}

func cleanDir(p string) string {
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	return p
}

// xdg is the value of a variable of the XDG base directory specification; a
// relative path in it is to be ignored.
func xdg(name, fallback string) string {
	if v := os.Getenv(name); filepath.IsAbs(v) {
		return filepath.Clean(v)
	}
	return fallback
}

// runtimeDir is $XDG_RUNTIME_DIR where it is the user's own and closed to
// others. A variable carried over by su names another user's: it counts as unset.
func runtimeDir(uid int) string {
	v := os.Getenv("XDG_RUNTIME_DIR")
	if !filepath.IsAbs(v) {
		return ""
	}
	v = filepath.Clean(v)
	st, err := sys.Lstat(v)
	if err != nil || !st.IsDir() || int(st.UID) != uid || st.Perm()&0o022 != 0 {
		return ""
	}
	return v
}

// passwdLine is the line of the user database for a uid.
func passwdLine(uid int) (string, error) {
	data, err := os.ReadFile("/etc/passwd")
	if err == nil {
		if l := lineWithID(data, uid, 7); l != "" {
			return l, nil
		}
	}
	out, err := getent("passwd", uid)
	if err != nil {
		return "", err
	}
	if l := lineWithID(out, uid, 7); l != "" {
		return l, nil
	}
	return "", fmt.Errorf("getent passwd %d: no such user", uid)
}

func getent(database string, id int) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	path, err := execpath.Host("getent", os.Getenv("PATH"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path, database, strconv.Itoa(id))
	// Neither the caller's variables nor its folder, which may be the project, have a
	// say in which libraries are loaded.
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin"}, "/"
	return cmd.Output()
}

// lineWithID is the line of passwd or group format whose third field is id.
func lineWithID(data []byte, id, fields int) string {
	want := strconv.Itoa(id)
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.Split(line, ":")
		if len(f) == fields && f[2] == want {
			return line
		}
	}
	return ""
}

// FilteredPasswd makes the files that FILTER_PASSWD shows: passwd and group with
// the system's accounts and the user's own, and nsswitch.conf that looks
// nowhere else, so that no name of another user is to be had.
func (u User) FilteredPasswd() ([]mountplan.File, error) {
	var files []mountplan.File
	for _, f := range []struct {
		path string
		make func([]byte) []byte
	}{{"/etc/passwd", u.passwdFile}, {"/etc/group", u.groupFile}, {"/etc/nsswitch.conf", nsswitchFile}} {
		data, err := os.ReadFile(f.path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		files = append(files, mountplan.File{Path: f.path, Content: f.make(data)})
	}
	return files, nil
}

// Accounts of the system have ids below this (login.defs(5), UID_MIN); nobody has 65534.
const firstUserID = 1000

const nobody = 65534

func systemID(field string) bool {
	id, err := strconv.Atoi(field)
	return err == nil && id >= 0 && (id < firstUserID || id == nobody)
}

func (u User) passwdFile(data []byte) []byte {
	var out bytes.Buffer
	own := false
	for line := range strings.SplitSeq(string(data), "\n") {
		f := strings.Split(line, ":")
		if len(f) != 7 || !systemID(f[2]) && f[2] != strconv.Itoa(u.UID) {
			continue
		}
		own = own || f[2] == strconv.Itoa(u.UID)
		out.WriteString(line + "\n")
	}
	if !own && u.passwd != "" {
		out.WriteString(u.passwd + "\n")
	}
	return out.Bytes()
}

func (u User) groupFile(data []byte) []byte {
	var out bytes.Buffer
	gids, _ := os.Getgroups()
	gids = append(gids, os.Getgid())
	slices.Sort(gids)
	gids = slices.Compact(gids)
	seen := map[string]bool{}
	keep := func(line string) {
		f := strings.Split(line, ":")
		if len(f) != 4 || seen[f[2]] {
			return
		}
		gid, err := strconv.Atoi(f[2])
		if err != nil || !systemID(f[2]) && !slices.Contains(gids, gid) {
			return
		}
		seen[f[2]] = true
		// Of the members only the user: the list names the others.
		members := ""
		if slices.Contains(strings.Split(f[3], ","), u.Name) {
			members = u.Name
		}
		out.WriteString(f[0] + ":" + f[1] + ":" + f[2] + ":" + members + "\n")
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		keep(line)
	}
	for _, g := range gids {
		if !seen[strconv.Itoa(g)] {
			if line, err := getent("group", g); err == nil {
				keep(strings.TrimSpace(string(line)))
			}
		}
	}
	return out.Bytes()
}

// nsswitchFile keeps the databases that name no users (hosts, services, ...).
func nsswitchFile(data []byte) []byte {
	var out bytes.Buffer
	for line := range strings.SplitSeq(strings.TrimSuffix(string(data), "\n"), "\n") {
		switch db, _, ok := strings.Cut(strings.TrimSpace(line), ":"); {
		case ok && slices.Contains([]string{"passwd", "group", "shadow", "gshadow", "initgroups", "netgroup", "subid", "sudoers", "automount", "aliases"}, strings.TrimSpace(db)):
			out.WriteString(strings.TrimSpace(db) + ": files\n")
		default:
			out.WriteString(line + "\n")
		}
	}
	return out.Bytes()
}
