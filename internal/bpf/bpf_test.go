package bpf

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// TestObject is phase A of the user's document: it needs no root.
func TestObjectHasDenyMapAndFileOpen(t *testing.T) {
	s, err := ebpf.LoadCollectionSpecFromReader(strings.NewReader(string(object)))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"deny_map", "agent_cgid_set"} {
		if s.Maps[m] == nil {
			t.Errorf("object has no map %s", m)
		}
	}
	p := s.Programs["file_open"]
	if p == nil || p.SectionName != "lsm/file_open" {
		t.Errorf("object has no program in section lsm/file_open")
	}
}
