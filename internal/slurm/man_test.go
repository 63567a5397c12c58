package slurm

import (
	"os"
	"strings"
	"testing"
)

// TestTheManualListsEveryFlag: what a refused flag's message points to is what the
// tables have. On a difference it prints the lines that belong there.
func TestTheManualListsEveryFlag(t *testing.T) {
	page, err := os.ReadFile("../../man/chaperon.8")
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"sbatch", "srun", "squeue", "scancel", "scontrol", "sacct", "sinfo", "sstat", "sprio", "sshare", "sdiag"} {
		var names []string
		for _, f := range tables[command] {
			if f.refused != "" || f.as != "" {
				continue
			}
			n := strings.ReplaceAll(f.long, "-", `\-`)
			if f.short != 0 {
				n += " (" + string(f.short) + ")"
			}
			names = append(names, n)
		}
		entry := ".It Ic " + command + "\n" + strings.Join(names, ",\n") + ".\n"
		if !strings.Contains(string(page), entry) {
			t.Errorf("man/chaperon.8 lacks:\n%s", entry)
		}
	}
}
