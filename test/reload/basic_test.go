package reload

import (
	"os"
	"strings"
	"testing"
)

func TestAdditionIsWritableAtOnce(t *testing.T) {
	f := newFixture(t, "a", "b")
	f.conf(nil)
	b := f.start()
	b.wantWritable(false, f.p("a"), f.p("b"))
	f.conf([]string{"a"})
	b.want(0, "ADD "+f.p("a"))
	b.wantWritable(true, f.p("a"))
	b.wantWritable(false, f.p("b"), f.top)
	b.sh("echo hello > " + f.p("a") + "/file")
	if got, _ := os.ReadFile(f.p("a/file")); string(got) != "hello\n" {
		t.Errorf("the host reads %q", got)
	}
	b.wantPlan()
}

func TestNothingToDoSaysNothing(t *testing.T) {
	for _, mode := range []string{"restricted", "tmpwrite", "read", "write"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t, "a")
			f.Mkdir(f.Home + "/.claude")
			f.Write(".bashrc", "# rc\n")
			f.Write(".gitconfig", "[user]\n")
			f.conf([]string{"a"}, "HOME_ACCESS="+mode)
			b := f.start()
			before := b.record().Marshal()
			b.want(0)
			if r := b.reload(); !strings.Contains(r.Stderr, "nothing to do") {
				t.Errorf("stderr %q", r.Stderr)
			}
			if after := b.record().Marshal(); string(before) != string(after) {
				t.Errorf("the record changed:\n%s\n%s", before, after)
			}
			b.wantPlan()
		})
	}
}

func TestRevocationIsReadOnlyNotDetached(t *testing.T) {
	f := newFixture(t, "a")
	f.Write(f.p("a/keep"), "text")
	f.conf([]string{"a"})
	b := f.start()
	b.wantWritable(true, f.p("a"))
	n := len(b.below(f.top))
	f.conf(nil)
	b.want(0, "REVOKE "+f.p("a"))
	b.wantWritable(false, f.p("a"))
	if got := b.sh("cat " + f.p("a/keep")); got != "text" {
		t.Errorf("reads %q after the revocation", got)
	}
	if got := len(b.below(f.top)); got != n {
		t.Errorf("%d mounts, %d before", got, n)
	}
	b.wantPlan()
	b.want(0)
}
