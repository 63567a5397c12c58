package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/cilium/ebpf"

	"agent-sandbox/internal/denylist"
	"agent-sandbox/internal/sys"
)

type seenKey struct{ TGID, N uint32 }

type seenValue struct {
	Dev, Ino, DirDev, DirIno uint64
	Gen, DirGen              uint32
}

// Descriptors returns what the kernel has open under the descriptors of a process.
func (k *Kernel) Descriptors(pid int) (map[int]denylist.Object, error) {
	stream, err := sys.BPFTaskFiles(k.iter.FD(), pid)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	data, err := sys.ReadFD(int(stream.Fd()), 64<<20)
	if err != nil {
		return nil, fmt.Errorf("bpf iterator over descriptors: %w", err)
	}
	const size = 32 // struct descriptor
	le := binary.NativeEndian
	out := make(map[int]denylist.Object, len(data)/size)
	for ; len(data) >= size; data = data[size:] {
		if int(le.Uint32(data[24:])) != pid {
			continue
		}
		out[int(le.Uint32(data[20:]))] = denylist.Object{Dev: le.Uint64(data), Ino: le.Uint64(data[8:]), Gen: le.Uint32(data[16:])}
	}
	return out, nil
}

// Watch notes from now on what the list reader with this pid opens.
func (k *Kernel) Watch(pid int) error { return k.seen.Put(seenKey{uint32(pid), 0}, seenValue{}) }

// Seen returns what the reader opened since Watch, in order, and ends the watch.
func (k *Kernel) Seen(pid int) ([]denylist.Seen, error) {
	var count seenValue
	key := seenKey{TGID: uint32(pid)}
	if err := k.seen.LookupAndDelete(key, &count); err != nil {
		return nil, fmt.Errorf("seen_map: %w", err)
	}
	out := make([]denylist.Seen, 0, count.Ino)
	for key.N = 1; uint64(key.N) <= count.Ino; key.N++ {
		var v seenValue
		if err := k.seen.LookupAndDelete(key, &v); err != nil {
			return nil, fmt.Errorf("seen_map is full: %w", err)
		}
		out = append(out, denylist.Seen{
			Object: denylist.Object{Dev: v.Dev, Ino: v.Ino, Gen: v.Gen},
			Folder: denylist.Object{Dev: v.DirDev, Ino: v.DirIno, Gen: v.DirGen},
		})
	}
	return out, nil
}

// ErrFull says that a map has no room for the keys.
var ErrFull = errors.New("the kernel's map of listed files is full")

// PutObjects inserts or replaces keys.
func (k *Kernel) PutObjects(keys []denylist.Key, values []denylist.Value) error {
	if err := k.filter.add(keys...); err != nil {
		return err
	}
	return put(k.deny, wireKeys(keys), values)
}

// A wireKey is a denylist.Key as the kernel has it, without the padding of Go's: the
// library copies a slice of them as it is, and would take the other field by field.
type wireKey [20]byte

func wireKeys(keys []denylist.Key) []wireKey {
	out := make([]wireKey, len(keys))
	for i, k := range keys {
		binary.NativeEndian.PutUint64(out[i][0:], k.Cgroup)
		binary.NativeEndian.PutUint64(out[i][8:], k.Ino)
		binary.NativeEndian.PutUint32(out[i][16:], k.Dev)
	}
	return out
}

// eachObject calls f with every key and value of deny_map.
func eachObject(m *ebpf.Map, f func(denylist.Key, denylist.Value)) error {
	return each(m, func(w wireKey, v denylist.Value) {
		f(denylist.Key{
			Cgroup: binary.NativeEndian.Uint64(w[0:]),
			Ino:    binary.NativeEndian.Uint64(w[8:]),
			Dev:    binary.NativeEndian.Uint32(w[16:]),
		}, v)
	})
}

// A filter is filter_map. A bit stays when its key goes: it costs a look-up, and the
// next daemon leaves it out.
type filter struct {
	m *ebpf.Map

	mu    sync.Mutex
	words [denylist.FilterWords]uint64
}

// add sets the bits of keys that are about to be inserted.
func (f *filter) add(keys ...denylist.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	words := map[uint32]uint64{}
	for _, k := range keys {
		n, bit := k.FilterBit()
		if f.words[n]&(1<<bit) == 0 {
			words[n] |= f.words[n] | 1<<bit
		}
	}
	numbers, values := make([]uint32, 0, len(words)), make([]uint64, 0, len(words))
	for n, word := range words {
		numbers, values = append(numbers, n), append(values, word)
	}
	if err := put(f.m, numbers, values); err != nil {
		return fmt.Errorf("filter_map: %w", err)
	}
	for n, word := range words {
		f.words[n] = word
	}
	return nil
}

