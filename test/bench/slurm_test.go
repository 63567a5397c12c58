package bench

import (
	"strings"
	"testing"

	"agent-sandbox/test/harness"
	"agent-sandbox/test/slurm/node"
)

// BenchmarkSlurm: sbatch and squeue in a session, through its chaperon, against the
// plain commands outside, from a shell each (aim for sbatch: at most 3; the chaperon
// runs one command of Slurm for each, and squeue twice).
func BenchmarkSlurm(b *testing.B) {
	n := node.Shared(b)
	u := harness.NewUser(b)
	u.Env = append(u.Env, n.Env()...)
	b.Cleanup(func() { n.Root("scancel", "--user="+u.Name) })
	inside := harness.NewShell(b, u.Command("agent-sandbox", "--", "bash", "--norc", "-s"))
	outside := harness.NewShell(b, u.Command("bash", "--norc", "-s"))
	for name, command := range map[string]string{"sbatch": "sbatch --hold --wrap true", "squeue": "squeue --me --noheader"} {
		b.Run(name, func(b *testing.B) {
			run := func(s *harness.Shell) func() {
				return func() {
					if out := s.Sh(command + " || echo failed"); strings.Contains(out, "failed") {
						b.Fatal(out)
					}
				}
			}
			for b.Loop() {
				ours, theirs, ratio := pairs(30, run(inside), run(outside))
				b.ReportMetric(ratio, "ratio-to-plain")
				b.ReportMetric(float64(ours.Microseconds())/1000, "ms")
				b.ReportMetric(float64(theirs.Microseconds())/1000, "plain-ms")
			}
		})
	}
}
