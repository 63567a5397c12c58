package guard

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// switches adds up the voluntary context switches of all threads: each is a
// wake-up.
func switches(t *testing.T, pid int) (n int) {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		n += status(t, fmt.Sprintf("/proc/%d/task/%s/status", pid, task.Name()), "voluntary_ctxt_switches:")
	}
	return n
}

func status(t *testing.T, file, key string) (n int) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, key); ok {
			fmt.Sscan(v, &n)
		}
	}
	return n
}

func TestIdleGuardSleepsAndIsSmall(t *testing.T) {
	u := user(t)
	// So is Slurm's configuration, which would have the guard watch /etc as well.
	u.Write(".config/agent-sandbox/conf.d/slurm.conf", "CHAPERON=off\n")
	// The user database is left out: other tests make users meanwhile.
	g := start(u, "FILTER_PASSWD=false")
	g.over(u.Project+"/secret", "SECRET")
	g.mended("once")
	pid := g.rec.Guard.PID
	time.Sleep(3 * time.Second)
	// Something else on the machine may wake it once; a timer would each time.
	n := 0
	for range 3 {
		before := switches(t, pid)
		time.Sleep(60 * time.Second)
		if n = switches(t, pid) - before; n == 0 {
			break
		}
	}
	if n != 0 {
		t.Errorf("%d wake-ups in a minute in which nothing happened", n)
	}
	if kb := status(t, fmt.Sprintf("/proc/%d/status", pid), "VmRSS:"); kb > 10<<10 {
		t.Errorf("%d KiB resident", kb)
	} else {
		t.Logf("%d KiB resident", kb)
	}
}
