package repair

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"agent-sandbox/internal/sys"
)

// A store makes the objects that are mounted over others: an empty file, an
// empty folder, files with a given content. They lie in one tmpfs in a mount
// namespace that only a thread of this process is in, so nobody else can open
// them but through the mounts made from them; and since each such mount has the
// object itself as its root, none leads to the others.
//
// open_tree(2) clones only from the mount namespace that the caller is in, hence
// the thread, which takes the calls over a channel.
type store struct {
	calls chan func(dir int)
	files int
}

const (
	emptyFile   = "empty-file"
	emptyFolder = "empty-folder"
)

// maxContent bounds a data file: what a launcher writes are filtered user
// databases and notes.
const maxContent = 64 << 20

func newStore() (*store, error) {
	s := &store{calls: make(chan func(int))}
	ready := make(chan error)
	go func() {
		// Never unlocked: the runtime ends the thread, it must not be reused
		// with its other mount namespace.
		runtime.LockOSThread()
		dir, err := openStore()
		ready <- err
		if err != nil {
			return
		}
		for call := range s.calls {
			call(dir)
		}
	}()
	return s, <-ready
}

func openStore() (int, error) {
	if err := sys.PrivateMountNamespace(); err != nil {
		return -1, fmt.Errorf("unshare: %w", err)
	}
	dir, err := sys.NewTmpfs("0700", sys.AttrNoSuid|sys.AttrNoDev|sys.AttrNoExec)
	if err != nil {
		return -1, fmt.Errorf("tmpfs: %w", err)
	}
	root, err := sys.OpenPathBelow(sys.AtCwd, "/")
	if err != nil {
		return -1, err
	}
	defer syscall.Close(root)
	// A mount that is attached nowhere cannot be cloned before Linux 6.15.
	if err := sys.MoveMount(dir, root); err != nil {
		return -1, fmt.Errorf("mount tmpfs: %w", err)
	}
	if err := writeFile(dir, emptyFile, nil, 0o444); err != nil {
		return -1, err
	}
	return dir, sys.MakeDir(dir, emptyFolder, 0o555)
}

func writeFile(dir int, name string, content io.Reader, mode os.FileMode) error {
	fd, err := sys.OpenFile(dir, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if content != nil {
		n, err := io.Copy(f, io.LimitReader(content, maxContent+1))
		if err != nil {
			return err
		}
		if n > maxContent {
			return fmt.Errorf("content is larger than %d bytes", maxContent)
		}
	}
	// By descriptor: the umask has no say.
	return f.Chmod(mode)
}

// add stores content and returns its name.
func (s *store) add(content io.Reader, mode os.FileMode) (string, error) {
	s.files++
	name := "content-" + strconv.Itoa(s.files)
	err := s.do(func(dir int) error { return writeFile(dir, name, content, mode) })
	return name, err
}

// clone makes a detached mount of one object of the store.
func (s *store) clone(name string, writable bool) (int, error) {
	fd := -1
	err := s.do(func(dir int) (err error) {
		fd, err = sys.CloneAt(dir, name)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("clone %s: %w", name, err)
	}
	if writable {
		return fd, nil
	}
	if err := sys.SetAttr(fd, sys.AttrReadOnly, 0, false); err != nil {
		syscall.Close(fd)
		return -1, fmt.Errorf("make %s read-only: %w", name, err)
	}
	return fd, nil
}

// assemble mounts tree in the store's namespace, where only this process sees it,
// has build change it there, and returns a clone of the result.
func (s *store) assemble(tree int, build func(root int) error) (int, error) {
	s.files++
	name := "stage-" + strconv.Itoa(s.files)
	whole := -1
	err := s.do(func(dir int) error {
		if err := sys.MakeDir(dir, name, 0o700); err != nil {
			return err
		}
		at, err := sys.OpenPathBelow(dir, name)
		if err != nil {
			return err
		}
		defer syscall.Close(at)
		if err := sys.MoveMount(tree, at); err != nil {
			return err
		}
		// The thread's working directory is its own since it left the namespace.
		defer sys.DetachAt(dir, name)
		if err := build(tree); err != nil {
			return err
		}
		whole, err = sys.CloneTree(tree)
		return err
	})
	return whole, err
}

func (s *store) do(f func(dir int) error) error {
	if s == nil {
		return errors.New("no store")
	}
	done := make(chan error)
	s.calls <- func(dir int) { done <- f(dir) }
	return <-done
}
