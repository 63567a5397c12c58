package slurm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// visible says that a physical path is in the project or a writable path;
// writable, that the session may write there: the deepest entry decides.
func (s *Session) visible(path string) bool {
	return within(path, s.Project) || longest(path, s.Writable) >= 0
}

func (s *Session) writable(path string) bool {
	w := longest(path, append([]string{s.Project}, s.Writable...))
	return w >= 0 && w > longest(path, s.Readonly)
}

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
	dir, path, err = physical(cwd)
	if err == nil {
		if fi, serr := dir.Stat(); serr != nil || !fi.IsDir() {
			dir.Close()
			err = syscall.ENOTDIR
		}
	}
	if err != nil {
		return nil, "", refuse(hint, "cannot use the working directory %s: %v", quote(cwd), err)
	}
	if !s.visible(path) {
		dir.Close()
		return nil, "", refuse(hint, "the working directory %s is neither in the project nor in a writable path", quote(cwd))
	}
	return dir, path, nil
}

// physical opens a path for nothing but its place, links followed, and returns
// what it led to.
func physical(path string) (*os.File, string, error) {
	f, err := sys.OpenPath(path)
	if err != nil {
		var pe *os.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, "", err
	}
	real, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		f.Close()
		return nil, "", err
	}
	return f, real, nil
}

// checkFile checks the value of --output, --error or --input, which may hold
// patterns, against what the session may write now. It is for the message: the
// file is opened inside the job's sandbox, where no link leads out.
func (s *Session) checkFile(flag, value, cwd string) error {
	if value == "/dev/null" {
		return nil
	}
	hint := "name a file in the project"
	if value == "" {
		return refuse(hint, "option \"--%s\": the name is empty", flag)
	}
	path := value
	if !filepath.IsAbs(path) {
		path = cwd + "/" + path
	}
	// What is known before the job runs: the components before the first pattern.
	parts := strings.Split(path, "/")
	known := len(parts)
	for i, p := range parts {
		if strings.ContainsAny(p, `%\`) {
			known = i
			break
		}
	}
	for _, p := range parts[known:] {
		if p == ".." {
			return refuse(hint, "option \"--%s\": %s has .. after a pattern", flag, quote(value))
		}
	}
	rest := parts[known:]
	head := parts[:known]
	for {
		f, real, err := physical("/" + strings.Join(head, "/"))
		if err == nil {
			f.Close()
			path = filepath.Join(append([]string{real}, rest...)...)
			break
		}
		if len(head) == 0 || !errors.Is(err, syscall.ENOENT) || head[len(head)-1] == ".." {
			return refuse(hint, "option \"--%s\": cannot use %s: %v", flag, quote(value), err)
		}
		rest = append([]string{head[len(head)-1]}, rest...)
		head = head[:len(head)-1]
		// A link that leads nowhere would be followed when the job writes.
		if _, err := os.Readlink("/" + strings.Join(append(head[:len(head):len(head)], rest[0]), "/")); err == nil {
			return refuse(hint, "option \"--%s\": %s is a link that leads nowhere", flag, quote(value))
		}
	}
	if flag == "input" {
		if s.visible(path) {
			return nil
		}
	} else if s.writable(path) {
		return nil
	}
	return refuse(hint, "option \"--%s\": %s is not where this session may write", flag, quote(value))
}
