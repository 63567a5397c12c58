package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// A plan of thousands of lines, more than bwrap takes: all of it holds when the
// command starts, and reload and guard know it as any other.
func TestThousandsOfMasks(t *testing.T) {
	t.Parallel()
	const n = 3000
	u := harness.NewUser(t)
	var conf strings.Builder
	for i := range n {
		u.Write(fmt.Sprintf("proj/s/%d", i), "secret")
		fmt.Fprintf(&conf, "BLOCKED_FILES+=(%s/s/%d)\n", u.Project, i)
	}
	u.Mkdir(u.Home + "/ro/rw")
	fmt.Fprintf(&conf, "READONLY_MOUNTS+=(%[1]s/ro)\nEXTRA_WRITABLE_PATHS+=(%[1]s/ro/rw)\nPROJECT_READONLY+=(deep/kept)\n", u.Home)
	u.Write("proj/deep/kept/file", "x")
	u.Config(conf.String())
	s := harness.NewShell(t, u.Command("agent-sandbox", "bash", "--norc", "--noprofile"))
	if got := s.Sh("cat s/* | wc -c; ls s | wc -l"); got != fmt.Sprintf("0\n%d", n) {
		t.Errorf("bytes and files shown: %q", got)
	}
	for _, attack := range []string{
		"echo x > s/7", "rm -f s/7", "mv s/7 s/x", "mv s s2", "mv deep deep2", "echo x > deep/kept/file", "touch ~/ro/x", "umount s/7",
	} {
		if got := s.Sh("{ " + attack + "; } 2>/dev/null && echo done"); got != "" {
			t.Errorf("%s: %q", attack, got)
		}
	}
	if got := s.Sh("touch ~/ro/rw/x deep/x s/new && echo yes"); got != "yes" {
		t.Errorf("what is to be writable is not: %q", got)
	}
	if r := u.Run("agent-sandbox", "reload"); r.Code != 0 || r.Stdout != "" {
		t.Errorf("reload: %d %.300s %.300s", r.Code, r.Stdout, r.Stderr)
	}
	next := filepath.Join(u.Project, "s/next")
	u.Write(next, "secret")
	if err := os.Rename(next, filepath.Join(u.Project, "s/7")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "mask of the new file", func() bool { return s.Sh("cat s/7") == "" })
	s.Exit()
}
