package bench

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"testing"

	"agent-sandbox/test/harness"
)

// BenchmarkExposure renames a new file over a masked one 200 times on the host
// and measures inside how long its content can be read, from the first read that
// sees it to the first that does not.
func BenchmarkExposure(b *testing.B) {
	u := harness.NewUser(b)
	u.Write("proj/secret", "SECRET")
	u.Config(`BLOCKED_FILES=("$HOME/proj/secret")` + "\n")
	c := u.Command("agent-sandbox", "--", "perl", "-e", `
use Time::HiRes "time";
$| = 1;
sub seen { open my $f, "<", "secret" or return 0; local $/; return length(<$f> // "") > 0 }
print "ready\n";
while (1) {
	1 until seen();
	my $t = time;
	1 while seen();
	printf "%.3f\n", 1000 * (time - $t);
}`)
	out, _ := c.StdoutPipe()
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { c.Process.Kill(); c.Wait() }()
	lines := bufio.NewScanner(out)
	lines.Scan()
	var ms []float64
	for range 200 {
		u.Write("proj/secret.new", "SECRET")
		if err := os.Rename(u.Project+"/secret.new", u.Project+"/secret"); err != nil {
			b.Fatal(err)
		}
		var t float64
		if !lines.Scan() {
			b.Fatal("the session ended")
		}
		fmt.Sscan(lines.Text(), &t)
		ms = append(ms, t)
	}
	slices.Sort(ms)
	b.ReportMetric(ms[len(ms)/2], "ms-median")
	b.ReportMetric(ms[len(ms)-1], "ms-worst")
	b.ReportMetric(0, "ns/op")
}
