package reload

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// Whatever the agent does, a configuration that waits to be applied stays so.
func TestNothingInsideStartsAReload(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil, "HOME_ACCESS=write")
	b := f.start()
	f.conf([]string{"a"}, "HOME_ACCESS=write")
	rec := b.record()
	before := rec.Marshal()
	dir := b.Runtime + "/agent-sandbox/sessions"
	b.sh("trap '' USR1 USR2 HUP")                   // of its own, which reach everything inside
	for _, a := range []struct{ name, try string }{ // in this order: the registry is looked at before there is one of its own making
		{"signals to all it sees", "kill -USR1 -1; kill -HUP -1; true"},
		{"signals to the pids of outside", fmt.Sprintf("for p in %d %d %d; do kill -USR1 $p; kill -0 $p && echo reached; done", rec.Guard.PID, rec.Launcher.PID, rec.Sandbox.PID)},
		{"the registry", "ls -A " + dir + " " + f.Home + "/.local/state/agent-sandbox 2>/dev/null"},
		{"a record of its own making", "mkdir -p " + dir + "; printf '%s' x > " + dir + "/" + b.ID + "; : > " + dir + "/" + b.ID + ".reload; mkfifo " + dir + "/fifo; true"},
		{"a marker beside the record", "for d in /run/user/*/agent-sandbox/sessions; do : > $d/" + b.ID + ".reload; done; true"},
		{"the program itself", "agent-sandbox reload; agent-sandbox-reload " + b.ID + "; " + f.Command("agent-sandbox").Path + " reload " + b.ID + " | grep -v '^agent-sandbox'; true"},
		{"mount-repair on what it sees", "for p in 1 2 " + fmt.Sprint(rec.Sandbox.PID) + "; do echo 'rw " + f.p("a") + "' | " + f.Command("mount-repair").Path + " $p " + fmt.Sprint(rec.Sandbox.Start, rec.MountNS) + " && echo done; done"},
		{"the configuration", "echo 'EXTRA_WRITABLE_PATHS+=(" + f.top + ")' >> ~/.config/agent-sandbox/sandbox.conf && echo wrote; mkdir ~/.config/agent-sandbox/conf.d && echo made; mv ~/.config ~/.c && echo moved; ln -sf /tmp/x ~/.config/agent-sandbox/sandbox.conf && echo linked"},
		{"FIFOs and sockets in its reach", "find / -xdev \\( -type p -o -type s \\) -writable 2>/dev/null | while read -r p; do [ -p $p ] && echo reload > $p & done; wait; true"},
		{"/proc of others", "for p in /proc/[0-9]*; do [ -w $p/mem ] && [ $p -ef /proc/$$ ] ; done; ls /proc | grep -c '^" + fmt.Sprint(rec.Guard.PID) + "$' | grep -v 0"},
		{"its own namespaces", "unshare -Urm true && echo unshared; unshare -m true && echo unshared; mount --bind / /mnt && echo mounted"},
		{"environment of a later reload", "export SANDBOX_CONF=/tmp/x HOME_ACCESS=write; true"},
		{"the session's variables changed", "SANDBOX_SESSION=00000000 SANDBOX_PROJECT_DIR=/ agent-sandbox reload 2>/dev/null | grep ADD"},
	} {
		got := b.sh("(" + a.try + ") 2>/dev/null")
		for _, bad := range []string{"reached", "done", "wrote", "made", "moved", "linked", "unshared", "mounted", "ADD", b.ID} {
			if strings.Contains(got, bad) {
				t.Errorf("%s: %q", a.name, got)
			}
		}
		b.wantWritable(false, f.p("a"))
	}
	if !bytes.Equal(before, b.record().Marshal()) {
		t.Error("the record changed")
	}
	if !alive(rec.Guard) {
		t.Error("the guard has ended")
	}
	if strings.Contains(b.log(), "read the session record again") {
		t.Error("the guard was told something")
	}
	if _, err := os.Stat(b.file() + ".reload"); err == nil {
		t.Error("a marker appeared")
	}
	// And the reload of the user's does what the user wrote, no more.
	b.want(0, "ADD "+f.p("a"))
	b.wantWritable(false, f.top)
}

