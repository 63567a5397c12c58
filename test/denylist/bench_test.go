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
	base := launchTimes(t, u, 51, "/bin/true")
	print := func(what string, d time.Duration) {
		fmt.Printf("launch: %.2f (%v) %s\n", float64(d)/float64(base), d.Round(time.Microsecond), what)
	}
	print("true", base)
	// Debian's sh is dash, whose own true costs a fifth more than /bin/true. Where `sh -c true`
	// was measured as 2.5 times /bin/true, sh was bash or started a /bin/true.
	print("sh -c true", launchTimes(t, u, 51, "/bin/sh", "-c", "true"))
	print("bash -c true", launchTimes(t, u, 51, "/bin/bash", "-c", "true"))
	// The start and end of the launcher alone: those of the Go runtime, an empty program has
	// them too. Becoming /bin/true is not in it.
	print("agent-sandbox-exec --version", launchTimes(t, u, 31, launchBin, "--version"))
	for _, n := range []int{1, 100, 1000} {
		var list []string
		for i := range n {
			list = append(list, u.write(fmt.Sprintf("many/f%d", i), ""))
		}
		u.list(list...)
		must(t, u.in("true"))
		print(fmt.Sprintf("agent-sandbox-exec true, %d own entries", n), launchTimes(t, u, 31, launchBin, "/bin/true"))
	}
}

// launchTimes is the median time of n launches by a user, from fork to end. They are
// launched by a small process: fork copies the descriptors of this one, which may be many.
func launchTimes(t testing.TB, u *user, n int, args ...string) time.Duration {
	t.Helper()
	out := must(t, u.as(self(), append([]string{"attack", "bench-launch", strconv.Itoa(n)}, args...)...))
	d, err := time.ParseDuration(strings.TrimSpace(out))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// benchLaunch prints the median time of launches of a command.
func benchLaunch(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	times := make([]time.Duration, n)
	for i := range times {
		start := time.Now()
		pid, err := syscall.ForkExec(args[1], args[1:], &syscall.ProcAttr{
			Env: []string{"PATH=/usr/bin:/bin"}, Files: []uintptr{null.Fd(), null.Fd(), 2}})
		if err != nil {
			return err
		}
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
			return fmt.Errorf("%v: %v %v", args[1:], ws, err)
		}
		times[i] = time.Since(start)
		// Launches in a row share the kernel's grace periods; people's do not.
		time.Sleep(100 * time.Millisecond)
	}
	slices.Sort(times)
	fmt.Println(times[n/2])
	return nil
}

// BenchmarkManyUsers has many other users in their sandboxes, MANY_USERS or 50, each with
// a list of 1,000 entries, and compares a launch with that of a user who is alone. So many
// files of their own would be a benchmark of the disk: the users share 64 lists, whose
// files fill most of filter_map.
func BenchmarkManyUsers(t *testing.B) {
	n, lists := count("MANY_USERS", 50), 64
	u := newUser(t)
	u.list(u.secret("secret"))
	root(t, "echo +pids >/sys/fs/cgroup/cgroup.subtree_control") // as systemd has it
	restart(t, syscall.SIGTERM, "--favordynmods")                // as the service does
	must(t, u.in("true"))
	alone, kb := launchTimes(t, u, 51, launchBin, "/bin/true"), daemonMemory(t)

	root(t, "mkdir -p /run/many && mount -t tmpfs many /run/many")
	t.Cleanup(func() { root(t, "umount -l /run/many") })
	var passwd strings.Builder
	for i := range min(n, lists) {
		dir, home := fmt.Sprintf("/run/many/files%d", i), fmt.Sprintf("/run/many/home%d", i)
		root(t, "mkdir -p %s %s/%s", dir, home, filepath.Dir(homeList))
		var list strings.Builder
		for i := range 1000 {
			path := fmt.Sprintf("%s/f%d", dir, i)
			if err := syscall.Mknod(path, syscall.S_IFREG|0o644, 0); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(&list, path)
		}
		if err := os.WriteFile(filepath.Join(home, homeList), []byte(list.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const first = 300000
	for i := range n {
		fmt.Fprintf(&passwd, "many%d:x:%d:%d::/run/many/home%d:/bin/sh\n", i, first+i, first+i, i%lists)
	}
	appendTo(t, "/etc/passwd", passwd.String())

	// They stay in their sandboxes until this pipe ends.
	wait, end, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var inside []*exec.Cmd
	t.Cleanup(func() {
		end.Close()
		wait.Close()
		for _, c := range inside {
			c.Wait()
		}
	})
	since := time.Now()
	for i := range n {
		v := &user{t: t, uid: first + i, name: fmt.Sprintf("many%d", i), home: "/"}
		c := v.in("/bin/sh", "-c", "echo; read line")
		var errs strings.Builder
		c.Stdin, c.Stderr = wait, &errs
		out, err := c.StdoutPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		inside = append(inside, c)
		if _, err := out.Read(make([]byte, 1)); err != nil {
			c.Wait()
			t.Fatalf("user %d: %v: %s", i, err, errs.String())
		}
		out.Close()
		if (i+1)%100 == 0 {
			fmt.Printf("users: %d, %v each, %d kB\n", i+1, (time.Since(since) / 100).Round(time.Microsecond), daemonMemory(t))
			since = time.Now()
		}
	}
	crowd := launchTimes(t, u, 51, launchBin, "/bin/true")
	fmt.Printf("users: a launch takes %.3f times that alone (%v, %v) beside %d users with 1,000 entries each\n",
		float64(crowd)/float64(alone), crowd.Round(time.Microsecond), alone.Round(time.Microsecond), n)
	fmt.Printf("users: memory of the daemon %d kB alone, %d kB with them\n", kb, daemonMemory(t))

	since = time.Now()
	restart(t, syscall.SIGTERM, "--favordynmods")
	ready := time.Since(since)
	must(t, u.in("true"))
	fmt.Printf("users: started again the daemon is ready after %v; a launch takes %v while it reads all lists\n",
		ready.Round(time.Millisecond), launchTimes(t, u, 11, launchBin, "/bin/true").Round(time.Microsecond))
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
