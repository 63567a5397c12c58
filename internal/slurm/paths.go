package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/sys"
)

// within says that path is dir or below it, by components.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// longest is the length of the longest of dirs that path is in, -1 for none.
func longest(path string, dirs []string) int {
	n := -1
	for _, d := range dirs {
		if within(path, d) && len(d) > n {
			n = len(d)
		}
	}
	return n
}

func (s *Session) roots() []string { return append([]string{s.Project}, s.Writable...) }

// visible says that a physical path is in the project or a writable path, and
// shows the session what the host has there; writable, that the session may
// write there: the deepest entry decides.
func (s *Session) visible(path string) bool {
	return longest(path, s.roots()) > longest(path, s.Masked)
}

func (s *Session) writable(path string) bool {
	return longest(path, s.roots()) > longest(path, s.Readonly)
}

// errOutside is the one answer for every path that leads out of what is visible,
// by its text or by a link: it says nothing of whether there is something.
var errOutside = errors.New("outside")

// trusted says what is wrong with the places that the real commands, and the launcher
// on the node, go by: the session must not be able to change them. Slurm loads programs
// that its configuration, and files beside it, name.
func (s *Session) trusted() error {
	if conf := os.Getenv("SLURM_CONF"); conf != "" {
		f, real, err := physical(conf)
		if err != nil {
			return fmt.Errorf("cannot use SLURM_CONF %s: %v", quote(conf), err)
		}
		f.Close()
		for _, p := range []string{conf, real} {
			if s.reaches(filepath.Clean(p)) {
				return refuse("keep Slurm's configuration where no sandbox can write, or start the session without SLURM_CONF",
					"SLURM_CONF %s lies where this session may write", quote(conf))
			}
		}
	}
	if f, real, err := physical(s.Project); err != nil || real != s.Project {
		if err == nil {
			f.Close()
		}
		return refuse("start a new session there", "the project %s was moved away", quote(s.Project))
	} else {
		f.Close()
	}
	return nil
}

// reaches says that the session may write in a folder above the file at path, or in
// the one that it lies in.
func (s *Session) reaches(path string) bool {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if s.writable(dir) {
			return true
		}
		if dir == "/" {
			return false
		}
	}
}

// folder opens the working directory of a request and returns where it really
// is. What is run there is run by this descriptor, whatever becomes of the name.
func (s *Session) folder(cwd string) (dir *os.File, path string, err error) {
	const hint = "change into the project first"
	if !filepath.IsAbs(cwd) || strings.IndexByte(cwd, 0) >= 0 {
		return nil, "", refuse(hint, "the working directory %s is no absolute path", quote(cwd))
	}
	w := s.walk("/")
	defer w.close()
	err = w.to(strings.Split(cwd, "/"))
	switch {
	case err == nil && w.missing != nil:
		err = syscall.ENOENT
	case err == nil:
		dir, err = w.folder()
	}
	if err == errOutside {
		return nil, "", refuse(hint, "the working directory %s is neither in the project nor in a writable path", quote(cwd))
	}
	if err != nil {
		return nil, "", refuse(hint, "cannot use the working directory %s: %v", quote(cwd), err)
	}
	return dir, w.place, nil
}

// maxLinks is how many links are followed in a path, as in Linux (MAXSYMLINKS).
const maxLinks = 40

// A walk goes along a path as Linux does, but looks only at what is visible: of
// what lies elsewhere, be it on the way, the host is asked nothing. Else what a
// path is answered with, and what a link there leads to, would tell what the host has.
type walk struct {
	s       *Session
	place   string   // where it is: physical
	at      *os.File // the place, O_PATH; nil where it is above what is visible, or not open yet
	missing []string // what comes after the place and is not there
	links   int
}

func (s *Session) walk(from string) *walk { return &walk{s: s, place: from} }

func (w *walk) close() {
	if w.at != nil {
		w.at.Close()
	}
	w.at = nil
}

// to goes along the components of a path.
func (w *walk) to(parts []string) error {
	for i, p := range parts {
		switch {
		case p == "" || p == ".":
		case w.missing != nil:
			if p == ".." {
				return syscall.ENOENT
			}
			w.missing = append(w.missing, p)
		case p == "..":
			w.close()
			w.place = filepath.Dir(w.place)
		default:
			target, err := w.step(p)
			if err != nil {
				return err
			}
			if target == "" {
				continue
			}
			if w.links++; w.links > maxLinks {
				return syscall.ELOOP
			}
			if filepath.IsAbs(target) {
				w.close()
				w.place = "/"
			}
			return w.to(append(strings.Split(target, "/"), parts[i+1:]...))
		}
	}
	if !w.s.visible(w.place) {
		return errOutside
	}
	return nil
}

