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

	"agent-sandbox/internal/sandboxinit"
	"agent-sandbox/internal/seccomp"
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

// bare is a bwrap command line with the very arguments that a launch uses, less the
// supervisor, and the descriptors that they name.
func bare(b *testing.B, u *harness.User) func() *exec.Cmd {
	b.Helper()
	args := arguments(b, u)
	end := slices.Index(args, "--")
	return withDescriptors(b, u, append(slices.Clone(args[:end+1]), "true"))
}

// floor is a launch by the least that two Go programs around bwrap can do: that in
// folder floor, in the places of launcher and supervisor.
func floor(b *testing.B, u *harness.User) func() *exec.Cmd {
	b.Helper()
	bin := filepath.Join(u.Home, "floor/floor")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -E agent-sandbox/internal/quickstart.entry", "-o", bin, "./test/bench/floor")
	build.Dir, build.Env = harness.Root(), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	args := arguments(b, u)
	at := slices.Index(args, sandboxinit.Path) - 1
	args[at] = bin
	u.Write(filepath.Join(u.Home, "floor/args"), strings.Join(append(args[:slices.Index(args, "--")+1], sandboxinit.Path, "/usr/bin/true"), "\x00"))
	return withDescriptors(b, u, []string{bin, filepath.Join(u.Home, "floor/args")})
}

// arguments are those of a dry run, with files where the session's would lie.
func arguments(b *testing.B, u *harness.User) []string {
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
	words, err := exec.Command("sh", "-c", "for w in "+strings.TrimSpace(line)+`; do printf '%s\0' "$w"; done`).Output()
	if err != nil {
		b.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(words), "\x00"), "\x00")
}

// withDescriptors makes a command with the descriptors that a launch's arguments name:
// 4 has the system call filter, 5 gets bwrap's report.
func withDescriptors(b *testing.B, u *harness.User, args []string) func() *exec.Cmd {
	b.Helper()
	filter, err := seccomp.Program(seccomp.Options{})
	if err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "filter")
	if err := os.WriteFile(file, filter, 0o600); err != nil {
		b.Fatal(err)
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	var open *os.File // its offset is at the end after a run
	b.Cleanup(func() { null.Close(); open.Close() })
	return func() *exec.Cmd {
		open.Close()
		if open, err = os.Open(file); err != nil {
			b.Fatal(err)
		}
		c := u.Command(args[0], args[1:]...)
		c.ExtraFiles = []*os.File{null, open, null}
		return c
	}
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
// arguments (aim: at most 1.5 with the default configuration), and beside it two Go
// programs that do next to nothing.
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
				if n == 0 {
					least := floor(b, u)
					_, _, ratio := pairs(rounds, func() { must(b, least) }, func() { must(b, peer) })
					b.ReportMetric(ratio, "ratio-of-two-empty-programs")
				}
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
