// Package host answers what the suite has to know of the machine and of the
// user: the file system behind mountplan.Host, the user database, the folders of
// the XDG base directory specification.
package host

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"agent-sandbox/internal/mountinfo"
	"agent-sandbox/internal/mountplan"
	"agent-sandbox/internal/sys"
)

// Answer is how long a file system that may hang (NFS, FUSE, an automounter) has
// for an answer before what lies on it counts as not there.
const Answer = 2 * time.Second

// FS is the host's file system as mountplan.Host sees it.
type FS struct {
	mounts []mountinfo.Mount
	slow   []string // mount points of file systems that may hang
	dead   []string // those that did
}

// NewFS reads the mount table.
func NewFS() (*FS, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	f := &FS{}
	if f.mounts, err = mountinfo.Parse(data); err != nil {
		return nil, err
	}
	for _, m := range f.mounts {
		if mayHang(m.FSType) {
			f.slow = append(f.slow, m.Point)
		}
	}
	return f, nil
}

func mayHang(fstype string) bool {
	for _, prefix := range []string{"nfs", "autofs", "fuse", "cifs", "smb", "ceph", "afs", "lustre", "gpfs", "beegfs", "9p", "glusterfs"} {
		if strings.HasPrefix(fstype, prefix) {
			return true
		}
	}
	return false
}

// Mounts is the mount table as it was when NewFS read it.
func (f *FS) Mounts() ([]mountinfo.Mount, error) { return f.mounts, nil }

// ask runs a call that may hang for ever and gives up after Answer. The thread
// that hangs is lost; the mount is not asked again.
func ask[T any](f *FS, path string, call func() (T, error)) (T, error) {
	on := ""
	for _, p := range f.slow {
		if mountplan.Under(path, p) && len(p) > len(on) {
			on = p
		}
	}
	if on == "" {
		return call()
	}
	var zero T
	if slices.Contains(f.dead, on) {
		return zero, &os.PathError{Op: "look up", Path: path, Err: mountplan.ErrNoAnswer}
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() { v, err := call(); done <- result{v, err} }()
	select {
	case r := <-done:
		return r.v, r.err
	case <-time.After(Answer):
		f.dead = append(f.dead, on)
		return zero, &os.PathError{Op: "look up", Path: path, Err: mountplan.ErrNoAnswer}
	}
}

// Lstat does not follow a link and does not trigger an automount.
func (f *FS) Lstat(path string) (mountplan.Info, error) {
	st, err := ask(f, path, func() (sys.Stat, error) { return sys.Lstat(path) })
	if err != nil {
		return mountplan.Info{}, err
	}
	info := mountplan.Info{Device: st.IsDevice(), Socket: st.IsSocket(), UID: st.UID, Dev: st.Dev, Ino: st.Ino, Nlink: st.Nlink, Size: st.Size}
	switch {
	case st.IsRegular():
		info.Type = mountplan.Regular
	case st.IsDir():
		info.Type = mountplan.Dir
	case st.IsLink():
		info.Type = mountplan.Link
	default:
		info.Type = mountplan.Other
	}
	return info, nil
}

// Readlink gives the text of a link.
func (f *FS) Readlink(path string) (string, error) {
	return ask(f, path, func() (string, error) { return os.Readlink(path) })
}

// ReadFile reads a regular file of at most limit bytes. The path has been
// resolved: a link in its last component is not followed, a FIFO does not block.
func (f *FS) ReadFile(path string, limit int64) ([]byte, error) {
	return ask(f, path, func() ([]byte, error) {
		file, err := sys.OpenRead(path)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		st, err := sys.Fstat(file)
		if err != nil {
			return nil, err
		}
		if !st.IsRegular() {
			return nil, &os.PathError{Op: "read", Path: path, Err: os.ErrInvalid}
		}
		return sys.ReadLimited(file, limit)
	})
}

// ReadDir gives the names in a folder, sorted.
func (f *FS) ReadDir(path string) ([]string, error) {
	return ask(f, path, func() ([]string, error) {
		entries, err := os.ReadDir(path)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names, err
	})
}

// MayCreate says whether the user may make an entry in the folder.
func (f *FS) MayCreate(dir string) bool {
	ok, err := ask(f, dir, func() (bool, error) { return sys.Writable(dir), nil })
	return ok && err == nil
}

// MakeFolder makes one folder below one that exists, following no link. That it is
// there already is no error.
func MakeFolder(path string) error {
	dir, err := sys.OpenNoFollow(filepath.Dir(path), sys.O_PATH)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := sys.MkdirAt(dir, filepath.Base(path), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
