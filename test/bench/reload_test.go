package bench

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

// BenchmarkReload: a reload against starting a new session with the configuration
// it applies (aims: one addition at most 2, 1,000 additions at most 0.1).
func BenchmarkReload(b *testing.B) {
	u := harness.NewUser(b)
	top := filepath.Join(u.Home, "w")
	conf := func(n int) {
		var s strings.Builder
		s.WriteString("HOME_ACCESS=read\n")
		for i := range n {
			p := filepath.Join(top, strconv.Itoa(i))
			u.Mkdir(p)
			fmt.Fprintf(&s, "EXTRA_WRITABLE_PATHS+=(%s)\n", p)
		}
		u.Config(s.String())
	}
	conf(1000) // makes the folders
	conf(0)
	session := u.Command("agent-sandbox", "--", "sleep", "100000")
	if err := session.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { session.Process.Kill(); session.Wait() }()
	harness.Eventually(b, "the session", func() bool { return u.Run("agent-sandbox", "sessions").Stdout != "" })
	reload := func() *exec.Cmd { return u.Command("agent-sandbox", "reload") }
	launch := func() *exec.Cmd { return u.Command("agent-sandbox", "--", "true") }
	for _, c := range []struct {
		name     string
		from, to int
		rounds   int
		lines    int
	}{
		{"nothing", 0, 0, 20, 0},
		{"one-addition", 0, 1, 20, 1},
		{"one-revocation", 1, 0, 20, 1},
		{"100-additions", 0, 100, 5, 100},
		{"1000-additions", 0, 1000, 3, 1000},
		{"1000-revocations", 1000, 0, 3, 1000},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				var ratios []float64
				var times []time.Duration
				for range c.rounds {
					conf(c.from)
					must(b, reload)
					conf(c.to)
					start := time.Now()
					out, err := reload().Output()
					took := time.Since(start)
					if err != nil || strings.Count(string(out), "\n") != c.lines {
						b.Fatalf("%v, %d lines of %d: %.500s", err, strings.Count(string(out), "\n"), c.lines, out)
					}
					// What is compared with is the launch that the reload spares: that
					// with the larger of the two configurations.
					if c.from > c.to {
						conf(c.from)
					}
					started := clock(func() { must(b, launch) })
					ratios = append(ratios, float64(took)/float64(started))
					times = append(times, took)
				}
				slices.Sort(ratios)
				slices.Sort(times)
				b.ReportMetric(ratios[len(ratios)/2], "ratio-to-launch")
				b.ReportMetric(float64(times[len(times)/2].Microseconds())/1000, "ms")
			}
		})
	}
}
