// Package bpf loads the program of bpf/agent_sandbox.bpf.c, attaches and pins it,
// and reads and writes its maps. Only agent-sandbox-execd imports it.
package bpf

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"agent-sandbox/internal/denylist"
)

// object is built from bpf/ by `make bpf` and compared by `make check`. It serves
// every little-endian machine: it reads no registers, and CO-RE finds the fields.
//
//go:embed agent_sandbox.bpf.o
var object []byte

// pins are the maps that are pinned: the name in bpffs, which takes no dot, for
// the name in the object.
var pins = map[string]string{
	"deny_map":       "deny_map",
	"filter_map":     "filter_map",
	"name_map":       "name_map",
	"agent_cgid_set": "agent_cgid_set",
	"bucket_map":     "bucket_map",
	"seen_map":       "seen_map",
	".bss":           "settings",
}

// linkPrefix starts the name of a pinned link; newSuffix ends that of one that
// is about to take its place.
const (
	linkPrefix = "link_"
	newSuffix  = "_new"
)

// mmapable is BPF_F_MMAPABLE: the library makes the maps behind a program's
// variables with it, and wants it in a map given in their place.
const mmapable = 1 << 10

// A Kernel is the loaded and attached program with its maps.
type Kernel struct {
	dir      string
	coll     *ebpf.Collection
	settings *ebpf.Map
	deny     *ebpf.Map
	names    *ebpf.Map
	cgids    *ebpf.Map
	seen     *ebpf.Map
	iter     *ebpf.Program
	filter   filter
}

// spec parses the object and leaves out the variant of inode_setattr that does
// not fit the running kernel: since 6.9 the hook has one argument more.
func spec(cache *btf.Cache) (*ebpf.CollectionSpec, error) {
	s, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("built-in object: %w", err)
	}
	kernel, err := cache.Kernel()
	if err != nil {
		return nil, fmt.Errorf("kernel BTF: %w", err)
	}
	var f *btf.Func
	if err := kernel.TypeByName("bpf_lsm_inode_setattr", &f); err != nil {
		return nil, fmt.Errorf("the kernel has no LSM hook inode_setattr: %w", err)
	}
	if len(f.Type.(*btf.FuncProto).Params) == 3 {
		delete(s.Programs, "inode_setattr")
	} else {
		delete(s.Programs, "inode_setattr_idmap")
	}
	return s, nil
}

// Open makes or reuses the maps pinned in dir, loads the program and attaches it
// beside the one that is attached already, which it then replaces: at no time is
// none attached. entries is the size of maps that do not exist yet.
func Open(dir string, entries uint32, settings denylist.Settings) (*Kernel, error) {
	cache := btf.NewCache() // decoding the kernel's types is most of the work
	s, err := spec(cache)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s.Maps["deny_map"].MaxEntries = entries
	s.Maps["name_map"].MaxEntries = entries
	s.Maps[".bss"].Flags |= mmapable
	maps := map[string]*ebpf.Map{}
	for name, pin := range pins {
		m, err := openMap(filepath.Join(dir, pin), s.Maps[name])
		if err != nil {
			return nil, err
		}
		defer m.Close() // the collection has clones
		maps[name] = m
		s.Maps[name].MaxEntries = m.MaxEntries() // those of the pinned map count
		s.Maps[name].Contents = nil
	}
	// Before the program is attached, so that it never runs with other values.
	if err := maps[".bss"].Put(uint32(0), settings); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	k := &Kernel{dir: dir}
	k.coll, err = ebpf.NewCollectionWithOptions(s, ebpf.CollectionOptions{MapReplacements: maps, Cache: cache})
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	k.settings, k.deny, k.names = k.coll.Maps[".bss"], k.coll.Maps["deny_map"], k.coll.Maps["name_map"]
	k.cgids, k.seen, k.iter = k.coll.Maps["agent_cgid_set"], k.coll.Maps["seen_map"], k.coll.Programs["descriptors"]
	k.filter.m = k.coll.Maps["filter_map"]
	err = k.filter.rebuild(k.deny)
	if err == nil {
		err = k.attach()
	}
	if err != nil {
		k.Close()
		return nil, err
	}
	return k, nil
}

// ErrLayout says that a pinned map is not as this version wants it.
var ErrLayout = errors.New("was made by a version with another layout")

// openMap opens the map pinned at path or makes and pins it.
func openMap(path string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.LoadPinnedMap(path, nil)
	switch {
	case err == nil:
		if m.Type() != spec.Type || m.KeySize() != spec.KeySize || m.ValueSize() != spec.ValueSize {
			m.Close()
			return nil, fmt.Errorf("%s %w", path, ErrLayout)
		}
		return m, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	spec = spec.Copy()
	spec.Name = filepath.Base(path)
	m, err = ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("make map %s: %w", spec.Name, err)
	}
	if err := m.Pin(path); err != nil {
		m.Close()
		return nil, fmt.Errorf("pin %s: %w", path, err)
	}
	return m, nil
}

// attach attaches every LSM program and pins its link under a name of its own,
// then renames it over the pin of its predecessor (a pinned LSM link cannot be
// updated in place: EINVAL). Until that rename both run, and a denial wins.
func (k *Kernel) attach() error {
	current := map[string]bool{}
	for name, p := range k.coll.Programs {
		if p.Type() != ebpf.LSM {
			continue
		}
		pin := filepath.Join(k.dir, linkPrefix+name)
		current[filepath.Base(pin)] = true
		os.Remove(pin + newSuffix) // of a daemon that was killed at this point
		l, err := link.AttachLSM(link.LSMOptions{Program: p})
		if err != nil {
			return fmt.Errorf("attach %s: %w", name, err)
		}
		err = l.Pin(pin + newSuffix)
		if err == nil {
			err = os.Rename(pin+newSuffix, pin)
		}
		l.Close() // the pin holds it
		if err != nil {
			return fmt.Errorf("pin %s: %w", name, err)
		}
	}
	return unpin(k.dir, func(name string) bool {
		return strings.HasPrefix(name, linkPrefix) && !current[name]
	})
}

// unpin removes the pins in dir that which selects; no dir is no error.
func unpin(dir string, which func(name string) bool) error {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range list {
		if !which(e.Name()) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Detach removes the links and then the maps pinned in dir: a program without
// its maps would deny nothing and still cost.
func Detach(dir string) error {
	if err := unpin(dir, func(name string) bool { return strings.HasPrefix(name, linkPrefix) }); err != nil {
		return err
	}
	if err := unpin(dir, func(string) bool { return true }); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Close gives up the descriptors; what is pinned stays.
func (k *Kernel) Close() { k.coll.Close() }

// Set changes the program's settings.
func (k *Kernel) Set(s denylist.Settings) error { return k.settings.Put(uint32(0), s) }