// rebuild makes the filter that of the keys that there are. An attached program of
// an earlier daemon misses none of them meanwhile.
func (f *filter) rebuild(deny *ebpf.Map) error {
	if err := eachObject(deny, func(k denylist.Key, _ denylist.Value) {
		n, bit := k.FilterBit()
		f.words[n] |= 1 << bit
	}); err != nil {
		return err
	}
	numbers := make([]uint32, len(f.words))
	for n := range numbers {
		numbers[n] = uint32(n)
	}
	if err := put(f.m, numbers, f.words[:]); err != nil {
		return fmt.Errorf("filter_map: %w", err)
	}
	return nil
}

// PutNames inserts or replaces keys.
func (k *Kernel) PutNames(keys []denylist.NameKey, values []denylist.Value) error {
	return put(k.names, keys, values)
}

// DeleteObjects removes keys; one that is gone is no error.
func (k *Kernel) DeleteObjects(keys []denylist.Key) error { return remove(k.deny, wireKeys(keys)) }

// DeleteNames removes keys; one that is gone is no error.
func (k *Kernel) DeleteNames(keys []denylist.NameKey) error { return remove(k.names, keys) }

// put inserts or replaces keys in one system call.
func put[K, V any](m *ebpf.Map, keys []K, values []V) error {
	if len(keys) == 0 {
		return nil
	}
	_, err := m.BatchUpdate(keys, values, nil)
	// E2BIG: max_entries is reached. ENOMEM: the kernel has no memory for it.
	if errors.Is(err, syscall.E2BIG) || errors.Is(err, syscall.ENOMEM) {
		return ErrFull
	}
	return err
}

// remove deletes keys. The kernel stops at one that is gone already.
func remove[K any](m *ebpf.Map, keys []K) error {
	for len(keys) > 0 {
		n, err := m.BatchDelete(keys, nil)
		if err == nil {
			return nil
		}
		if !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		keys = keys[n+1:]
	}
	return nil
}

// Objects calls f with every key and value.
func (k *Kernel) Objects(f func(denylist.Key, denylist.Value)) error { return eachObject(k.deny, f) }

// Names calls f with every key and value.
func (k *Kernel) Names(f func(denylist.NameKey, denylist.Value)) error { return each(k.names, f) }

// eachBatch is how many keys one system call returns: more than a bucket of the
// kernel's hash can have.
const eachBatch = 4096

func each[K, V any](m *ebpf.Map, f func(K, V)) error {
	keys, values := make([]K, eachBatch), make([]V, eachBatch)
	var at ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&at, keys, values, nil)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // that is the end
			return err
		}
		for i := range n {
			f(keys[i], values[i])
		}
		if err != nil {
			return nil
		}
	}
}

// Track puts a sandbox cgroup into agent_cgid_set.
func (k *Kernel) Track(cgroup uint64, uid uint32) error { return k.cgids.Put(cgroup, uid) }

// Untrack removes it.
func (k *Kernel) Untrack(cgroup uint64) error { return remove(k.cgids, []uint64{cgroup}) }

// Tracked calls f with every tracked cgroup.
func (k *Kernel) Tracked(f func(cgroup uint64, uid uint32)) error { return each(k.cgids, f) }

// A Status is what the kernel holds for one sandbox cgroup.
type Status struct {
	UID            uint32
	Cgroup         uint64
	Objects, Names int // files denied as objects, and as names in a folder
}

// ReadStatus counts the keys in the maps pinned in dir, with or without a daemon.
func ReadStatus(dir string) ([]*Status, error) {
	open := func(name string) (*ebpf.Map, error) {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, name), &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		return m, nil
	}
	set, err := open("agent_cgid_set")
	if err != nil {
		return nil, err
	}
	defer set.Close()
	deny, err := open("deny_map")
	if err != nil {
		return nil, err
	}
	defer deny.Close()
	names, err := open("name_map")
	if err != nil {
		return nil, err
	}
	defer names.Close()

	var out []*Status
	byID := map[uint64]*Status{}
	err = errors.Join(
		each(set, func(id uint64, uid uint32) {
			byID[id] = &Status{UID: uid, Cgroup: id}
			out = append(out, byID[id])
		}),
		eachObject(deny, func(key denylist.Key, v denylist.Value) {
			if s := byID[key.Cgroup]; s != nil && v.Flags&denylist.ObjDeny != 0 {
				s.Objects++
			}
		}),
		each(names, func(key denylist.NameKey, v denylist.Value) {
			if s := byID[key.Cgroup]; s != nil && v.Flags&denylist.NameDeny != 0 {
				s.Names++
			}
		}))
	return out, err
}
