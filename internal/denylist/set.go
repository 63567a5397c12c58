package denylist

import (
	"cmp"
	"fmt"
	"slices"
)

// A Set is what one uid's sandbox has in the kernel's maps, without the cgroup:
// sorted by key.
type Set struct {
	objects []object
	names   []name
}

type objectKey struct{ dev, ino uint64 }

type object struct {
	key   objectKey
	value Value
}

type nameKey struct {
	dir  objectKey
	hash uint64
}

type name struct {
	key   nameKey
	value Value
}

func (a objectKey) compare(b objectKey) int {
	return cmp.Or(cmp.Compare(a.dev, b.dev), cmp.Compare(a.ino, b.ino))
}

func (a nameKey) compare(b nameKey) int {
	return cmp.Or(a.dir.compare(b.dir), cmp.Compare(a.hash, b.hash))
}

// Size is the number of keys.
func (s *Set) Size() int { return len(s.objects) + len(s.names) }

// A Builder collects keys for a Set.
type Builder struct {
	objects map[objectKey]Value
	names   map[nameKey]Value
	listed  map[uint64]bool
}

// NewBuilder returns an empty builder.
func NewBuilder() *Builder {
	return &Builder{map[objectKey]Value{}, map[nameKey]Value{}, map[uint64]bool{}}
}

// Object adds an object. Two objects of one device and inode that differ in
// their generation (btrfs subvolumes number their inodes each from the start)
// become one of any generation: rather one file too many denied than one too few.
func (b *Builder) Object(o Object, flags uint32, line uint64) {
	k := objectKey{o.Dev, o.Ino}
	v, ok := b.objects[k]
	if ok && v.Gen != o.Gen {
		flags |= ObjAnyGen
	}
	v.Flags |= flags
	v.Gen = o.Gen
	v.Line = cmp.Or(line, v.Line)
	b.objects[k] = v
}

// Name adds a name in a folder.
func (b *Builder) Name(dir Object, text string, flags uint32, line uint64) {
	b.Object(dir, ObjNames, 0)
	b.name(nameKey{objectKey{dir.Dev, dir.Ino}, NameHash(text)}, flags, line)
}

func (b *Builder) name(k nameKey, flags uint32, line uint64) {
	v := b.names[k]
	v.Flags |= flags
	v.Line = cmp.Or(line, v.Line)
	b.names[k] = v
}

// Report adds what a list reader found. objects says what its descriptors are,
// seen what it opened: on an overlay the overlay's own inode, then those below.
func (b *Builder) Report(r *Report, objects map[int]Object, seen []Seen) error {
	get := func(fd int) (Object, error) {
		o, ok := objects[fd]
		if !ok {
			return o, fmt.Errorf("the kernel does not show descriptor %d of the list reader", fd)
		}
		return o, nil
	}
	for _, id := range r.Lines {
		b.listed[id] = true
	}
	overlays := false
	for _, f := range r.Files {
		o, err := get(f.FD)
		if err != nil {
			return err
		}
		b.Object(o, ObjDeny, f.Line)
		overlays = overlays || f.Overlay
	}
	if overlays {
		b.below(r, objects, seen)
	}
	for _, n := range r.Names {
		dir, err := get(n.Dir)
		if err != nil {
			return err
		}
		flags := uint32(NameHold)
		if n.Deny {
			flags |= NameDeny
		}
		b.Name(dir, n.Name, flags, n.Line)
	}
	for _, fd := range r.Keep {
		o, err := get(fd)
		if err != nil {
			return err
		}
		b.Object(o, ObjKeep, 0)
	}
	for _, fd := range r.Frozen {
		o, err := get(fd)
		if err != nil {
			return err
		}
		b.Object(o, ObjFrozen|ObjKeep, 0)
	}
	return nil
}

// below adds the real files under those of an overlay: what was seen after the
// overlay's own inode, up to the next listed file.
func (b *Builder) below(r *Report, objects map[int]Object, seen []Seen) {
	line := map[Object]uint64{}
	for _, f := range r.Files {
		if f.Overlay {
			line[objects[f.FD]] = f.Line
		}
	}
	text := map[uint64]string{}
	for _, n := range r.Names {
		if n.Deny {
			text[n.Line] = n.Name
		}
	}
	var current uint64
	for _, s := range seen {
		if l, ok := line[s.Object]; ok {
			current = l
		} else if current != 0 {
			b.Object(s.Object, ObjDeny, current)
			if s.Folder != (Object{}) {
				b.Name(s.Folder, text[current], NameDeny|NameHold, current)
			}
		}
	}
}

