//go:build vm

package denylist

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkFigures prints the figures of `make bench`, in a machine whose time counts
// instructions (scripts/bench-denylist).
func BenchmarkFigures(t *testing.B) {
	u := newUser(t)
	file, other, away := u.secret("dir/secret"), u.write("dir/other", "x\n"), u.write("away/other", "x\n")
	u.list(file)
	theDaemon.stop(syscall.SIGTERM)
	must(t, finishDetach())
	open := func(c *exec.Cmd) float64 {
		t.Helper()
		n, err := strconv.ParseFloat(strings.TrimSpace(must(t, c)), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	args := func(file string) []string { return []string{"attack", "bench-open", file} }
	none := open(u.as(self(), args(away)...))
	if err := theDaemon.start("--favordynmods"); err != nil { // as the service does
		t.Fatal(err)
	}
	fmt.Printf("open+close: %.0f ns without BPF\n", none)
	for _, b := range []struct {
		what string
		c    *exec.Cmd
	}{
		{"outside", u.as(self(), args(away)...)},
		{"inside", u.in(append([]string{self()}, args(away)...)...)},
		{"inside, folder with a listed name", u.in(append([]string{self()}, args(other)...)...)},
		{"inside, listed", u.in(append([]string{self()}, args(file)...)...)},
	} {
		fmt.Printf("open+close: %.3f %s\n", open(b.c)/none, b.what)
	}
	launch := func(n int, args ...string) time.Duration {
		t.Helper()
		var times []time.Duration
		for range n {
			start := time.Now()
			pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{
				Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{0, 1, 2},
				Sys: &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.uid)}},
			})
			if err != nil {
				t.Fatal(err)
			}
			var ws syscall.WaitStatus
			if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
				t.Fatalf("%v: %v %v", args, ws, err)
			}
			times = append(times, time.Since(start))
			// Launches in a row share the kernel's grace periods; people's do not.
			time.Sleep(100 * time.Millisecond)
		}
		slices.Sort(times)
		return times[n/2]
	}
	base := launch(51, "/bin/true")
	print := func(what string, d time.Duration) {
		fmt.Printf("launch: %.2f (%v) %s\n", float64(d)/float64(base), d.Round(time.Microsecond), what)
	}
	print("true", base)
	print("sh -c true", launch(51, "/bin/sh", "-c", "true"))
	for _, n := range []int{1, 100, 1000} {
		var list []string
		for i := range n {
			list = append(list, u.write(fmt.Sprintf("many/f%d", i), ""))
		}
		u.list(list...)
		must(t, u.in("true"))
		print(fmt.Sprintf("agent-sandbox-exec true, %d own entries", n), launch(31, launchBin, "/bin/true"))
	}
	u.list(file)
	if os.Getenv("MANY_USERS") != "" {
		manyUsers(t, u, launch)
	}
}

// manyUsers has many other users in their sandboxes, each with a list of its own.
func manyUsers(t testing.TB, u *user, launch func(int, ...string) time.Duration) {
	n, _ := strconv.Atoi(os.Getenv("MANY_USERS"))
	alone := launch(31, launchBin, "/bin/true")
	kb := daemonMemory(t)
	dir := filepath.Join(u.home, "shared")
	var list strings.Builder
	for i := range 1000 {
		fmt.Fprintln(&list, u.write(fmt.Sprintf("shared/f%d", i), ""))
	}
	home := "/home/shared"
	root(t, "mkdir -p %s/.config/agent-sandbox-exec", home)
	if err := os.WriteFile(home+"/.config/agent-sandbox-exec/denylist", []byte(list.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, "bench%d:x:%d:%d::%s:/bin/sh\n", i, 300000+i, 300000+i, home)
	}
	appendTo(t, "/etc/passwd", lines.String())
	for i := range n {
		c := exec.Command(launchBin, "/bin/sleep", "100000")
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(300000 + i), Gid: uint32(300000 + i)}}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { c.Process.Kill(); c.Wait() }()
		eventually(t, "the sandbox", func() bool { return inGroup(c.Process.Pid, 300000+i) })
	}
	crowd := launch(31, launchBin, "/bin/true")
	fmt.Printf("launch: %.3f times that alone, beside %d users with 1000 entries each (%s)\n", float64(crowd)/float64(alone), n, dir)
	fmt.Printf("memory of the daemon: %d kB alone, %d kB with them\n", kb, daemonMemory(t))
}

const benchOpens = 20000

// benchOpen prints the time of one open and close.
func benchOpen(args []string) error {
	path, err := unix.BytePtrFromString(args[0])
	if err != nil {
		return err
	}
	once := func() {
		fd, _, e := rawOpen(path)
		if e == 0 {
			unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	for range 1000 {
		once()
	}
	start := time.Now()
	for range benchOpens {
		once()
	}
	fmt.Println(float64(time.Since(start).Nanoseconds()) / benchOpens)
	return nil
}
