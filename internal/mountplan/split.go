package mountplan

// Split takes out of a long plan the mounts that can be made, in any order, in a
// sandbox that has the rest: binds and masks of what the sandbox then shows under the
// host's own path, with nothing of the plan below them. bwrap reads the whole mount
// table for each mount that it makes, and takes a limited number; mount-repair does
// neither. A plan of few mounts is left whole.
func Split(mounts []Mount) (first, late []Mount) {
	if len(mounts) < few {
		return mounts, nil
	}
	at, count := byPathMap(mounts), map[string]int{}
	above := map[string]bool{}
	for _, m := range mounts {
		count[m.Path]++
		for p := m.Path; p != "/" && !above[parent(p)]; {
			p = parent(p)
			above[p] = true
		}
	}
	for _, m := range mounts {
		if g, ok := nearest(at, parent(m.Path)); ok && movable(m) && count[m.Path] == 1 && !above[m.Path] && (g.Kind == RO || g.Kind == RW) && g.From() == g.Path {
			late = append(late, m)
		} else {
			first = append(first, m)
		}
	}
	return first, late
}

// few is the number of mounts below which bwrap alone is as fast.
const few = 200

func movable(m Mount) bool {
	switch m.Kind {
	case RO, RW, MaskFile, MaskDir:
		return !m.Absent && m.From() == m.Path
	}
	return false
}