// step goes down by one name, or returns the target of the link that has it.
func (w *walk) step(name string) (target string, err error) {
	next := filepath.Join(w.place, name)
	if !w.s.visible(next) {
		// The folders above what is visible are no links, nor need be looked at.
		for _, root := range w.s.roots() {
			if within(root, next) {
				w.close()
				w.place = next
				return "", nil
			}
		}
		return "", errOutside
	}
	f, err := w.open(next)
	if errors.Is(err, syscall.ENOENT) {
		w.missing = []string{name}
		return "", nil
	}
	if err != nil {
		return "", err
	}
	fi, err := f.Stat()
	if err == nil && fi.Mode()&os.ModeSymlink != 0 {
		target, err = sys.ReadlinkFD(int(f.Fd()))
		f.Close()
		return target, err
	}
	if err != nil {
		f.Close()
		return "", err
	}
	w.close()
	w.place, w.at = next, f
	return "", nil
}

// open opens a visible path that has no link in it: a link in it comes from
// someone who changes it meanwhile.
func (w *walk) open(path string) (*os.File, error) {
	if w.at != nil {
		f, err := sys.OpenPathAt(w.at, filepath.Base(path))
		return f, cause(err)
	}
	var root string
	for _, r := range w.s.roots() {
		if within(path, r) && len(r) > len(root) {
			root = r
		}
	}
	f, real, err := physical(root)
	if err != nil {
		return nil, errOutside
	}
	if real != root {
		f.Close()
		return nil, errOutside
	}
	for _, p := range strings.Split(strings.TrimPrefix(path, root), "/") {
		if p == "" {
			continue
		}
		g, err := sys.OpenPathAt(f, p)
		f.Close()
		if err != nil {
			return nil, cause(err)
		}
		f = g
	}
	return f, nil
}

// folder is the place itself.
func (w *walk) folder() (*os.File, error) {
	if w.at == nil { // it ended with ..
		f, err := w.open(w.place)
		if err != nil {
			return nil, err
		}
		w.at = f
	}
	if fi, err := w.at.Stat(); err != nil || !fi.IsDir() {
		return nil, syscall.ENOTDIR
	}
	// Moved away meanwhile, it may lie elsewhere.
	if real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", w.at.Fd())); err != nil || real != w.place {
		return nil, errOutside
	}
	f := w.at
	w.at = nil
	return f, nil
}

// physical opens a path for nothing but its place, links followed, and returns
// what it led to.
func physical(path string) (*os.File, string, error) {
	f, err := sys.OpenPath(path)
	if err != nil {
		return nil, "", cause(err)
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		f.Close()
		return nil, "", cause(err)
	}
	return f, real, nil
}

// cause is an error without the path.
func cause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// checkFile checks the value of --output, --error or --input, which may hold
// patterns, against what the session may use now. It is for the message: the
// file is opened inside the job's sandbox, where no link leads out.
func (s *Session) checkFile(flag, value, cwd string) error {
	if value == "/dev/null" {
		return nil
	}
	hint := "name a file in the project"
	if value == "" {
		return refuse(hint, "option \"--%s\": the name is empty", flag)
	}
	w := s.walk(cwd)
	if filepath.IsAbs(value) {
		w.place = "/"
	}
	defer w.close()
	// What is known before the job runs: the components before the first pattern.
	parts := strings.Split(value, "/")
	known := slices.IndexFunc(parts, func(p string) bool { return strings.ContainsAny(p, `%\`) })
	if known < 0 {
		known = len(parts)
	}
	if slices.Contains(parts[known:], "..") {
		return refuse(hint, "option \"--%s\": %s has .. after a pattern", flag, quote(value))
	}
	err := w.to(parts[:known])
	if err != nil && err != errOutside {
		return refuse(hint, "option \"--%s\": cannot use %s: %v", flag, quote(value), err)
	}
	path := filepath.Join(append([]string{w.place}, append(w.missing, parts[known:]...)...)...)
	switch {
	case flag == "input" && (err != nil || !s.visible(path)):
		return refuse(hint, "option \"--input\": %s is neither in the project nor in a writable path", quote(value))
	case flag != "input" && (err != nil || !s.writable(path)):
		return refuse(hint, "option \"--%s\": %s is not where this session may write", flag, quote(value))
	}
	return nil
}
