package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/record"
	"agent-sandbox/internal/sys"
)

const (
	requests = "/run/agent-sandbox-exec/req"
	answers  = "/run/agent-sandbox-exec/ans"

	// patience is how long an answer may take in all.
	patience = 5 * time.Second
	// pause is how long to wait before asking again where too many requests of
	// this user lie in the folder: the kernel gives one back every 31 ms.
	pause = 20 * time.Millisecond
)

var (
	errGone = errors.New("the request disappeared without an answer")
	errLate = errors.New("no answer from agent-sandbox-execd")
)

// enter gets this process into its user's cgroup or fails. It believes a yes only
// when root wrote it and the kernel says the same.
func enter(p cli.Printer) error {
	uid := os.Getuid()
	if os.Geteuid() != uid {
		return errors.New("cannot run with two identities: the effective uid is not the real one")
	}
	warnings, err := ask()
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(warnings, "\n"), "\n") {
		if line != "" {
			p.Warn(record.Escape(line))
		}
	}
	if err := inside(uid); err != nil {
		return err
	}
	return noListedFile()
}

// ask asks the daemon, again under another name when the request disappears: any
// process of this user can remove it, so that this means nothing.
func ask() (warnings string, err error) {
	pid := strconv.Itoa(os.Getpid())
	name := pid
	end := time.Now().Add(patience)
	err = errLate
	for n := 1; time.Now().Before(end); n++ {
		var answer string
		answer, err = request(name, end)
		switch {
		case err == nil && answer == "ok":
			return read(name + ".warnings"), nil
		case err == nil:
			reason, ok := strings.CutPrefix(answer, "refused: ")
			if !ok {
				return "", fmt.Errorf("agent-sandbox-execd answered %s", cli.Quote(answer))
			}
			return "", fmt.Errorf("refused: %s", record.Escape(reason))
		case errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.ENOSPC):
			time.Sleep(pause)
		case errors.Is(err, errGone), errors.Is(err, syscall.EEXIST):
		case errors.Is(err, fs.ErrNotExist):
			return "", cli.WithHint(fmt.Errorf("agent-sandbox-execd is not ready: %w", err),
				"systemctl status agent-sandbox-execd; inside a container or another sandbox its folder may be missing")
		default:
			return "", err
		}
		name = pid + "." + strconv.Itoa(n)
	}
	return "", cli.WithHint(err, "systemctl status agent-sandbox-execd")
}

// request makes one request and waits for its answer.
func request(name string, end time.Time) (string, error) {
	path := requests + "/" + name
	fd, err := sys.OpenFD(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return "", err
	}
	asked, err := sys.FstatFD(fd)
	sys.CloseFD(fd)
	if err != nil {
		return "", err
	}
	w, err := sys.WatchRemoval(path)
	if err == nil {
		defer sys.CloseFD(w)
		if !sys.ReadableWithin(w, time.Until(end)) {
			os.Remove(path)
			return "", errLate
		}
	} else if err != syscall.ENOENT {
		os.Remove(path)
		return "", fmt.Errorf("cannot wait for the answer: %w", err)
	}
	answer, when := readAnswer(name)
	// One that is older was given to another process with this number.
	if answer == "" || when < asked.MtimeNs {
		return "", errGone
	}
	return strings.TrimSuffix(answer, "\n"), nil
}

// readAnswer reads a file of the answer folder; empty where there is none, or
// none of root's. when is the time of the answer, in nanoseconds.
func readAnswer(name string) (text string, when int64) {
	fd, err := sys.OpenFD(answers+"/"+name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", 0
	}
	defer sys.CloseFD(fd)
	st, err := sys.FstatFD(fd)
	if err != nil || !st.IsRegular() || !isRoot(st.UID) {
		return "", 0
	}
	data, err := sys.ReadFD(fd, 1<<20)
	if err != nil {
		return "", 0
	}
	return string(data), st.MtimeNs
}

func read(name string) string {
	s, _ := readAnswer(name)
	return s
}

// overflow is whom the kernel names where an owner has no number in a user
// namespace (/proc/sys/kernel/overflowuid).
const overflow = 65534

// isRoot says whether an owner is root. In a user namespace root may have no
// number; only root makes anything in the folder of answers, and what is believed
// in the end is the own cgroup.
func isRoot(uid uint32) bool {
	return uid == 0 || uid == overflow && outer(0) != 0
}

// outer is the number, one user namespace further out, of a uid of this one; -1
// where it has none (user_namespaces(7)).
func outer(uid int) int {
	data, err := sys.ReadFile("/proc/self/uid_map")
	if err != nil {
		return -1
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		var in, out, n int
		if _, err := fmt.Sscan(line, &in, &out, &n); err == nil && uid >= in && uid-in < n {
			return out + uid - in
		}
	}
	return -1
}

// inside checks with the kernel that this process is in the group.
func inside(uid int) error {
	data, err := sys.ReadFile("/proc/self/cgroup")
	if err != nil {
		return fmt.Errorf("cannot see the own cgroup: %w", err)
	}
	// The daemon sees the number outside. In namespaces within namespaces this
	// is another one, and the launch is refused.
	want := "/agent-sandbox-exec/uid-" + strconv.Itoa(outer(uid))
	for line := range strings.SplitSeq(string(data), "\n") {
		got, ok := strings.CutPrefix(line, "0::")
		if !ok {
			continue
		}
		// In a cgroup namespace the group is seen from the namespace's root.
		for strings.HasPrefix(got, "/../") {
			got = got[len("/.."):]
		}
		if got == want {
			return nil
		}
		return fmt.Errorf("not moved: in cgroup %s, not in %s", cli.Quote(got), want)
	}
	return errors.New("not moved: in no cgroup of the cgroup2 hierarchy")
}
