//go:build vm

package execd

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/sys"
)

// Built by test/vm/suites/denylist: it makes cgroups.

// Between the check of a request and the move the process may end, and its number be
// given to another: the pidfd tells, and the stranger goes back.
func TestStrangerWithTheNumberIsPutBack(t *testing.T) {
	root, err := FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	home, box := makeTestCgroup(t, root, "stranger"), makeTestCgroup(t, root, "box")
	stranger := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s%s/cgroup.procs && echo in; sleep 1000 & echo $!; wait", root, home))
	out, err := stranger.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := stranger.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscanf(out, "in\n%d\n", &pid); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p, _ := os.FindProcess(pid)
		p.Kill()
		stranger.Wait()
	})

	asked := exec.Command("sleep", "1000")
	if err := asked.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sys.PidfdOpen(asked.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	asked.Process.Kill()
	asked.Wait()

	log := &strings.Builder{}
	d := &Daemon{cgroups: root, log: NewLog(cli.Printer{Name: "test", W: log})}
	if err := d.move(job{pid: pid, pidfd: pidfd, cgroup: "/"}, box); err != errDied {
		t.Errorf("the move: %v", err)
	}
	if now, _ := cgroupOf(pid); now != home {
		t.Errorf("the stranger is in %q, not in %q where his parent is", now, home)
	}
	if log.Len() != 0 {
		t.Errorf("log: %s", log)
	}
}

// What cannot be put back, since its parent is in the same group or gone, stays
// confined; the number of nobody is no error.
func TestUndoThatCannotBe(t *testing.T) {
	root, err := FindCgroup2()
	if err != nil {
		t.Fatal(err)
	}
	box := makeTestCgroup(t, root, "box")
	log := &strings.Builder{}
	d := &Daemon{cgroups: root, log: NewLog(cli.Printer{Name: "test", W: log})}
	c := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >%s%s/cgroup.procs && sleep 1000 & echo $!; wait", root, box))
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p, _ := os.FindProcess(child)
		p.Kill()
		c.Wait()
	})
	if err := d.enter(c.Process.Pid, box); err != nil {
		t.Fatal(err)
	}
	if err := d.enter(child, box); err != nil {
		t.Fatal(err)
	}
	d.undo(child, box)
	if now, _ := cgroupOf(child); now != box {
		t.Errorf("the child of one inside is in %q", now)
	}
	d.undo(1<<22+1, box)
	if log.Len() != 0 {
		t.Errorf("log: %s", log)
	}
	// Where the kernel refuses (here the hierarchy is not there) the log says so.
	d.cgroups = "/nowhere"
	d.undo(c.Process.Pid, box)
	if now, _ := cgroupOf(c.Process.Pid); now != box || !strings.Contains(log.String(), "cannot be put back") {
		t.Errorf("in %q, log %q", now, log)
	}
}

// makeTestCgroup makes a cgroup and returns its path in the hierarchy.
func makeTestCgroup(t *testing.T, root, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp(root, "test-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 1000 {
			if os.Remove(dir) == nil {
				return
			}
		}
	})
	return "/" + filepath.Base(dir)
}
