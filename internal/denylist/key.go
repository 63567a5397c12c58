// Package denylist turns denylists into the keys of the kernel's maps: the list
// format, the look-up of listed paths, the set of keys of a uid, and the
// difference of two sets. agent-sandbox-exec-denylist(5) is its document.
package denylist

import "encoding/binary"

// A Key names an object of a file system in one sandbox, as the BPF program sees
// it (struct deny_key in bpf/agent_sandbox.h).
type Key struct {
	Cgroup uint64 // id of the uid's cgroup
	Ino    uint64
	Dev    uint32 // s_dev of the super block
}

// A NameKey names an entry of a folder in one sandbox (struct name_key).
type NameKey struct {
	Cgroup uint64
	Dev    uint64 // of the folder
	Ino    uint64 // of the folder
	Hash   uint64 // NameHash of the name
}

// A Value says what holds for a key (struct deny_value).
type Value struct {
	Flags uint32
	Gen   uint32 // i_generation of the object; 0 for a name
	Line  uint64 // LineID of the list line the key comes from; 0 for none
}

// Flags of an object.
const (
	ObjDeny   = 1 << iota // not to be opened
	ObjAnyGen             // of any generation
	ObjNames              // a folder that has name keys
	ObjKeep               // a folder above a listed path: not to be renamed or removed
	ObjFrozen             // the user's list or its folder: not to be changed
)

// Flags of a name.
const (
	NameDeny = 1 << iota // not to be opened under this name, and the name stays
	NameHold             // the name stays
)

// NameHash is name_hash of bpf/agent_sandbox.bpf.c.
func NameHash(name string) uint64 {
	h := uint64(len(name))
	for len(name) > 0 {
		var w [8]byte
		n := copy(w[:], name)
		name = name[n:]
		h = (h ^ binary.LittleEndian.Uint64(w[:])) * 0x9e3779b97f4a7c15
		h ^= h >> 32
	}
	return h
}

// FilterWords is the number of words of filter_map.
const FilterWords = 1 << 10

// FilterBit names the bit of filter_map that has to be set for a key: maybe_listed of
// bpf/agent_sandbox.bpf.c.
func (k Key) FilterBit() (word uint32, bit uint) {
	h := (k.Ino ^ uint64(k.Dev)<<32) * 0x9e3779b97f4a7c15
	return uint32(h >> 54), uint(h >> 48 & 63)
}

// LineID is a digest of a listed path, never 0. It is kept with every key, so
// that after a restart the daemon knows for which line a key was made: a key
// stays while its line is listed.
func LineID(path string) uint64 { return NameHash(path) | 1 }

// An Object is what the kernel says of an open descriptor.
type Object struct {
	Dev, Ino uint64
	Gen      uint32
}

// Seen is one open of a list reader, as the BPF program saw it.
type Seen struct {
	Object
	Folder Object // the folder in which the file has its own name; zero where not known
}

// Settings are the variables of the BPF program (struct settings).
type Settings struct {
	Parent  uint64 // id of the cgroup agent-sandbox-exec
	Readers uint64 // id of the cgroup of the list readers
	ReqDev  uint64 // device of the request folder as the kernel numbers it, 0 for none
	ReqIno  uint64
}
