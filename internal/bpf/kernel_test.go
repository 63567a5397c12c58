//go:build vm

package bpf

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"

	"agent-sandbox/internal/denylist"
)

// Built by test/vm/suites/denylist: a kernel with BPF LSM and root.

const cgroups = "/sys/fs/cgroup"

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

// TestMain lets the test binary be the sandboxed process: it opens its argument.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "open" {
		f, err := os.Open(os.Args[2])
		if errors.Is(err, syscall.EPERM) {
			os.Exit(42)
		}
		if err != nil {
			os.Exit(1)
		}
		f.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func openIn(t *testing.T, cgroup, path string) int {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command("/proc/self/exe", "open", path)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	err = c.Run()
	if c.ProcessState == nil {
		t.Fatal(err)
	}
	return c.ProcessState.ExitCode()
}

func TestListedFileIsDeniedInsideOnly(t *testing.T) {
	pin := "/sys/fs/bpf/asb-test"
	parent := cgroups + "/asb-test"
	box := parent + "/uid-7"
	if err := os.MkdirAll(box, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { Detach(pin); os.Remove(box); os.Remove(parent) })
	k, err := Open(pin, 1024, denylist.Settings{Parent: inode(t, parent)})
	if err != nil {
		var ve *ebpf.VerifierError
		if errors.As(err, &ve) {
			t.Fatalf("%+v", ve)
		}
		t.Fatal(err)
	}
	defer k.Close()
	dir := t.TempDir()
	secret, other := filepath.Join(dir, "secret"), filepath.Join(dir, "other")
	for _, p := range []string{secret, other} {
		if err := os.WriteFile(p, []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	f, err := os.OpenFile(secret, 0x200000 /* O_PATH */, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	objects, err := k.Descriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	o, ok := objects[int(f.Fd())]
	if !ok || o.Ino != inode(t, secret) {
		t.Fatalf("descriptor %d: %+v", f.Fd(), objects)
	}
	key := denylist.Key{Cgroup: inode(t, box), Dev: uint32(o.Dev), Ino: o.Ino}
	put := func(v denylist.Value) {
		t.Helper()
		if err := k.PutObjects([]denylist.Key{key}, []denylist.Value{v}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(what, cgroup, path string, want int) {
		t.Helper()
		if got := openIn(t, cgroup, path); got != want {
			t.Errorf("%s: exit status %d, want %d", what, got, want)
		}
	}
	check("not listed yet", box, secret, 0)
	put(denylist.Value{Flags: denylist.ObjDeny, Gen: o.Gen})
	check("listed, inside", box, secret, 42)
	check("not listed, inside", box, other, 0)
	check("listed, outside", cgroups, secret, 0)
	put(denylist.Value{Flags: denylist.ObjDeny, Gen: o.Gen + 1})
	check("another generation", box, secret, 0)
	put(denylist.Value{Flags: denylist.ObjDeny | denylist.ObjAnyGen, Gen: o.Gen + 1})
	check("any generation", box, secret, 42)
	child := box + "/child"
	if err := os.Mkdir(child, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(child)
	check("in a child cgroup", child, secret, 42)

	// A second daemon takes over, the first is gone: still denied.
	k2, err := Open(pin, 1024, denylist.Settings{Parent: inode(t, parent)})
	if err != nil {
		t.Fatal(err)
	}
	k2.Close()
	check("after the daemon is gone", box, secret, 42)
}
