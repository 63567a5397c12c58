package execd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"agent-sandbox/internal/denylist"
)

// TestArg is the first argument with which the daemon runs itself as the process
// of the self-test.
const TestArg = "self-test"

// Exit statuses of the process of the self-test.
const (
	testOpened = 0
	testDenied = 42
	testFailed = 1
)

// TestOpen is the main function of the process of the self-test: it opens a file.
func TestOpen(path string) int {
	f, err := os.Open(path)
	switch {
	case err == nil:
		f.Close()
		return testOpened
	case errors.Is(err, syscall.EPERM):
		return testDenied
	}
	return testFailed
}

// SelfTest has a process in a sandbox cgroup open a file before and after it is
// listed: a daemon that says it is ready has seen the kernel deny.
func (d *Daemon) SelfTest() error {
	dir := filepath.Join(d.cgroups, parentName, testName)
	id, err := makeCgroup(dir)
	if err != nil {
		return err
	}
	defer os.Remove(dir)
	f, err := os.CreateTemp(filepath.Join(d.RunDir, answerDir), "self-test.")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	objects, err := d.kernel.Descriptors(os.Getpid())
	if err != nil {
		return err
	}
	o, ok := objects[int(f.Fd())]
	if !ok {
		return errors.New("the kernel does not show a descriptor of this process")
	}
	if err := d.testOpen(dir, f.Name(), testOpened); err != nil {
		return fmt.Errorf("a file that is not listed: %w", err)
	}
	key := []denylist.Key{{Cgroup: id, Dev: uint32(o.Dev), Ino: o.Ino}}
	if err := d.kernel.PutObjects(key, []denylist.Value{{Flags: denylist.ObjDeny, Gen: o.Gen}}); err != nil {
		return err
	}
	err = d.testOpen(dir, f.Name(), testDenied)
	if err != nil {
		err = fmt.Errorf("a listed file: %w", err)
	}
	return errors.Join(err, d.kernel.DeleteObjects(key))
}

func (d *Daemon) testOpen(cgroup, path string, want int) error {
	dir, err := os.Open(cgroup)
	if err != nil {
		return err
	}
	defer dir.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{"agent-sandbox-execd", TestArg, path}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"},
		Files: []*os.File{nil, nil, os.Stderr},
		Sys:   &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())},
	})
	if err != nil {
		return err
	}
	state, err := p.Wait()
	if err != nil {
		return err
	}
	switch got := state.ExitCode(); {
	case got == want:
		return nil
	case got == testOpened:
		return errors.New("could be opened")
	case got == testDenied:
		return errors.New("could not be opened")
	default:
		return fmt.Errorf("the test's process ended with %v", state)
	}
}
