package landlock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"agent-sandbox/internal/seccomp"
	"agent-sandbox/internal/sys"
)

// A Restriction is what a command is put under.
type Restriction struct {
	Ruleset  *os.File // from Rules.Ruleset
	Nested   bool     // NESTED_SANDBOX
	Isolated bool     // no network: no internet sockets can be made
	// Probe is a folder that no rule grants and that the caller may write to. A
	// file in it shows that the rules are in force.
	Probe string
}

// Apply puts the calling thread, and all that it starts, under the restriction,
// and proves that it is in force: what worked before is refused. The thread must
// be locked, and is fit for nothing but to start the command.
func (r Restriction) Apply() error {
	p, err := newProbe(r.Probe)
	if err != nil {
		return fmt.Errorf("cannot make the file that shows the rules are in force: %w", err)
	}
	defer p.close()
	abi, err := ABI()
	if err != nil {
		return err
	}
	if err := sys.SetNoNewPrivs(); err != nil {
		return err
	}
	if err := sys.DropCapabilities(); err != nil {
		return err
	}
	if err := sys.LandlockRestrict(int(r.Ruleset.Fd())); err != nil {
		return err
	}
	if err := seccomp.Install(seccomp.Options{Landlock: true, Nested: r.Nested, Offline: r.Isolated}); err != nil {
		return err
	}
	if err := p.check(abi); err != nil {
		return fmt.Errorf("the restriction is not in force: %w", err)
	}
	return nil
}

// A probe is what the caller can do before the restriction and must not be able
// to do after it.
type probe struct {
	file     string
	socket   int // listens at an abstract name
	sockAddr syscall.SockaddrUnix
}

func newProbe(dir string) (*probe, error) {
	p := &probe{file: filepath.Join(dir, "probe"), socket: -1}
	f, err := os.OpenFile(p.file, os.O_RDWR|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	f.Close()
	if p.socket, err = syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0); err != nil {
		return nil, err
	}
	// Of this process alone, so no other can have taken it.
	p.sockAddr.Name = "@agent-sandbox-probe-" + strconv.Itoa(os.Getpid())
	if err := syscall.Bind(p.socket, &p.sockAddr); err != nil {
		return nil, err
	}
	return p, syscall.Listen(p.socket, 1)
}

func (p *probe) close() { syscall.Close(p.socket) }

// check tries the probe on the restricted thread.
func (p *probe) check(abi int) error {
	for what, open := range map[string]func() error{
		"a file could be written": func() error { return touch(p.file, os.O_WRONLY) },
		"a file could be read":    func() error { return touch(p.file, os.O_RDONLY) },
		"a file could be made":    func() error { return touch(p.file+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL) },
		"a file could be removed": func() error { return os.Remove(p.file) },
	} {
		if err := open(); !errors.Is(err, fs.ErrPermission) {
			return failed(what, err)
		}
	}
	if abi >= 3 {
		if err := os.Truncate(p.file, 0); !errors.Is(err, fs.ErrPermission) {
			return failed("a file could be truncated", err)
		}
	}
	if !sys.KeyctlRefused() {
		return errors.New("the system call filter lets keyctl through")
	}
	if abi < ScopesABI {
		return nil
	}
	s, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	if err := syscall.Connect(s, &p.sockAddr); err != syscall.EPERM {
		return failed("an abstract socket could be reached", err)
	}
	if err := syscall.Kill(os.Getppid(), 0); err != syscall.EPERM {
		return failed("a process outside could be signalled", err)
	}
	return nil
}

func failed(what string, err error) error {
	if err == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s, or could not be tried: %w", what, err)
}

func touch(path string, flags int) error {
	f, err := os.OpenFile(path, flags|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		f.Close()
	}
	return err
}

// TryOut puts the calling thread, which is fit for nothing afterwards, under rules
// that allow nothing, and says whether they hold.
func TryOut() error {
	set, err := new(Rules).Ruleset()
	if err != nil {
		return err
	}
	defer set.Close()
	if err := sys.SetNoNewPrivs(); err != nil {
		return err
	}
	if err := sys.LandlockRestrict(int(set.Fd())); err != nil {
		return err
	}
	if err := touch("/", os.O_RDONLY|syscall.O_DIRECTORY); !errors.Is(err, fs.ErrPermission) {
		return failed("a folder could be read", err)
	}
	return nil
}
