package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"agent-sandbox/internal/host"
	"agent-sandbox/internal/sys"
)

// Registry is one folder of session records, held by a descriptor: the path is
// looked up once, through folders that belong to the user and are closed to others.
type Registry struct {
	dir *os.File
	// Path is for messages and for programs that are told a file by name.
	Path string
	uid  int
}

const app = "agent-sandbox"

// Homes gives every folder of the suite's state that the user may have: the ones
// whose sessions are looked at, and that every sandbox masks. The first is where
// new sessions are registered.
func Homes(u host.User) []string {
	var out []string
	for _, base := range []string{u.RuntimeDir, fmt.Sprintf("/run/user/%d", u.UID), u.StateHome, u.Home + "/.local/state"} {
		if base != "" && !slices.Contains(out, base+"/"+app) {
			out = append(out, base+"/"+app)
		}
	}
	if u.RuntimeDir == "" {
		// Without XDG_RUNTIME_DIR new records go to the state folder.
		slices.SortStableFunc(out, func(a, b string) int {
			return boolInt(a != u.StateHome+"/"+app) - boolInt(b != u.StateHome+"/"+app)
		})
	}
	return out
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Primary opens the registry in which new sessions are put, and makes it.
func Primary(u host.User) (*Registry, error) {
	home := Homes(u)[0]
	base := strings.TrimSuffix(home, "/"+app)
	if u.RuntimeDir == "" {
		if err := os.MkdirAll(base, 0o700); err != nil {
			return nil, err
		}
	}
	return openRegistry(base, u.UID, true)
}

// Existing opens every registry that is there. One that is not the user's alone
// is passed over with an error in errs.
func Existing(u host.User) (regs []*Registry, errs []error) {
	for _, home := range Homes(u) {
		r, err := openRegistry(strings.TrimSuffix(home, "/"+app), u.UID, false)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot use %q: %w", home, err))
		default:
			regs = append(regs, r)
		}
	}
	return regs, errs
}

func openRegistry(base string, uid int, create bool) (*Registry, error) {
	dir, err := sys.OpenPrivateDir(base, uid, create, app, "sessions")
	if err != nil {
		return nil, err
	}
	return &Registry{dir, base + "/" + app + "/sessions", uid}, nil
}

// OpenRegistry opens the registry a program was told by path.
func OpenRegistry(path string, uid int) (*Registry, error) {
	base, ok := strings.CutSuffix(path, "/"+app+"/sessions")
	if !ok {
		return nil, fmt.Errorf("%q is not a registry of sessions", path)
	}
	return openRegistry(base, uid, false)
}

// Close gives the descriptor back.
func (g *Registry) Close() { g.dir.Close() }

// File is the path of a record.
func (g *Registry) File(id string) string { return g.Path + "/" + id }

// DataDir is the path of the folder that keeps a session's files.
func (g *Registry) DataDir(id string) string { return g.Path + "/" + id + ".d" }

