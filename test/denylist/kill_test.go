//go:build vm

package denylist

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// count is n or the value of an environment variable, which test/vm/long sets.
func count(variable string, n int) int {
	if v, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return v
	}
	return n
}

// Load: a sandbox that opens the file all the time, and launches all the time, three at
// once so that one is in any state when the daemon goes. The daemon is killed at random
// points, or replaced while it runs. The file is never read, and nothing runs outside its
// group.
func underLoad(t testing.TB, disturb func()) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	stop := atomic.Bool{}
	var wg sync.WaitGroup
	opens := u.write("opens", "")
	prober := u.in("python3", "-c", `
import os, sys
# The machine has one processor: most of it is for the daemon's start, some thousands of opens long.
os.nice(10)
n = 0
while True:
    try:
        os.open(sys.argv[1], os.O_RDONLY)
        print("READ", flush=True)
    except PermissionError:
        n += 1
        if n % 1000 == 0:
            with open(sys.argv[2], "w") as f: f.write(str(n))
`, file, opens)
	read := &strings.Builder{}
	prober.Stdout, prober.Stderr = read, read
	if err := prober.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { prober.Process.Kill(); prober.Wait() }()
	eventually(t, "the first opens", func() bool { data, _ := os.ReadFile(opens); return len(data) > 0 })
	var launched, refusedN atomic.Int64
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				r := finish(t, u.in("sh", "-c", "grep ^0:: /proc/self/cgroup; cat "+file))
				switch {
				case strings.Contains(r.out, secret):
					t.Error("a launch reads the file")
				case r.code == 2:
					refusedN.Add(1)
					time.Sleep(50 * time.Millisecond)
				case r.out != fmt.Sprintf("0::/agent-sandbox-exec/uid-%d\n", u.uid):
					t.Errorf("a launch outside the group: %v", r)
				default:
					launched.Add(1)
				}
			}
		})
	}
	end := func() { stop.Store(true); wg.Wait() }
	defer end() // also where disturb ends the test
	disturb()
	end()
	if read.Len() > 0 {
		t.Errorf("the running sandbox: %s", read)
	}
	data, _ := os.ReadFile(opens)
	t.Logf("%s opens refused, %d launches, %d launches refused", data, launched.Load(), refusedN.Load())
	if launched.Load() == 0 {
		t.Error("there was no launch")
	}
	u.denied(file)
}

func TestKilledAtRandomPoints(t *testing.T) {
	underLoad(t, func() {
		for range count("ROUNDS", 10) {
			time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
			restart(t, syscall.SIGKILL)
		}
	})
}

func TestKilledWhileItStarts(t *testing.T) {
	underLoad(t, func() {
		for i := range count("ROUNDS", 10) {
			theDaemon.stop(syscall.SIGKILL)
			c := exec.Command(daemonBin)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Duration(rand.IntN(3000)) * time.Millisecond)
			c.Process.Kill()
			c.Wait()
			// What several left behind each other has to be taken over, too.
			if i%3 == 2 {
				if err := theDaemon.start(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(rand.IntN(1000)) * time.Millisecond)
			}
		}
		if theDaemon.cmd.ProcessState != nil {
			if err := theDaemon.start(); err != nil {
				t.Fatal(err)
			}
		}
	})
	if pins, _ := os.ReadDir(pinDir); len(pins) > 25 {
		t.Errorf("%d pins", len(pins))
	}
}

// An upgrade: as dpkg does it another build takes the program's name, the old daemon ends,
// the new one replaces the attached program.
func TestReplacedInALoopOfOpens(t *testing.T) {
	version := func() string { return must(t, exec.Command(daemonBin, "--version")) }
	underLoad(t, func() {
		for i := range 20 {
			before := version()
			if err := installDaemon(i%2 == 0); err != nil {
				t.Fatal(err)
			}
			if version() == before {
				t.Fatalf("the other build says %s too", before)
			}
			restart(t, syscall.SIGTERM)
		}
	})
	if pins, _ := os.ReadDir(pinDir); len(pins) > 25 {
		t.Errorf("%d pins", len(pins))
	}
}
