package attack

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agent-sandbox/test/harness"
)

// An agent in a session of the folder above swaps the project for a link while a
// session is started in it: that session never has another folder in its place.
func TestProjectSwappedDuringLaunch(t *testing.T) {
	u := harness.NewUser(t)
	u.Mkdir(u.Home + "/p/sub")
	u.Mkdir(u.Home + "/other")
	link := u.Home + "/p/link"
	if err := os.Symlink("../other", link); err != nil {
		t.Fatal(err)
	}
	os.Lchown(link, u.UID, u.GID)
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(100+37*(i%40)) * time.Microsecond):
				unix.Renameat2(unix.AT_FDCWD, u.Home+"/p/sub", unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	started := 0
	for range 40 {
		r := u.Run("agent-sandbox", "--project-dir", u.Home+"/p/sub", "--", "sh", "-c",
			`[ "$SANDBOX_PROJECT_DIR" = "$HOME/p/sub" ] && touch "$SANDBOX_PROJECT_DIR/hit"; echo "$SANDBOX_PROJECT_DIR"`)
		if r.Code == 0 && r.Stdout == u.Home+"/p/sub\n" {
			started++
		}
		if _, err := os.Lstat(filepath.Join(u.Home, "other/hit")); err == nil {
			t.Fatalf("a session of p/sub wrote in other: %+v", r)
		}
	}
	close(stop)
	done.Wait()
	t.Logf("%d of 40 launches ran in p/sub", started)
}

// A masked path that is a link stays masked when the host puts a file in the
// link's place, or points it elsewhere.
func TestMaskedLinkThatTheHostReplaces(t *testing.T) {
	u := harness.NewUser(t)
	u.Config("BLOCKED_FILES+=(~/proj/.env ~/proj/dangling)")
	env := u.Project + "/.env"
	u.Write(u.Project+"/real", "SECRET1")
	u.Write(u.Project+"/real2", "SECRET2")
	for from, to := range map[string]string{env: "real", u.Project + "/dangling": "../later/file"} {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
		os.Lchown(from, u.UID, u.GID)
	}
	s := harness.NewShell(t, u.Command("agent-sandbox", "--", "bash"))
	if _, err := os.Lstat(u.Home + "/later"); err == nil {
		t.Error("a folder was made where a planted link leads")
	}
	hidden := func(name string) {
		t.Helper()
		harness.Eventually(t, name+" to be masked", func() bool { return s.Sh("cat "+name+" 2>/dev/null") == "" })
	}
	hidden(".env")
	replace := func(name string, make func(tmp string)) {
		tmp := filepath.Join(u.Project, ".tmp")
		make(tmp)
		os.Lchown(tmp, u.UID, u.GID)
		if err := os.Rename(tmp, filepath.Join(u.Project, name)); err != nil {
			t.Fatal(err)
		}
	}
	replace(".env", func(tmp string) { os.Symlink("real2", tmp) })
	hidden(".env")
	hidden("real2")
	replace(".env", func(tmp string) { os.WriteFile(tmp, []byte("SECRET3"), 0o600) })
	hidden(".env")
	replace("dangling", func(tmp string) { os.WriteFile(tmp, []byte("SECRET4"), 0o600) })
	hidden("dangling")
}

// An entry that is shown read-only and masked at once is masked.
func TestSamePathReadOnlyAndMasked(t *testing.T) {
	u := harness.NewUser(t)
	u.Write("tools/secret", "SECRET")
	u.Config("HOME_READONLY+=(tools)\nEXTRA_BLOCKED_PATHS+=(~/tools)")
	if r := u.Run("agent-sandbox", "--", "ls", u.Home+"/tools"); r.Code != 0 || r.Stdout != "" {
		t.Errorf("%+v", r)
	}
}