// Where a protection cannot be mounted, what lies around it is not opened.
func TestNothingIsWritableAroundAProtectionThatFailed(t *testing.T) {
	f := newFixture(t, "w/sys", "other")
	if out, err := exec.Command("mount", "-t", "sysfs", "asb", f.p("w/sys")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { exec.Command("umount", "-l", f.p("w/sys")).Run() })
	f.conf(nil)
	b := f.start()
	f.conf([]string{"w", "other"}, "EXTRA_BLOCKED_PATHS+=("+f.p("w/sys/kernel")+")")
	r := b.reload()
	if r.Code != 3 {
		t.Errorf("exit %d\n%s", r.Code, r.Stdout)
	}
	for _, p := range []string{f.p("w"), f.p("w/sys"), f.p("w/sys/kernel")} {
		if _, ok := r.find("REFUSED", p); !ok {
			t.Errorf("%s is not refused\n%s", p, r.Stdout)
		}
	}
	if l, _ := r.find("REFUSED", f.p("w")); !strings.Contains(l.detail, f.p("w/sys/kernel")) {
		t.Errorf("%+v", l)
	}
	b.wantWritable(false, f.p("w"))
	b.wantWritable(true, f.p("other"))
}

// A few dozen random edits on real sessions: what a session can do after a reload
// that applied all is what one started afresh can do, and never more.
func TestRandomEditsOnRealSessions(t *testing.T) {
	reloads := 0
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 7))
		dirs := []string{"a", "a/x", "a/x/y", "b", "b/x", "c", "c/d/e"}
		f := newFixture(t, dirs...)
		var all []string
		for _, d := range dirs {
			f.Write(f.p(d)+"/file", "k3y")
			all = append(all, f.p(d))
		}
		for _, d := range []string{"work", "work/in", ".cache"} {
			f.Write(d+"/file", "k3y")
			all = append(all, f.Home+"/"+d)
		}
		all = append(all, f.Home, f.Project, f.top)
		mode := []string{"read", "write"}[r.IntN(2)]
		sets := map[string]map[string]bool{"EXTRA_WRITABLE_PATHS": {}, "EXTRA_BLOCKED_PATHS": {}, "READONLY_MOUNTS": {f.top: true}, "BLOCKED_FILES": {}}
		names := []string{"EXTRA_WRITABLE_PATHS", "EXTRA_WRITABLE_PATHS", "EXTRA_WRITABLE_PATHS", "EXTRA_BLOCKED_PATHS", "READONLY_MOUNTS", "BLOCKED_FILES"}
		write := func() {
			var s strings.Builder
			fmt.Fprintf(&s, "HOME_ACCESS=%s\n", mode)
			for n, set := range sets {
				for p := range set {
					fmt.Fprintf(&s, "%s+=(%s)\n", n, p)
				}
			}
			f.Config(s.String())
		}
		edit := func() {
			n := names[r.IntN(len(names))]
			p := all[r.IntN(len(all)-3)]
			if n == "BLOCKED_FILES" {
				p += "/file"
			}
			if sets[n][p] {
				delete(sets[n], p)
			} else {
				sets[n][p] = true
			}
			if r.IntN(6) == 0 {
				mode = []string{"read", "write"}[r.IntN(2)]
			}
		}
		probe := "for d in " + strings.Join(all, " ") + "; do ( : > $d/.probe ) 2>/dev/null && echo w $d; cat $d/file 2>/dev/null | grep -q . && echo r $d; done; true"
		write()
		b := f.start()
		could := strings.Split(b.sh(probe), "\n")
		for range 8 {
			for range 1 + r.IntN(2) {
				edit()
			}
			write()
			got := b.reload()
			if got.Code == 1 {
				continue // a contradiction that a launch refuses as well
			}
			reloads++
			can := strings.Split(b.sh(probe), "\n")
			launch := harness.Finish(t, f.Command("agent-sandbox", "sh", "-c", probe))
			if launch.Code != 0 {
				t.Fatalf("seed %d: %s", seed, launch.Stderr)
			}
			conf, _ := os.ReadFile(f.Home + "/.config/agent-sandbox/sandbox.conf")
			has := func(list []string, s string) bool {
				for _, l := range list {
					if l == s {
						return true
					}
				}
				return false
			}
			would := strings.Split(strings.TrimSpace(launch.Stdout), "\n")
			for _, c := range can {
				if c != "" && !has(would, c) && (!has(could, c) || strings.HasPrefix(c, "w ") && got.Code == 0) {
					t.Fatalf("seed %d: after the reload %q, which a launch does not give\n%s\n%s", seed, c, got.Stdout, conf)
				}
				if c != "" && !has(could, c) && strings.HasPrefix(c, "r ") {
					t.Fatalf("seed %d: the reload uncovered %q\n%s\n%s", seed, c, got.Stdout, conf)
				}
			}
			for _, w := range would {
				if got.Code == 0 && w != "" && !has(can, w) {
					t.Fatalf("seed %d: all applied, but not %q\n%s\n%s", seed, w, got.Stdout, conf)
				}
			}
			could = can
		}
	}
	if reloads < 16 {
		t.Errorf("only %d reloads", reloads)
	}
}
