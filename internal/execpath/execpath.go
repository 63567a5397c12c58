// Package execpath finds the file of a command as execvp(3) and a shell do,
// without the rest of os/exec.
package execpath

import (
	"io/fs"
	"os"
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
