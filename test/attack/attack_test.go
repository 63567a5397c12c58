// Package attack holds sessions of the launcher against the attacks of package
// attacks, and the rules of contract that need a session of their own each.
package attack

import (
	"testing"

	"agent-sandbox/test/attack/attacks"
	"agent-sandbox/test/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestAttacksWinWithoutASandbox: an attack that fails there too proves nothing.
func TestAttacksWinWithoutASandbox(t *testing.T) {
	t.Parallel()
	s := attacks.NewScene(t)
	b := s.Start(t, nil)
	for _, a := range attacks.List {
		if a.Powerless {
			continue
		}
		t.Run(a.Name, func(t *testing.T) {
			if a.Outside != "" { // it destroys what it attacks
				s.Reset(t)
			}
			if !b.Won(t, a) {
				t.Error("does not win without a sandbox")
			}
		})
	}
}

// TestAttacks makes every attack in one session per HOME_ACCESS mode.
func TestAttacks(t *testing.T) {
	for _, mode := range attacks.Modes {
		t.Run(mode, func(t *testing.T) {
			t.Parallel() // each in a home of its own
			s := attacks.NewScene(t)
			before := s.Listing(t)
			b := s.Start(t, []string{"HOME_ACCESS=" + mode}, s.Suite+"/agent-sandbox")
			for _, a := range attacks.List {
				if !a.In(mode) {
					continue
				}
				t.Run(a.Name, func(t *testing.T) {
					if b.Won(t, a) {
						t.Error("wins")
					}
				})
			}
			b.End(t)
			s.Compare(t, before)
		})
	}
}
