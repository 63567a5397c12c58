package chaperon

import (
	"slices"
	"testing"

	"agent-sandbox/internal/mountplan"
)

func TestWritablePathsOfTheHost(t *testing.T) {
	rw, closed, masked := writable([]mountplan.Mount{
		{Kind: mountplan.RW, Path: "/dev/shm"},
		{Kind: mountplan.RW, Path: "/home/u"},
		{Kind: mountplan.RW, Path: "/home/u/proj"},
		{Kind: mountplan.RW, Path: "/home/u/.git"}, // named twice: the later line shows
		{Kind: mountplan.RO, Path: "/usr"},
		{Kind: mountplan.RW, Path: "/other/name", Source: "/somewhere"},
		{Kind: mountplan.Tmpfs, Path: "/tmp", Options: "mode=1777"},
		{Kind: mountplan.Symlink, Path: "/home/u/link", Target: "/x"},
		{Kind: mountplan.RO, Path: "/home/u/.git"},
		{Kind: mountplan.MaskDir, Path: "/home/u/.ssh"},
		{Kind: mountplan.MaskFile, Path: "/home/u/proj/.env"},
		{Kind: mountplan.Data, Path: "/home/u/.gitconfig", Mode: mountplan.DataRW},
		{Kind: mountplan.Tmpfs, Path: "/home/u/scratch"},
		{Kind: mountplan.MaskDir, Path: "/etc/slurm"},
	})
	if want := []string{"/home/u", "/home/u/proj"}; !slices.Equal(rw, want) {
		t.Errorf("writable: %q", rw)
	}
	if want := []string{"/home/u/.git", "/home/u/.gitconfig", "/home/u/.ssh", "/home/u/proj/.env", "/home/u/scratch"}; !slices.Equal(closed, want) {
		t.Errorf("closed: %q", closed)
	}
	if want := []string{"/home/u/.gitconfig", "/home/u/.ssh", "/home/u/proj/.env", "/home/u/scratch"}; !slices.Equal(masked, want) {
		t.Errorf("masked: %q", masked)
	}
}