// Keep adds what old has and the builder has not: with all, everything (a
// request from inside a sandbox only adds); otherwise the keys whose line is
// still listed, such as those of a file that was replaced, for as long as a
// process may still hold or find the old one.
func (b *Builder) Keep(old *Set, all bool) {
	folders := map[objectKey]bool{}
	for _, n := range old.names {
		if all || b.listed[n.value.Line] {
			b.name(n.key, n.value.Flags, n.value.Line)
			folders[n.key.dir] = true
		}
	}
	for _, o := range old.objects {
		flags := o.value.Flags
		if !all && !b.listed[o.value.Line] {
			if !folders[o.key] {
				continue
			}
			flags = flags & (ObjNames | ObjAnyGen)
		}
		if v, ok := b.objects[o.key]; ok && v.Gen != o.value.Gen && !all {
			continue // the number is that of another file now
		}
		b.Object(Object{o.key.dev, o.key.ino, o.value.Gen}, flags, o.value.Line)
	}
}

// Set returns what was added.
func (b *Builder) Set() *Set {
	s := &Set{make([]object, 0, len(b.objects)), make([]name, 0, len(b.names))}
	for k, v := range b.objects {
		s.objects = append(s.objects, object{k, v})
	}
	for k, v := range b.names {
		s.names = append(s.names, name{k, v})
	}
	s.sort()
	return s
}

func (s *Set) sort() {
	slices.SortFunc(s.objects, func(a, b object) int { return a.key.compare(b.key) })
	slices.SortFunc(s.names, func(a, b name) int { return a.key.compare(b.key) })
}

// AddObject and AddName rebuild a set from the kernel's maps; Sort ends that.
func (s *Set) AddObject(k Key, v Value) {
	s.objects = append(s.objects, object{objectKey{uint64(k.Dev), k.Ino}, v})
}

// AddName is AddObject for a name.
func (s *Set) AddName(k NameKey, v Value) {
	s.names = append(s.names, name{nameKey{objectKey{k.Dev, k.Ino}, k.Hash}, v})
}

// Sort makes a set usable after AddObject and AddName.
func (s *Set) Sort() { s.sort() }

// A Change is one step of the way from one set to another. Old is the value
// before, New after; nil where there is none.
type Change[K any] struct {
	Key      K
	Old, New *Value
}

// Diff returns what has to change in the maps so that a cgroup that has old has
// want afterwards.
func Diff(cgroup uint64, old, want *Set) (objects []Change[Key], names []Change[NameKey]) {
	merge(old.objects, want.objects,
		func(a, b object) int { return a.key.compare(b.key) },
		func(k *object, before, after *object) {
			c := Change[Key]{Key: Key{cgroup, k.key.ino, uint32(k.key.dev)}}
			if before != nil {
				c.Old = &before.value
			}
			if after != nil {
				c.New = &after.value
			}
			if before == nil || after == nil || *c.Old != *c.New {
				objects = append(objects, c)
			}
		})
	merge(old.names, want.names,
		func(a, b name) int { return a.key.compare(b.key) },
		func(k *name, before, after *name) {
			c := Change[NameKey]{Key: NameKey{cgroup, k.key.dir.dev, k.key.dir.ino, k.key.hash}}
			if before != nil {
				c.Old = &before.value
			}
			if after != nil {
				c.New = &after.value
			}
			if before == nil || after == nil || *c.Old != *c.New {
				names = append(names, c)
			}
		})
	return objects, names
}

// merge walks two sorted lists at once.
func merge[T any](a, b []T, compare func(x, y T) int, visit func(key, before, after *T)) {
	for len(a) > 0 || len(b) > 0 {
		c := 0
		switch {
		case len(a) == 0:
			c = 1
		case len(b) == 0:
			c = -1
		default:
			c = compare(a[0], b[0])
		}
		switch {
		case c < 0:
			visit(&a[0], &a[0], nil)
			a = a[1:]
		case c > 0:
			visit(&b[0], nil, &b[0])
			b = b[1:]
		default:
			visit(&a[0], &a[0], &b[0])
			a, b = a[1:], b[1:]
		}
	}
}
