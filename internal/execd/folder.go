package execd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"agent-sandbox/internal/sys"
)

// The folders of requests and answers lie on a tmpfs of their own: what users
// put there takes no room from others.
const (
	requestDir   = "req"
	answerDir    = "ans"
	folderSize   = 8 << 20
	folderInodes = 16384
	warnSuffix   = ".warnings"
	answerTime   = 10 * time.Second // the launcher waits 5 s

	// answersOfUser is how many answers of one uid may lie there.
	answersOfUser = 128
)

type folder struct {
	path     string
	req      *os.File
	dev, ino uint64 // of req, dev as the kernel numbers it

	mu      sync.Mutex
	answers map[string]*time.Timer
	given   map[uint32][]string // names of the answers of a uid, oldest first
}

// openFolder makes what is missing and opens the folders.
func openFolder(path string) (*folder, error) {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	top, err := sys.OpenNoFollow(path, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	st, err := sys.Fstat(top)
	mounted := sys.Tmpfs(int(top.Fd()))
	top.Close()
	if err != nil {
		return nil, err
	}
	// /run is a tmpfs itself: ours is another file system than its folder's.
	above, err := sys.Lstat(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	if !mounted || above.Dev == st.Dev {
		if err := sys.MountTmpfs(path, 0o755, folderSize, folderInodes); err != nil {
			return nil, err
		}
	}
	f := &folder{path: path, answers: map[string]*time.Timer{}, given: map[uint32][]string{}}
	for name, mode := range map[string]os.FileMode{requestDir: 0o777 | os.ModeSticky, answerDir: 0o755} {
		p := filepath.Join(path, name)
		if err := os.Mkdir(p, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		if err := os.Chmod(p, mode); err != nil { // whatever the umask is
			return nil, err
		}
	}
	if f.req, err = sys.OpenNoFollow(filepath.Join(path, requestDir), os.O_RDONLY); err != nil {
		return nil, err
	}
	if st, err = sys.Fstat(f.req); err != nil {
		f.close()
		return nil, err
	}
	f.dev, f.ino = kernelDev(st.Dev), st.Ino
	return f, nil
}

// kernelDev is the kernel's dev_t of the dev_t that stat(2) gives; true for
// tmpfs, not for every file system.
func kernelDev(dev uint64) uint64 {
	major := dev>>8&0xfff | dev>>32&^0xfff
	minor := dev&0xff | dev>>12&^0xff&0xffffffff
	return major<<20 | minor&0xfffff
}

func (f *folder) close() { f.req.Close() }

func removeFolder(path string) error {
	st, err := sys.Lstat(path)
	if err != nil {
		return nil
	}
	if above, err := sys.Lstat(filepath.Dir(path)); err == nil && above.Dev != st.Dev {
		if err := sys.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
	return os.RemoveAll(path)
}

// watch starts to watch the request folder, then removes what lies there from
// before: its owners are not known any more. They ask again.
func (f *folder) watch() (*sys.CreateWatch, error) {
	w, err := sys.WatchCreate(filepath.Join(f.path, requestDir))
	if err != nil {
		return nil, err
	}
	return w, f.sweep()
}

// sweep removes everything in the request folder.
func (f *folder) sweep() error {
	dir, err := os.Open(filepath.Join(f.path, requestDir))
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		for _, n := range names {
			f.remove(n)
		}
		if err != nil {
			return nil
		}
	}
}

// remove removes an entry of the request folder, whatever it is, without
// following it.
func (f *folder) remove(name string) {
	if sys.UnlinkAt(f.req, name, false) == nil {
		return
	}
	if sys.UnlinkAt(f.req, name, true) != nil {
		os.RemoveAll(filepath.Join(f.path, requestDir, name))
	}
}

// answer writes an answer that only root can write, and the warnings, which
// only root and the user can read; the request is removed last, for that is what
// the launcher waits for.
func (f *folder) answer(name string, uid uint32, line string, warnings []byte) error {
	path := filepath.Join(f.path, answerDir, name)
	var err error
	if len(warnings) > 0 {
		err = writeNew(path+warnSuffix, warnings, 0o600)
		if err == nil {
			err = sys.GrantRead(path+warnSuffix, uid)
		}
	}
	err = errors.Join(err, writeNew(path, []byte(line+"\n"), 0o644))
	f.mu.Lock()
	if t := f.answers[name]; t != nil {
		t.Stop()
	}
	f.answers[name] = time.AfterFunc(answerTime, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.forget(uid, name)
	})
	f.given[uid] = append(f.given[uid], name)
	if old := f.given[uid]; len(old) > answersOfUser {
		f.forget(uid, old[0])
	}
	f.mu.Unlock()
	f.remove(name)
	return err
}

// forget removes an answer.
func (f *folder) forget(uid uint32, name string) {
	if t := f.answers[name]; t != nil {
		t.Stop()
		delete(f.answers, name)
	}
	f.given[uid] = slices.DeleteFunc(f.given[uid], func(n string) bool { return n == name })
	if len(f.given[uid]) == 0 {
		delete(f.given, uid)
	}
	path := filepath.Join(f.path, answerDir, name)
	os.Remove(path)
	os.Remove(path + warnSuffix)
}

// writeNew puts a file of root's in place of what was there, complete from the
// first moment on.
func writeNew(path string, data []byte, perm uint32) error {
	os.Remove(path)
	tmp := path + ".new"
	os.Remove(tmp)
	fd, err := sys.OpenFD(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return err
	}
	err = errors.Join(sys.WriteFD(fd, data), sys.ChmodFD(fd, perm))
	sys.CloseFD(fd)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	return err
}

// requestName says whether name has the form of a request: PID or PID.N.
func requestName(name string) bool {
	var digits, dots int
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c >= '0' && c <= '9':
			digits++
		case c == '.' && i > 0 && i < len(name)-1:
			dots++
		default:
			return false
		}
	}
	return digits > 0 && dots <= 1 && len(name) <= len(strconv.FormatUint(1<<63, 10))
}
