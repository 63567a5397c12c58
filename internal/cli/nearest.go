package cli

// Nearest is the one of names that is at most two edits away from name, empty where
// none is: for "did you mean".
func Nearest(name string, names []string) string {
	best, found := 3, ""
	for _, n := range names {
		if d := distance(name, n); d < best {
			best, found = d, n
		}
	}
	return found
}

// distance is the number of insertions, deletions and replacements of bytes
// between two names (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diag := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diag
			if a[i] != b[j] {
				cost++
			}
			diag = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
