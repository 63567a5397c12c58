package denylist

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"agent-sandbox/internal/sys"
)

// A Reader opens a list and looks up its paths, with the identity of the process
// it runs in. It keeps what it found open with O_PATH until Close.
type Reader struct {
	root int
	dirs map[entry]int // folders reached, by where they were reached from
	keep map[int]bool
	held map[entry]bool
	// overlay says which folders lie on overlayfs.
	overlay map[int]bool
	line    uint64 // of the path that is looked up
	report  *Report
}

type entry struct {
	dir  int
	name string
}

// maxLinks is how many symbolic links a path may lead through (MAXSYMLINKS of
// the kernel).
const maxLinks = 40

// NewReader returns a reader of lists.
func NewReader() (*Reader, error) {
	root, err := sys.OpenRoot()
	if err != nil {
		return nil, fmt.Errorf("open /: %w", err)
	}
	return &Reader{root: root}, nil
}

// Close closes everything that the last Read opened.
func (r *Reader) Close() {
	for _, fd := range r.dirs {
		sys.CloseFD(fd)
	}
	if r.report != nil {
		for _, f := range r.report.Files {
			sys.CloseFD(f.FD)
		}
		for _, fd := range r.report.Frozen {
			if !r.keep[fd] {
				sys.CloseFD(fd)
			}
		}
	}
	r.dirs, r.keep, r.held, r.overlay, r.report = nil, nil, nil, nil, nil
}

// Read reads the list at name and looks up its paths. The home list is the
// user's own: it and its folder become frozen, it must not be a symbolic link,
// and symbolic links in it are skipped with a warning. The base list follows
// links, and a path that cannot be looked up is a warning there, since it must
// not stop everybody's launches.
func (r *Reader) Read(name string, home bool) *Report {
	r.Close()
	r.dirs, r.keep, r.held, r.overlay = map[entry]int{}, map[int]bool{}, map[entry]bool{}, map[int]bool{}
	r.report = &Report{}
	if err := r.read(name, home); err != nil {
		refused := err.Error()
		r.Close()
		return &Report{Refused: refused}
	}
	for fd := range r.keep {
		r.report.Keep = append(r.report.Keep, fd)
	}
	return r.report
}

func (r *Reader) read(name string, home bool) error {
	r.line = LineID(name)
	data, err := r.open(name, home)
	if err != nil {
		return err
	}
	lines, warnings, err := Parse(data)
	if err != nil {
		return err
	}
	r.report.Warnings = warnings
	if home {
		r.report.Lines = append(r.report.Lines, r.line)
	}
	for _, l := range lines {
		r.line = LineID(l.Path)
		r.report.Lines = append(r.report.Lines, r.line)
		reason, err := r.path(l.Path, home)
		if err != nil && home {
			return fmt.Errorf("line %d cannot be looked up: %w", l.N, err)
		}
		if err != nil {
			reason = "cannot be looked up: " + err.Error()
		}
		if reason != "" {
			r.report.Warnings = append(r.report.Warnings, Warning{l.N, reason})
		}
	}
	return nil
}

// open returns the content of the list; a list that does not exist is empty.
func (r *Reader) open(name string, home bool) ([]byte, error) {
	links := 0
	dir, last, err := r.walk(r.root, name, &links)
	if absent(err) {
		// The folder that is not there yet must not appear with a list of
		// the agent's making, as far as its own folder exists.
		if home && last == path.Base(path.Dir(name)) {
			r.hold(dir, last)
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", err)
	}
	if home {
		r.report.Frozen = append(r.report.Frozen, dir)
	}
	fd, err := sys.LookupAt(dir, last, false)
	if absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be opened: %w", err)
	}
	if home {
		r.report.Frozen = append(r.report.Frozen, fd)
	} else {
		defer sys.CloseFD(fd)
	}
	st, err := sys.FstatFD(fd)
	if err != nil {
		return nil, err
	}
	switch {
	case st.IsLink():
		return nil, errors.New("is a symbolic link, which is not followed")
	case !st.IsRegular():
		return nil, errors.New("is not a regular file")
	case st.Size > MaxSize:
		return nil, fmt.Errorf("larger than %d bytes", MaxSize)
	}
	// O_NONBLOCK: a lease on the file must not hold us up.
	list, err := sys.OpenFD(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	}
	defer sys.CloseFD(list)
	data, err := sys.ReadFD(list, MaxSize)
	if errors.Is(err, sys.ErrTooLarge) {
		return nil, fmt.Errorf("larger than %d bytes", MaxSize)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", errors.Unwrap(err))
	}
	return data, nil
}

