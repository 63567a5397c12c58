package denylist

import (
	"bufio"
	"io"
	"testing"
)

func bufioReader(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

// apply does to a model of the maps what a change says.
func apply(m map[Key]Value, changes []Change[Key]) {
	for _, c := range changes {
		if c.New != nil {
			m[c.Key] = *c.New
		}
	}
	for _, c := range changes {
		if c.New == nil {
			delete(m, c.Key)
		}
	}
}

func TestDiffLeadsFromOldToWant(t *testing.T) {
	build := func(objects ...Object) *Set {
		b := NewBuilder()
		for _, o := range objects {
			b.Object(o, ObjDeny, 7)
			b.Name(o, "name", NameDeny, 7)
		}
		return b.Set()
	}
	old := build(Object{1, 10, 1}, Object{1, 11, 1}, Object{2, 10, 1})
	want := build(Object{1, 11, 2}, Object{2, 10, 1}, Object{3, 1, 1})
	maps := map[Key]Value{}
	objects, _ := Diff(5, &Set{}, old)
	apply(maps, objects)
	objects, names := Diff(5, old, want)
	if len(objects) != 3 || len(names) != 2 {
		t.Errorf("changes %+v %+v", objects, names)
	}
	apply(maps, objects)
	if len(maps) != 3 || maps[Key{5, 11, 1}].Gen != 2 || maps[Key{5, 1, 3}].Flags&ObjDeny == 0 {
		t.Errorf("maps %+v", maps)
	}
	if objects, names := Diff(5, want, want); len(objects)+len(names) != 0 {
		t.Error("a set differs from itself")
	}
}

func flags(s *Set, dev, ino uint64) uint32 {
	for _, o := range s.objects {
		if o.key == (objectKey{dev, ino}) {
			return o.value.Flags
		}
	}
	return 0
}

func TestKeep(t *testing.T) {
	before := NewBuilder()
	before.Object(Object{1, 10, 1}, ObjDeny, 7)    // replaced: its line is still listed
	before.Object(Object{1, 11, 1}, ObjDeny, 8)    // its line is gone
	before.Object(Object{1, 12, 1}, ObjDeny, 7)    // its number is another file's now
	before.Name(Object{1, 2, 1}, "f", NameDeny, 7) // folder that was moved away
	before.Name(Object{1, 3, 1}, "g", NameDeny, 8)
	old := before.Set()
	for _, all := range []bool{false, true} {
		b := NewBuilder()
		b.listed[7] = true
		b.Object(Object{1, 12, 2}, ObjKeep, 0)
		b.Keep(old, all)
		s := b.Set()
		if flags(s, 1, 10)&ObjDeny == 0 {
			t.Errorf("all %v: the key of a listed line is gone", all)
		}
		if (flags(s, 1, 11)&ObjDeny != 0) != all {
			t.Errorf("all %v: the key of a line that is not listed: %v", all, flags(s, 1, 11))
		}
		if got := flags(s, 1, 12); (got&ObjDeny != 0) != all {
			t.Errorf("all %v: a number used again: %v", all, got)
		}
		if flags(s, 1, 2)&ObjNames == 0 {
			t.Errorf("all %v: the folder of a kept name is gone", all)
		}
		want := 1
		if all {
			want = 2
		}
		if len(s.names) != want {
			t.Errorf("all %v: names %+v", all, s.names)
		}
	}
}

func TestTwoObjectsOfOneNumberDenyAnyGeneration(t *testing.T) {
	b := NewBuilder()
	b.Object(Object{1, 257, 9}, ObjDeny, 1)
	b.Object(Object{1, 257, 11}, ObjDeny, 2)
	if got := flags(b.Set(), 1, 257); got != ObjDeny|ObjAnyGen {
		t.Errorf("flags %b", got)
	}
}
