// Package bench prints how fast the suite is, as ratios against a peer that runs
// in the same minute on the same machine. `make bench` runs it.
package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"agent-sandbox/test/harness"
	"agent-sandbox/test/slurm/node"
)

func TestMain(m *testing.M) { harness.Main(m, node.Stop) }

// pairs runs a and b in turn n times, so that both see the same machine, and
// gives the median of each and of the ratio a/b of each pair.
func pairs(n int, a, b func()) (ma, mb time.Duration, ratio float64) {
	var as, bs []time.Duration
	var rs []float64
	for range n {
		ta, tb := clock(a), clock(b)
		as, bs = append(as, ta), append(bs, tb)
		rs = append(rs, float64(ta)/float64(tb))
	}
	slices.Sort(as)
	slices.Sort(bs)
	slices.Sort(rs)
	return as[n/2], bs[n/2], rs[n/2]
}

func clock(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

// bare is a bwrap command line with the very arguments that a launch uses, less
// the descriptors and the supervisor that only the launcher has.
func bare(b *testing.B, u *harness.User) func() *exec.Cmd {
	b.Helper()
	out := u.Run("agent-sandbox", "--dry-run", "--", "true")
	if out.Code != 0 {
		b.Fatal(out.Stderr)
	}
	data := filepath.Join(u.Home, "data")
	u.Mkdir(data)
	u.Mkdir(data + ".chaperon")
	line := strings.NewReplacer("SESSION.d", data, "SESSION.chaperon", data+".chaperon").Replace(out.Stdout)
	for _, m := range regexp.MustCompile(regexp.QuoteMeta(data)+`/(\w+)`).FindAllString(line, -1) {
		u.Write(m, "")
	}
	line = regexp.MustCompile(`--(info-fd|seccomp) \d+ `).ReplaceAllString(line, "")
	line = strings.Replace(line, "-- /run/agent-sandbox/init true", "-- true", 1)
	words, err := exec.Command("sh", "-c", "for w in "+strings.TrimSpace(line)+`; do printf '%s\0' "$w"; done`).Output()
	if err != nil {
		b.Fatal(err)
	}
	args := strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
	return func() *exec.Cmd { return u.Command(args[0], args[1:]...) }
}

// must runs a command to its end. bwrap fails where the host's mount table or
// /etc/passwd changes meanwhile, as other tests do: then once more.
func must(b *testing.B, make func() *exec.Cmd) {
	var out []byte
	var err error
	for range 5 {
		if out, err = make().CombinedOutput(); err == nil {
			return
		}
	}
	b.Fatalf("%v: %.500s", err, out)
}

// BenchmarkLaunch: `agent-sandbox -- true` against bare bwrap with the same
// arguments (aim: at most 1.5 with the default configuration).
func BenchmarkLaunch(b *testing.B) {
	u := harness.NewUser(b)
	for _, n := range []int{0, 10, 100, 1000} {
		name := "default"
		if n > 0 {
			name = fmt.Sprintf("%d-writable-paths", n)
			var conf strings.Builder
			for i := range n {
				p := filepath.Join(u.Home, "w", strconv.Itoa(i))
				u.Mkdir(p)
				fmt.Fprintf(&conf, "EXTRA_WRITABLE_PATHS+=(%s)\n", p)
			}
			u.Config(conf.String())
		}
		b.Run(name, func(b *testing.B) {
			peer := bare(b, u)
			rounds := 60
			if n >= 100 {
				rounds = 10
			}
			for b.Loop() {
				ours, theirs, ratio := pairs(rounds, func() { must(b, func() *exec.Cmd { return u.Command("agent-sandbox", "--", "true") }) }, func() { must(b, peer) })
				b.ReportMetric(ratio, "ratio-to-bwrap")
				b.ReportMetric(float64(ours.Microseconds())/1000, "ms")
				b.ReportMetric(float64(theirs.Microseconds())/1000, "bwrap-ms")
			}
		})
	}
}

// BenchmarkMemory: peak resident memory of the launcher while a session runs (aim:
// at most 12 MB).
func BenchmarkMemory(b *testing.B) {
	u := harness.NewUser(b)
	for b.Loop() {
		c := u.Command("agent-sandbox", "--", "sleep", "1000")
		if err := c.Start(); err != nil {
			b.Fatal(err)
		}
		harness.Eventually(b, "the session", func() bool { return u.Run("agent-sandbox", "sessions").Stdout != "" })
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		for _, field := range []string{"VmHWM", "RssAnon"} {
			m := regexp.MustCompile(field + `:\s+(\d+) kB`).FindSubmatch(status)
			kb, _ := strconv.Atoi(string(m[1]))
			b.ReportMetric(float64(kb)/1024, field+"-MB")
		}
		c.Process.Signal(os.Interrupt)
		c.Process.Kill()
		c.Wait()
	}
}
