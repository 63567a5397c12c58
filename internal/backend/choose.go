package backend

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"agent-sandbox/internal/bwrap"
	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/firejail"
	"agent-sandbox/internal/landlock"
)

// Names are the backends in the order in which auto takes them.
var Names = []string{"bwrap", "firejail", "landlock"}

// Probe tries a backend for real, and says whether a session can run on it and,
// for `agent-sandbox check`, what was found.
func Probe(name string) (findings []bwrap.Finding, usable bool) {
	switch name {
	case "bwrap":
		return bwrap.Probe()
	case "firejail":
		return probeFirejail()
	}
	return probeLandlock()
}

// Choose is the first backend of the given ones that works. Where none does, the
// error says of each why.
func Choose(names ...string) (string, error) {
	var why []string
	var mend string
	for _, name := range names {
		findings, usable := Probe(name)
		if usable {
			return name, nil
		}
		for _, f := range findings {
			if f.State == "no" {
				why = append(why, fmt.Sprintf("%s: %s", name, f.Why))
				if mend == "" {
					mend = f.Mend
				}
			}
		}
	}
	err := fmt.Errorf("no backend works here: %s", strings.Join(why, "; "))
	if mend != "" {
		err = cli.WithHint(err, "%s", mend)
	}
	return "", cli.WithHint(err, "agent-sandbox check says more")
}

const firejailMend = "apt install firejail; it has to be set-uid root: chmod u+s /usr/bin/firejail"

func probeFirejail() ([]bwrap.Finding, bool) {
	path, err := firejail.Find()
	if err != nil {
		return []bwrap.Finding{{State: "no", What: "firejail", Why: "not installed", Mend: "apt install firejail"}}, false
	}
	cmd := exec.Command(path, "--quiet", "--noprofile", "--caps.drop=all", "--nonewprivs", "--seccomp", "--private-dev", "--deterministic-exit-code", "--", "true")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "SHELL=/bin/sh"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		why := strings.TrimSpace(string(out))
		if why == "" {
			why = err.Error()
		}
		return []bwrap.Finding{{State: "no", What: "firejail", Why: "cannot start a command: " + firstLine(why), Mend: firejailMend}}, false
	}
	return []bwrap.Finding{{State: "ok", What: "firejail", Why: "a command could be started, " + path}}, true
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

const landlockMend = "boot a kernel with landlock (CONFIG_SECURITY_LANDLOCK, and landlock in lsm=)"

// probeLandlock restricts a thread that does nothing else and ends.
func probeLandlock() ([]bwrap.Finding, bool) {
	no := func(err error) ([]bwrap.Finding, bool) {
		return []bwrap.Finding{{State: "no", What: "landlock", Why: err.Error(), Mend: landlockMend}}, false
	}
	abi, err := landlock.ABI()
	if err != nil {
		return no(err)
	}
	if err := onThread(landlock.TryOut); err != nil {
		return no(err)
	}
	f := bwrap.Finding{State: "ok", What: "landlock", Why: fmt.Sprintf("version %d, and it refuses what it should", abi)}
	if abi < landlock.ScopesABI {
		f.State = "warn"
		f.Why = fmt.Sprintf("version %d has no scopes: abstract sockets can be reached", abi)
		f.Mend = "Linux 6.12 or newer, or NETWORK_FILTER_MODE=isolated"
	}
	return []bwrap.Finding{f}, true
}

// onThread runs f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The main thread cannot end. Held here, it is not the one that
			// the next call gets.
			err := onThread(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// Effective is the backend that a launch would take: the named one, or of auto the
// first that works; bwrap where none does.
func Effective(name string) string {
	if name != "auto" {
		return name
	}
	if name, err := Choose(Names...); err == nil {
		return name
	}
	return "bwrap"
}
