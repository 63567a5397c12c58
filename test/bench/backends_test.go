package bench

import (
	"os/exec"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// BenchmarkBackends: a launch on the other backends, landlock against executing the
// command as it is and against `sh -c`, firejail against bare firejail with the same
// profile.
func BenchmarkBackends(b *testing.B) {
	u := harness.NewUser(b)
	plain := func(args ...string) func() *exec.Cmd {
		return func() *exec.Cmd { return u.Command(args[0], args[1:]...) }
	}
	run := func(name, peerName string, peer func() *exec.Cmd) {
		b.Run(name+"/against-"+peerName, func(b *testing.B) {
			launch := plain("agent-sandbox", "--backend", name, "--", "true")
			for b.Loop() {
				ours, theirs, ratio := pairs(40, func() { must(b, launch) }, func() { must(b, peer) })
				b.ReportMetric(ratio, "ratio")
				b.ReportMetric(float64(ours.Microseconds())/1000, "ms")
				b.ReportMetric(float64(theirs.Microseconds())/1000, "peer-ms")
			}
		})
	}
	run("landlock", "plain-exec", plain("/bin/true"))
	run("landlock", "sh-c", plain("/bin/sh", "-c", "/bin/true; exit 0"))

	out := u.Run("agent-sandbox", "--backend", "firejail", "--dry-run", "--", "true")
	line, _, ok := strings.Cut(out.Stdout, " --keep-fd=")
	if !ok {
		b.Fatal(out.Stderr)
	}
	run("firejail", "bare-firejail", plain("/bin/sh", "-c", "exec "+line+" -- true"))
}
