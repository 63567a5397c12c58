package reload

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"agent-sandbox/internal/mountplan"
	"agent-sandbox/test/harness"
)

// log is what the session's guard has said.
func (b *box) log() string {
	data, _ := os.ReadFile(b.Home + "/.local/state/agent-sandbox/log/" + b.ID + ".log")
	return string(data)
}

// renew puts another folder or file in the place of one, on the host.
func (f *fixture) renew(p string) {
	f.t.Helper()
	os.RemoveAll(p + ".old")
	if err := os.Rename(p, p+".old"); err != nil {
		f.t.Fatal(err)
	}
	if st, err := os.Stat(p + ".old"); err == nil && st.IsDir() {
		f.Mkdir(p)
		return
	}
	f.Write(p, "new text")
}

func TestGuardIsToldAndSaysSo(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	f.conf([]string{"a"})
	b.want(0, "ADD "+f.p("a"))
	n := len(b.record().Mounts)
	harness.Eventually(t, "the guard to read the record again", func() bool {
		return strings.Contains(b.log(), fmt.Sprintf("read the session record again: guarding %d mounts", n))
	})
	if !alive(b.record().Guard) {
		t.Error("the guard has ended")
	}
}

func TestGuardGuardsTheNewSet(t *testing.T) {
	f := newFixture(t, "w", "gone")
	f.Write(f.p("w/secret"), "k3y")
	f.conf([]string{"gone"})
	b := f.start()
	f.conf([]string{"w"}, "BLOCKED_FILES+=("+f.p("w/secret")+")")
	if r := b.reload(); r.Code != 0 {
		t.Fatalf("%d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	// The host renames over the masked file and the writable folder: both are
	// put back.
	f.renew(f.p("w/secret"))
	harness.Eventually(t, "the mask of the new file", func() bool { return b.sh("cat "+f.p("w/secret")) == "" })
	f.renew(f.p("w"))
	harness.Eventually(t, "the new folder to be writable", func() bool { return b.writable(f.p("w")) })
	// A revoked path is expected read-only, also when it is renewed.
	f.renew(f.p("gone"))
	b.wantWritable(false, f.p("gone"))
	f.renew(f.p("w"))
	harness.Eventually(t, "the guard to have looked again", func() bool { return b.writable(f.p("w")) })
	b.wantWritable(false, f.p("gone"))
}

func TestRevocationIsNeverRepairedToWritable(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.conf([]string{"a", "b"})
	b := f.start()
	for range 10 {
		f.conf([]string{"b"})
		b.want(0, "REVOKE "+f.p("a"))
		// Something for the guard to do at once.
		f.renew(f.p("b"))
		harness.Eventually(t, "the guard to repair b", func() bool { return b.writable(f.p("b")) })
		b.wantWritable(false, f.p("a"))
		f.conf([]string{"a", "b"})
		b.want(0, "ADD "+f.p("a"))
	}
}

func TestGuardWaitsWhileAReloadApplies(t *testing.T) {
	f := newFixture(t, "b")
	f.conf([]string{"b"})
	b := f.start()
	gate := f.Home + "/gate"
	f.conf([]string{"b"}, "while [[ ! -e "+gate+" ]]; do sleep 0.01; done")
	c := f.Command("agent-sandbox", "reload")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the marker", func() bool { _, err := os.Stat(b.file() + ".reload"); return err == nil })
	f.renew(f.p("b"))
	for range 5 {
		open := b.writable(f.p("b"))
		if _, err := os.Stat(b.file() + ".reload"); open && err == nil {
			t.Fatal("repaired while the reload applies")
		}
	}
	f.Write(gate, "")
	c.Wait()
	harness.Eventually(t, "the guard to make up for it", func() bool { return b.writable(f.p("b")) })
	// A marker whose process is gone pauses nothing.
	os.WriteFile(b.file()+".reload", []byte("1 1\n"), 0o600)
	os.Chown(b.file()+".reload", b.UID, b.GID)
	f.renew(f.p("b"))
	harness.Eventually(t, "the guard to ignore a dead marker", func() bool { return b.writable(f.p("b")) })
}

func TestSessionWithoutGuardCanBeReloaded(t *testing.T) {
	f := newFixture(t, "a")
	f.Write(f.p("a/secret"), "k3y")
	f.conf(nil, "MOUNT_GUARD=off")
	b := f.start()
	if b.record().Guard.PID != 0 {
		t.Fatal("a guard is recorded")
	}
	f.conf([]string{"a"}, "MOUNT_GUARD=off", "BLOCKED_FILES+=("+f.p("a/secret")+")")
	b.want(0, "ADD "+f.p("a/secret"), "ADD "+f.p("a"))
	b.wantWritable(true, f.p("a"))
	// Nobody watches; a reload puts back what the host took away.
	f.renew(f.p("a/secret"))
	if got := b.sh("cat " + f.p("a/secret")); got != "new text" {
		t.Errorf("%q", got)
	}
	b.want(0, "ADD "+f.p("a/secret"))
	if got := b.sh("cat " + f.p("a/secret")); got != "" {
		t.Errorf("%q", got)
	}
}

func TestGuardWithoutRebindLeavesWritableBindsAlone(t *testing.T) {
	f := newFixture(t, "a", "old")
	f.Write(f.p("a/secret"), "k3y")
	f.conf([]string{"old"}, "MOUNT_GUARD_REBIND=false")
	b := f.start()
	f.conf([]string{"old", "a"}, "MOUNT_GUARD_REBIND=false", "BLOCKED_FILES+=("+f.p("a/secret")+")")
	b.want(0, "ADD "+f.p("a/secret"), "ADD "+f.p("a"))
	f.renew(f.p("a/secret"))
	harness.Eventually(t, "the mask is repaired", func() bool { return b.sh("cat "+f.p("a/secret")) == "" })
	f.renew(f.p("old"))
	f.renew(f.p("a"))
	for range 10 {
		b.wantWritable(false, f.p("old"), f.p("a"))
	}
}

// A protection of what does not exist and for which no mount point can be made is
// mounted by the guard when it appears; without a guard it is refused.
func TestProtectionThatCannotBePreparedYet(t *testing.T) {
	for _, guard := range []string{"repair", "off"} {
		t.Run(guard, func(t *testing.T) {
			f := newFixture(t)
			shared := f.top + "/locked"
			os.Mkdir(shared, 0o755) // root's: the user can make nothing in it
			f.conf(nil, "MOUNT_GUARD="+guard)
			b := f.start()
			p := shared + "/secret"
			f.conf(nil, "MOUNT_GUARD="+guard, "BLOCKED_FILES+=("+p+")")
			dry, r := b.reload("--dry-run"), b.reload()
			if dry.Stdout != r.Stdout {
				t.Errorf("dry %q real %q", dry.Stdout, r.Stdout)
			}
			if guard == "off" {
				b.check(r, 3, "REFUSED "+p)
				return
			}
			b.check(r, 0, "ADD "+p)
			if !strings.Contains(r.lines[0].detail, "appears") || b.recorded(p) != mountplan.MaskFile {
				t.Errorf("%+v", r.lines[0])
			}
			b.want(0)
			os.WriteFile(p+".tmp", []byte("k3y"), 0o644)
			os.Rename(p+".tmp", p)
			harness.Eventually(t, "the mask", func() bool { return b.sh("cat "+p) == "" })
		})
	}
}

func TestChaperonFollowsTheWritablePaths(t *testing.T) {
	f := newFixture(t, "a")
	f.conf(nil)
	b := f.start()
	rec := b.record()
	if rec.Chaperon.PID == 0 {
		t.Log("no chaperon runs without Slurm: the signal to it is shown with forged records")
		return
	}
	f.conf([]string{"a"})
	b.want(0, "ADD "+f.p("a"))
	if !alive(rec.Chaperon) {
		t.Error("the chaperon has ended")
	}
}
