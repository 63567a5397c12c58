package bwrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"agent-sandbox/internal/cli"
	"agent-sandbox/internal/execpath"
)

// MinVersion is the oldest bwrap that has --perms and --chmod.
const MinVersion = "0.5"

// ErrMissing says that there is no bwrap.
var ErrMissing = errors.New("bwrap is not installed")

// ErrLimit says that a limit of the calling process is too small, not that bwrap
// cannot work on this host.
var ErrLimit = errors.New("a limit of this process is too small for the sandbox")

const installHint = "install it: apt install bubblewrap (dnf install bubblewrap)"

// Find returns the path of bwrap: the first in the absolute folders of PATH that
// is not the caller's own to change.
func Find() (string, error) {
	path, err := execpath.Host("bwrap", os.Getenv("PATH"))
	if errors.Is(err, fs.ErrPermission) {
		return "", &StartError{cli.WithHint(errors.New("the bwrap in PATH is not executable"), "see ls -l $(command -v bwrap); or "+installHint)}
	}
	if err != nil {
		return "", &StartError{cli.WithHint(ErrMissing, installHint)}
	}
	return path, nil
}

// A StartError says why bwrap did not set up the sandbox.
type StartError struct{ error }

func (e *StartError) Unwrap() error { return e.error }

// A failure is a bwrap that ended before sandbox-init reported.
type failure struct {
	text   string // what bwrap, or sandbox-init, printed
	status syscall.WaitStatus
}

func (f *failure) Error() string { return f.text }

func (s *Session) failure(ws syscall.WaitStatus) error {
	out, _ := io.ReadAll(io.NewSectionReader(s.stderr, 0, 1<<16))
	return &failure{strings.TrimSpace(string(out)), ws}
}

// moving are the messages, of all versions, that come of a mount table that changes
// between bwrap's reading it and its acting on it.
var moving = []string{
	"in mount table",
	"Unable to remount",
	"Unable to apply mount flags",
	"Can't remount readonly",
	"Can't stat mount",
	"Can't parse mountinfo",
	"Unable to mount source on destination",
	"Can't find source path",
}

// transient says whether the failure may be gone when tried again.
func (f *failure) transient() bool {
	return slices.ContainsFunc(moving, func(m string) bool { return strings.Contains(f.text, m) })
}

// facts are what a failure's explanation depends on beside its text.
type facts struct {
	appArmor    bool   // kernel.apparmor_restrict_unprivileged_userns
	usernsOff   bool   // kernel.unprivileged_userns_clone is 0 (Debian, Arch)
	noUserns    bool   // user.max_user_namespaces is 0
	inContainer bool   // docker, podman or another one around us
	version     string // of bwrap, empty where it does not say
}

func hostFacts(bwrap string) facts {
	is := func(file, want string) bool {
		data, err := os.ReadFile("/proc/sys/" + file)
		return err == nil && strings.TrimSpace(string(data)) == want
	}
	exists := func(file string) bool { _, err := os.Lstat(file); return err == nil }
	v, _ := Version(bwrap)
	return facts{
		appArmor:    is("kernel/apparmor_restrict_unprivileged_userns", "1"),
		usernsOff:   is("kernel/unprivileged_userns_clone", "0"),
		noUserns:    is("user/max_user_namespaces", "0"),
		inContainer: exists("/.dockerenv") || exists("/run/.containerenv") || os.Getenv("container") != "",
		version:     v,
	}
}

const (
	hintAppArmor = `allow it by an AppArmor profile: printf 'abi <abi/4.0>,\ninclude <tunables/global>\nprofile bwrap %s flags=(unconfined) {\n  userns,\n}\n' | sudo tee /etc/apparmor.d/bwrap && sudo apparmor_parser -r /etc/apparmor.d/bwrap`
	hintUserns   = "sudo sysctl -w kernel.unprivileged_userns_clone=1 (and a file in /etc/sysctl.d to keep it)"
	hintMax      = "sudo sysctl -w user.max_user_namespaces=15000 (and a file in /etc/sysctl.d to keep it)"
	hintDocker   = "start the container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined (docker) or --security-opt unmask=ALL (podman); or try SANDBOX_BACKEND=landlock, which needs no namespaces"
)

// crashed: by a signal of its own making, as with a stack of a few KiB.
func (f *failure) crashed() bool {
	return f.status.Signaled() && f.status.Signal() != syscall.SIGKILL || status(f.status) == cli.SignalBase+int(syscall.SIGSEGV)
}

// explain says what a failure of bwrap means, and how to mend it.
func (f *failure) explain(bwrap string) error {
	return &StartError{explain(f, bwrap, hostFacts(bwrap))}
}

