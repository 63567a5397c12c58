package bwrap

import (
	"errors"
	"strings"
	"testing"

	"agent-sandbox/internal/cli"
)

// What bwrap prints where this machine cannot be made to fail that way.
func TestExplain(t *testing.T) {
	for _, c := range []struct {
		text       string
		host       facts
		what, mend string
	}{
		{"bwrap: setting up uid map: Permission denied", facts{appArmor: true}, "AppArmor", "/etc/apparmor.d/bwrap"},
		{"bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", facts{appArmor: true}, "AppArmor", "profile bwrap /usr/bin/bwrap"},
		{"bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted", facts{}, "security module", "apparmor"},
		{"bwrap: setting up uid map: Permission denied", facts{}, "security module", "docker"},
		{"bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.", facts{usernsOff: true}, "switched off", "kernel.unprivileged_userns_clone=1"},
		{"bwrap: No permissions to create new namespace, likely because", facts{inContainer: true}, "container", "--security-opt seccomp=unconfined"},
		{"bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)", facts{}, "used up", "user.max_user_namespaces"},
		{"bwrap: Creating new namespace failed, likely because the kernel does not support user namespaces.", facts{noUserns: true}, "switched off", "user.max_user_namespaces"},
		{"bwrap: Can't mount proc on /newroot/proc: Operation not permitted", facts{inContainer: true}, "container", "SANDBOX_BACKEND=landlock"},
		{"bwrap: Creating new namespace failed: Resource temporarily unavailable", facts{inContainer: true}, "limit", "ulimit"},
		{"bwrap: Can't open /proc/self/mountinfo: Too many open files", facts{}, "limit", "ulimit"},
		{"bwrap: Unexpected capabilities but not setuid, old file caps config?", facts{}, "capabilities", "setpriv"},
		{"bwrap: Unknown option --perms", facts{version: "0.4.1"}, "bwrap 0.4.1 is too old", "newer"},
		{"bwrap: Unknown option --whatever", facts{version: "0.8.0"}, "lacks an option", MinVersion},
		{`bwrap: Can't bind mount /oldroot/x on /newroot/x: Unable to find "/newroot/x" in mount table`, facts{}, "went away", "try again"},
		{"bwrap: Can't create file at /x: Read-only file system", facts{}, "Read-only file system", "agent-sandbox plan"},
		{"", facts{}, "said nothing", "agent-sandbox check"},
	} {
		err := explain(&failure{text: c.text}, "/usr/bin/bwrap", c.host)
		var h *cli.Hinted
		if !errors.As(err, &h) || !strings.Contains(err.Error(), c.what) || !strings.Contains(h.Hint(), c.mend) {
			t.Errorf("%q: %v; want %q, %q", c.text, err, c.what, c.mend)
		}
		if !strings.Contains(err.Error(), strings.TrimPrefix(c.text, "bwrap: ")) {
			t.Errorf("%q is lost in %q", c.text, err)
		}
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{{"0.4.1", "0.5", true}, {"0.5", "0.5", false}, {"0.5.0", "0.5", false}, {"0.11.0", "0.5", false}, {"1.0", "0.5", false}, {"0.5", "0.5.1", true}} {
		if got := older(c.a, c.b); got != c.want {
			t.Errorf("older(%s, %s) = %v", c.a, c.b, got)
		}
	}
}
