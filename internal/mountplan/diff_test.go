package mountplan

import (
	"slices"
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