func explain(f *failure, bwrap string, host facts) error {
	text := strings.TrimPrefix(f.text, "bwrap: ")
	runtime := strings.HasPrefix(text, "runtime: ") || strings.HasPrefix(text, "fatal error: ")
	if runtime {
		text, _, _ = strings.Cut(text, "\n") // the rest is the stack of a supervisor that could not start
	}
	if text == "" {
		text = "bwrap ended with status " + strconv.Itoa(status(f.status)) + " and said nothing"
	}
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	fail := func(what string) error { return fmt.Errorf("cannot set up the sandbox: %s (%s)", what, text) }
	namespaces := has("setting up uid map", "No permissions to creat", "Creating new namespace failed", "RTM_NEWADDR", "RTM_NEWLINK", "loopback:")
	switch {
	case host.version != "" && older(host.version, MinVersion):
		return cli.WithHint(fail("bwrap "+host.version+" is too old, "+MinVersion+" is needed"), "install a newer bubblewrap")
	case has("Resource temporarily unavailable", "Too many open files", "Cannot allocate memory", "File too large"), runtime, f.text == "" && f.crashed():
		return cli.WithHint(fmt.Errorf("cannot set up the sandbox: %w (%s)", ErrLimit, text), "ulimit -a shows the limits: raise the one that is reached")
	case has("Unknown option"):
		return cli.WithHint(fail("this bwrap lacks an option"), "install bubblewrap %s or newer", MinVersion)
	case namespaces && host.noUserns || has("(ENOSPC)"):
		return cli.WithHint(fail("user namespaces are switched off, or used up"), hintMax)
	case namespaces && host.usernsOff:
		return cli.WithHint(fail("user namespaces are switched off for ordinary users"), hintUserns)
	case namespaces && host.appArmor:
		return cli.WithHint(fail("AppArmor forbids bwrap user namespaces, as Ubuntu does since 23.10"), hintAppArmor, bwrap)
	case namespaces && has("Permission denied"), has("RTM_NEWADDR"):
		return cli.WithHint(fail("a security module or the container around forbids user namespaces"), "with AppArmor (Ubuntu): "+hintAppArmor+"; in a container: "+hintDocker, bwrap)
	case namespaces && !host.inContainer:
		return cli.WithHint(fail("user namespaces are not available"), hintUserns)
	case namespaces, has("Can't mount proc", "Failed to make / slave", "pivot_root"):
		return cli.WithHint(fail("the container around forbids what bwrap does"), hintDocker)
	case has("Unexpected capabilities"):
		return cli.WithHint(fail("this process has capabilities without being root"), "start it without: setpriv --ambient-caps -all --inh-caps -all agent-sandbox ...")
	case f.transient():
		return cli.WithHint(fail("a mount or folder of the host went away meanwhile"), "try again; agent-sandbox plan shows what is mounted")
	default:
		return cli.WithHint(fmt.Errorf("cannot set up the sandbox: %s", text), "agent-sandbox check; agent-sandbox plan shows the mounts")
	}
}

func notStarted(bwrap string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &StartError{cli.WithHint(ErrMissing, installHint)}
	}
	return &StartError{fmt.Errorf("cannot start %s: %w", cli.Quote(bwrap), err)}
}

// plainEnv is for a bwrap that is tried out: the caller's LD_LIBRARY_PATH may have the
// project in it.
var plainEnv = []string{"PATH=/usr/bin:/bin"}

// Version returns what `bwrap --version` says, as "0.8.0".
func Version(bwrap string) (string, error) {
	cmd := exec.Command(bwrap, "--version")
	cmd.Env, cmd.Dir = plainEnv, "/"
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s --version: %w", bwrap, err)
	}
	f := strings.Fields(string(out))
	if len(f) != 2 || f[0] != "bubblewrap" {
		return "", fmt.Errorf("%s --version says %s", bwrap, cli.Quote(strings.TrimSpace(string(out))))
	}
	return f[1], nil
}

// older compares versions of numbers and dots; what is no number counts as 0.
func older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		if i < len(bs) {
			y, _ = strconv.Atoi(bs[i])
		}
		if x != y {
			return x < y
		}
	}
	return false
}

// A Finding is one line of `agent-sandbox check`.
type Finding struct {
	State string // ok, warn or no
	What  string // what was looked at
	Why   string
	Mend  string // empty where nothing has to be
}

// probeTimeout bounds a trial start of bwrap, which takes milliseconds.
const probeTimeout = 10 * time.Second

// Probe tries what a session needs of bwrap and the host, for `agent-sandbox
// check`. Usable says whether a sandbox can be started.
func Probe() (findings []Finding, usable bool) {
	path, err := Find()
	if err != nil {
		return []Finding{finding("no", "bwrap", err)}, false
	}
	version, err := Version(path)
	switch {
	case err != nil:
		findings = append(findings, finding("warn", "bwrap", err))
	case older(version, MinVersion):
		return []Finding{{"no", "bwrap", path + " is " + version + ", " + MinVersion + " is needed", "install a newer bubblewrap"}}, false
	default:
		findings = append(findings, Finding{"ok", "bwrap", version + ", " + path, ""})
	}

	host := hostFacts(path)
	// With little memory bwrap's monitor can wait for ever for a child that failed.
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--unshare-user", "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "true")
	cmd.Env, cmd.Dir = plainEnv, "/"
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		f := &failure{text: strings.TrimSpace(stderr.String())}
		if cmd.ProcessState != nil {
			f.status = cmd.ProcessState.Sys().(syscall.WaitStatus)
		}
		return append(findings, finding("no", "user namespaces", explain(f, path, host))), false
	}
	findings = append(findings, Finding{"ok", "user namespaces", "a sandbox with its own processes could be started", ""})
	if host.appArmor {
		findings = append(findings, Finding{"ok", "apparmor", "restricts user namespaces on this host, and lets bwrap make them", ""})
	}
	return findings, true
}

func finding(state, what string, err error) Finding {
	f := Finding{State: state, What: what, Why: err.Error()}
	var h *cli.Hinted
	if errors.As(err, &h) {
		f.Mend = h.Hint()
	}
	return f
}
