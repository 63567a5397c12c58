// Package execpath finds the file of a command as execvp(3) and a shell do,
// without the rest of os/exec.
package execpath

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Look returns the path of the command name: name itself where it has a slash,
// else the first executable file of that name in the folders of path, the value
// of a PATH. Empty and relative folders are left out: they would let the working
// directory decide. The error is fs.ErrNotExist where there is none, or
// fs.ErrPermission where there is one that cannot be executed.
func Look(name, path string) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, check(name)
	}
	err := error(fs.ErrNotExist)
	if name == "" {
		return "", err
	}
	for dir := range strings.SplitSeq(path, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		file := strings.TrimSuffix(dir, "/") + "/" + name
		switch e := check(file); e {
		case nil:
			return file, nil
		case fs.ErrPermission:
			err = e
		}
	}
	return "", err
}

func check(file string) error {
	st, err := os.Stat(file)
	switch {
	case err == nil:
	case os.IsPermission(err):
		return fs.ErrPermission
	default:
		return fs.ErrNotExist
	}
	const executable = 1 // X_OK
	if st.IsDir() || syscall.Access(file, executable) != nil {
		return fs.ErrPermission
	}
	return nil
}

// Host finds a program that runs outside the sandbox for it (bwrap, firejail,
// getent): as Look does, but only a file that the caller could not have put there,
// since an agent writes what the caller can (a virtual environment's folder of the
// project is often first in PATH). The error is fs.ErrNotExist where there is none.
func Host(name, path string) (string, error) {
	err := error(fs.ErrNotExist)
	for dir := range strings.SplitSeq(path, ":") {
		file, e := Look(name, dir)
		if e == fs.ErrPermission {
			err = e
		}
		if e == nil && foreign(file) {
			return file, nil
		}
	}
	return "", err
}

// foreign says whether neither the file nor the folder it lies in, links followed,
// is the caller's to change.
func foreign(file string) bool {
	file, err := filepath.EvalSymlinks(file)
	if err != nil {
		return false
	}
	for _, p := range []string{file, filepath.Dir(file)} {
		st, err := os.Stat(p)
		if err != nil {
			return false
		}
		sys, ok := st.Sys().(*syscall.Stat_t)
		const write = 2 // W_OK
		switch uid := os.Getuid(); {
		case !ok || st.Mode().Perm()&0o002 != 0:
			return false
		case uid == 0 && sys.Uid != 0 && syscall.Access(p, write) == nil:
			return false // of a user's; in a user namespace root cannot write what is not mapped
		case uid != 0 && (int(sys.Uid) == uid || syscall.Access(p, write) == nil):
			return false
		}
	}
	return true
}