// path looks one listed path up. reason says why it has no or not the full
// effect; err is of a look-up that failed for another reason than that
// something does not exist.
func (r *Reader) path(name string, home bool) (reason string, err error) {
	links := 0
	dir := r.root
	for {
		var last string
		dir, last, err = r.walk(dir, name, &links)
		if missing(err) {
			return "its folder does not exist", nil
		}
		if err != nil {
			return "", err
		}
		fd, st, mounted, err := sys.LookupFile(dir, last)
		if missing(err) {
			r.name(dir, last)
			return "does not exist", nil
		}
		if err != nil {
			return "", err
		}
		if st.IsRegular() {
			r.name(dir, last)
			return "", r.file(fd, dir, mounted)
		}
		if !st.IsLink() {
			sys.CloseFD(fd)
			return "is not a regular file", nil
		}
		r.name(dir, last)
		name, err = sys.ReadlinkFD(fd)
		sys.CloseFD(fd)
		if err != nil {
			return "", err
		}
		if home {
			return "is a symbolic link: list the file it leads to", nil
		}
		if links++; links > maxLinks {
			return "leads through too many symbolic links", nil
		}
		if strings.HasPrefix(name, "/") {
			dir = r.root
		}
	}
}

// file takes over the descriptor of a listed file in the folder dir. On an
// overlay it opens the file, so that the BPF program sees the real one below; that
// the user may not read it is no error: then nobody in his sandbox can.
func (r *Reader) file(fd, dir int, mounted bool) error {
	overlay, known := r.overlay[dir]
	if mounted || !known {
		at := dir
		if mounted {
			at = fd
		}
		var err error
		if overlay, err = sys.Overlay(at); err != nil {
			sys.CloseFD(fd)
			return err
		}
		if !mounted {
			r.overlay[dir] = overlay
		}
	}
	if overlay {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err == nil {
			f.Close()
		}
	}
	r.report.Files = append(r.report.Files, File{r.line, fd, overlay})
	return nil
}

func (r *Reader) name(dir int, name string) {
	r.report.Names = append(r.report.Names, Name{Line: r.line, Dir: dir, Name: name, Deny: true})
}

// hold keeps a name as it is, without denying what has it.
func (r *Reader) hold(dir int, name string) {
	if e := (entry{dir, name}); !r.held[e] {
		r.held[e] = true
		r.report.Names = append(r.report.Names, Name{Line: r.line, Dir: dir, Name: name})
	}
}

// absent says whether an error of a look-up means that there is nothing.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR)
}

// missing says whether a listed path leads nowhere: it does not either where
// links go in a circle, or a component is longer than a name can be.
func missing(err error) bool {
	return absent(err) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENAMETOOLONG)
}

// walk goes from dir to the folder of the last component of name, following
// links, and returns the folder and that component. Where a folder is missing it
// returns the last one there is and the name missing in it. Every folder on the
// way is kept as it is, and so is every link.
func (r *Reader) walk(dir int, name string, links *int) (int, string, error) {
	if strings.HasPrefix(name, "/") {
		dir = r.root
	}
	rest := strings.Split(name, "/")
	for len(rest) > 1 {
		c := rest[0]
		rest = rest[1:]
		if c == "" || c == "." {
			continue
		}
		next, target, err := r.step(dir, c)
		if err != nil {
			return dir, c, err
		}
		if target == "" {
			dir = next
			continue
		}
		if *links++; *links > maxLinks {
			return dir, c, syscall.ELOOP
		}
		if strings.HasPrefix(target, "/") {
			dir = r.root
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	// The last component, after links, may be one that is no name.
	if last := rest[0]; last == "" || last == "." || last == ".." {
		return dir, last, syscall.ENOENT
	}
	return dir, rest[0], nil
}

// step opens the folder c in dir, or returns the target of the link c.
func (r *Reader) step(dir int, c string) (next int, target string, err error) {
	if fd, ok := r.dirs[entry{dir, c}]; ok {
		return fd, "", nil
	}
	fd, err := sys.LookupAt(dir, c, true)
	if err == nil {
		r.dirs[entry{dir, c}] = fd
		r.keep[fd] = true
		return fd, "", nil
	}
	if !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
		return 0, "", err
	}
	fd, err2 := sys.LookupAt(dir, c, false)
	if err2 != nil {
		return 0, "", err2
	}
	defer sys.CloseFD(fd)
	st, err2 := sys.FstatFD(fd)
	if err2 != nil || !st.IsLink() {
		return 0, "", errors.Join(err2, err)
	}
	target, err = sys.ReadlinkFD(fd)
	if err == nil && target == "" {
		err = syscall.ENOENT
	}
	r.hold(dir, c)
	return 0, target, err
}
