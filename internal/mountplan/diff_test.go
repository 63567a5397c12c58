package mountplan

import (
	"slices"
	"strings"
	"testing"
)

// What is added is mounted in an order in which nothing is ever wider than at the
// end: protections, then the folders above them, the inner ones first, which cannot
// be renamed any more when the tree around them becomes writable.
func TestOrderOfAdditions(t *testing.T) {
	old := []Mount{{Kind: RO, Path: "/srv"}}
	wanted := []Mount{
		{Kind: RO, Path: "/srv"},
		{Kind: RW, Path: "/srv/tree"},
		{Kind: RW, Path: "/srv/tree/a"},
		{Kind: RW, Path: "/srv/tree/a/b"},
		{Kind: MaskFile, Path: "/srv/tree/a/b/secret"},
	}
	var got []string
	for _, c := range Diff(old, wanted, nil, nil) {
		got = append(got, string(c.Action)+" "+c.Mount.Path)
	}
	want := []string{"ADD /srv/tree/a/b/secret", "ADD /srv/tree/a/b", "ADD /srv/tree/a", "ADD /srv/tree"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Split leaves to bwrap what makes mount points, what has something below it, and
// what lies where the sandbox does not show the host's own path.
func TestSplit(t *testing.T) {
	mounts := []Mount{
		{Kind: RO, Path: "/usr"},
		{Kind: Tmpfs, Path: "/home/u"},
		{Kind: RW, Path: "/home/u/p"},
		{Kind: RW, Path: "/home/u/p/a"},
		{Kind: MaskFile, Path: "/home/u/p/a/x"},
		{Kind: MaskFile, Path: "/home/u/p/absent", Absent: true},
		{Kind: RO, Path: "/home/u/lone"},
		{Kind: RO, Path: "/home/u/p/other", Source: "/elsewhere"},
		{Kind: Data, Path: "/home/u/p/data"},
		{Kind: RO, Path: "/home/u/p/twice"},
		{Kind: MaskDir, Path: "/home/u/p/twice"},
		{Kind: RO, Path: "/moved", Source: "/home/u/p"},
		{Kind: MaskFile, Path: "/moved/y"},
	}
	if _, late := Split(mounts); late != nil {
		t.Errorf("a short plan is split: %v", late)
	}
	for i := range few {
		mounts = append(mounts, Mount{Kind: RO, Path: "/usr/" + string(rune('a'+i%26)) + strings.Repeat("b", i)})
	}
	first, late := Split(mounts)
	if len(first)+len(late) != len(mounts) || len(late) != few+1 || late[0].Path != "/home/u/p/a/x" {
		t.Errorf("%d and %d of %d; %v", len(first), len(late), len(mounts), late[:2])
	}
}