// lock holds the registry against other launches and clean-ups.
func (g *Registry) lock() (unlock func(), err error) {
	// A descriptor of its own: flock(2) locks belong to the open file.
	f, err := sys.OpenAt(g.dir, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	if err := sys.Lock(f, true); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// newSession makes the folder of a new session under an id that no record has.
func (g *Registry) newSession() (id string, err error) {
	for range 100 {
		id = sys.RandomHex(4)
		if _, err := sys.StatAt(g.dir, id); err == nil {
			continue
		}
		err = sys.MakePrivateDir(g.dir, id+".d")
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("no free session id in %q: %w", g.Path, err)
}

// IDs lists the ids that have a record or a folder, sorted.
func (g *Registry) IDs() ([]string, error) {
	f, err := sys.OpenAt(g.dir, ".", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range names {
		if id := strings.TrimSuffix(n, ".d"); ValidID(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Read reads and validates the record of a session.
func (g *Registry) Read(id string) (Record, error) {
	return g.read(g.dir, id, id)
}

func (g *Registry) read(dir *os.File, name, id string) (Record, error) {
	data, err := g.readFile(dir, name)
	if err != nil {
		return Record{}, err
	}
	r, err := Parse(data)
	if err != nil {
		return r, err
	}
	if r.ID != id || r.UID != g.uid {
		return Record{}, fmt.Errorf("%w: it is that of session %q of uid %d", ErrInvalid, r.ID, r.UID)
	}
	return r, nil
}

// ReadStaged is Read for a record that does not count yet.
func (g *Registry) ReadStaged(id string) (Record, error) {
	dir, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return Record{}, err
	}
	defer dir.Close()
	return g.read(dir, staged, id)
}

// readFile reads a file of the registry: regular, the user's alone, one name.
func (g *Registry) readFile(dir *os.File, name string) ([]byte, error) {
	f, err := sys.OpenAt(dir, name, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := sys.Fstat(f)
	if err != nil {
		return nil, err
	}
	if !st.IsRegular() || st.Nlink != 1 {
		return nil, fmt.Errorf("%w: %q is not a plain file", ErrInvalid, f.Name())
	}
	if err := sys.CheckPrivate(f, g.uid); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	data, err := sys.ReadLimited(f, MaxRecord)
	if errors.Is(err, sys.ErrTooLarge) {
		return nil, fmt.Errorf("%w: larger than %d bytes", ErrInvalid, MaxRecord)
	}
	return data, err
}

// Write puts a record in place whole: to a temporary name, then renamed.
func (g *Registry) Write(r Record) error {
	data, err := r.checked()
	if err != nil {
		return err
	}
	return replaceIn(g.dir, r.ID, data)
}

// staged is the name, in the session's folder, of a record that does not count yet.
const staged = "record"

// Stage writes a record where it does not count yet; publish puts it in place.
func (g *Registry) Stage(r Record) (publish func() error, err error) {
	data, err := r.checked()
	if err != nil {
		return nil, err
	}
	if err := g.ReplaceData(r.ID, staged, data); err != nil {
		return nil, err
	}
	return func() error { return sys.RenameAt(g.dir, r.ID+".d/"+staged, r.ID) }, nil
}

// checked is Marshal: what could not be read again must not be written.
func (r Record) checked() ([]byte, error) {
	data := r.Marshal()
	_, err := Parse(data)
	return data, err
}

// WriteData writes one new file of a session's folder, mode 0600, or 0444 for
// what is shown inside as an empty file.
func (g *Registry) WriteData(id, name string, content []byte, perm uint32) error {
	dir, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return writeNew(dir, name, content, perm)
}

// ReplaceData writes a file of a session's folder, also where a reload that was
// killed has left one of that name.
func (g *Registry) ReplaceData(id, name string, content []byte) error {
	dir, err := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return replaceIn(dir, name, content)
}

// replaceIn writes a file whole to a temporary name and renames it.
func replaceIn(dir *os.File, name string, data []byte) error {
	tmp := fmt.Sprintf(".%s.%d", name, os.Getpid())
	sys.UnlinkAt(dir, tmp, false)
	err := writeNew(dir, tmp, data, 0o600)
	if err == nil {
		err = sys.RenameAt(dir, tmp, name)
	}
	if err != nil {
		sys.UnlinkAt(dir, tmp, false)
	}
	return err
}

func writeNew(dir *os.File, name string, content []byte, perm uint32) error {
	f, err := sys.OpenAt(dir, name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL, perm)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	// The caller's umask does not decide what a masked file looks like.
	if err2 := f.Chmod(fs.FileMode(perm)); err == nil {
		err = err2
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	return err
}

// chaperons is the folder, beside the registry and out of its reach, that has one
// for each session with a Slurm proxy.
const chaperons = "chaperon"

// ChaperonDir is the path of the folder that a session's request FIFO lies in. It
// is bound into the session, read-only.
func (g *Registry) ChaperonDir(id string) string {
	return strings.TrimSuffix(g.Path, "sessions") + chaperons + "/" + id
}

// OpenChaperonDir opens that folder, and with create makes it.
func (g *Registry) OpenChaperonDir(id string, create bool) (*os.File, error) {
	return sys.OpenPrivateDir(strings.TrimSuffix(g.Path, "/"+app+"/sessions"), g.uid, create, app, chaperons, id)
}

// removeChaperonDir takes it away. Nothing inside a session can write there.
func (g *Registry) removeChaperonDir(id string) {
	dir, err := g.OpenChaperonDir(id, false)
	if err != nil {
		return
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		sys.UnlinkAt(dir, n, false)
	}
	if up, err := sys.OpenAt(dir, "..", syscall.O_RDONLY|syscall.O_DIRECTORY, 0); err == nil {
		sys.UnlinkAt(up, id, true)
		up.Close()
	}
}

// remove takes away the record and the folder of a session.
func (g *Registry) remove(id string) error {
	err := sys.UnlinkAt(g.dir, id, false)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	sys.UnlinkAt(g.dir, id+".reload", false)
	g.removeChaperonDir(id)
	dir, err2 := sys.OpenAt(g.dir, id+".d", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err2 != nil {
		return err
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		sys.UnlinkAt(dir, n, false)
	}
	if err2 := sys.UnlinkAt(g.dir, id+".d", true); err == nil {
		err = err2
	}
	return err
}
