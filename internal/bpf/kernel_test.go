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

// Keys go to the kernel in one call, which stops at the first that it cannot take or
// does not have, and come back in several.
func TestManyKeys(t *testing.T) {
	const n = 3*eachBatch + 7
	pin := "/sys/fs/bpf/asb-test-many"
	t.Cleanup(func() { Detach(pin) })
	k, err := Open(pin, n, denylist.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	var keys []denylist.Key
	var names []denylist.NameKey
	var values []denylist.Value
	for i := range uint64(n) {
		keys = append(keys, denylist.Key{Cgroup: 7, Ino: i, Dev: 3})
		names = append(names, denylist.NameKey{Cgroup: 7, Dev: 3, Ino: 2, Hash: i})
		values = append(values, denylist.Value{Flags: 1, Line: i})
	}
	seen := func() (objects, inNames int) {
		one := map[denylist.Key]bool{}
		two := map[denylist.NameKey]bool{}
		err := errors.Join(
			k.Objects(func(key denylist.Key, v denylist.Value) {
				if key.Cgroup != 7 || key.Dev != 3 || v != values[key.Ino] {
					t.Errorf("%v has %v", key, v)
				}
				one[key] = true
			}),
			k.Names(func(key denylist.NameKey, v denylist.Value) {
				if key.Ino != 2 || v != values[key.Hash] {
					t.Errorf("%v has %v", key, v)
				}
				two[key] = true
			}))
		if err != nil {
			t.Fatal(err)
		}
		return len(one), len(two)
	}
	check := func(what string, want int) {
		t.Helper()
		if o, in := seen(); o != want || in != want {
			t.Errorf("%s: %d and %d keys, want %d", what, o, in, want)
		}
	}
	check("at first", 0)
	if err := errors.Join(k.PutObjects(keys, values), k.PutNames(names, values)); err != nil {
		t.Fatal(err)
	}
	check("filled", n)
	if err := k.PutObjects([]denylist.Key{{Cgroup: 8}}, values[:1]); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v", err)
	}
	var some []denylist.Key
	var someNames []denylist.NameKey
	for i := 0; i < n; i += 3 {
		some, someNames = append(some, keys[i]), append(someNames, names[i])
	}
	for range 2 { // the second time they are gone
		if err := errors.Join(k.DeleteObjects(some), k.DeleteNames(someNames)); err != nil {
			t.Fatal(err)
		}
		check("a third removed", n-len(some))
	}
	if err := errors.Join(k.DeleteObjects(keys), k.DeleteNames(names)); err != nil {
		t.Fatal(err)
	}
	check("all removed", 0)
}
