//go:build vm

package denylist

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestHomeListCannotBeChangedFromInside(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	list := u.listPath()
	folder := filepath.Dir(list)
	first := u.enter()
	box := u.enter()
	for _, command := range []string{
		">%s", "echo >>%s", "truncate -s 0 %s", "rm %s", "mv %s /tmp/away", "ln %s /tmp/link$$", "chmod 0 %s", "touch -d yesterday %s",
		"cp /dev/null %s", "cp /dev/null %s.new && mv %s.new %s",
	} {
		box.sh(strings.ReplaceAll(command, "%s", list))
	}
	for _, command := range []string{
		"mv %s %s.away", "rm -r %s", "mv $(dirname %s) /tmp/config$$", "chmod 0 %s", "touch %s/new", "mkdir %s/new", "ln -s /etc %s/new", "mkfifo %s/new",
		"mkdir /tmp/empty$$ && mv -T /tmp/empty$$ %s",
	} {
		box.sh(strings.ReplaceAll(command, "%s", folder))
	}
	// Through mounts in a namespace of the agent's.
	box.sh("unshare -Urm sh -c 'mount --bind %s /mnt; echo >/mnt/denylist; rm -f /mnt/denylist'", folder)
	box.sh("unshare -Urm sh -c 'mkdir -p /tmp/w$$; mount -t overlay -o lowerdir=/var,upperdir=%s,workdir=/tmp/w$$ overlay /mnt; rm -f /mnt/denylist; echo >/mnt/denylist'", folder)
	data, err := os.ReadFile(list)
	if err != nil || string(data) != file+"\n" {
		t.Errorf("the list is now %q, %v", data, err)
	}
	entries, _ := os.ReadDir(folder)
	if len(entries) != 1 {
		t.Errorf("the folder has %v", entries)
	}
	box.sh("agent-sandbox-exec true")
	first.denied(file)
	box.denied(file)
	u.denied(file)
}

func TestHomeListCannotAppearFromInsideWhereItsFolderIsMissing(t *testing.T) {
	u := newUser(t)
	u.mkdir(filepath.Join(u.home, ".config"))
	box := u.enter()
	box.sh("mkdir ~/.config/agent-sandbox-exec; ln -s /tmp ~/.config/agent-sandbox-exec")
	if _, err := os.Lstat(filepath.Dir(u.listPath())); err == nil {
		t.Error("the folder of the home list was made from inside")
	}
	if out := box.sh("mkdir ~/.config/claude && echo made"); out != "made" {
		t.Errorf("another folder: %q", out)
	}
}

// What an agent says from inside only adds, even where the list itself was
// shortened outside meanwhile.
func TestRequestFromInsideOnlyAdds(t *testing.T) {
	u := newUser(t)
	a, b := u.secret("a"), u.secret("b")
	u.list(a)
	box := u.enter()
	u.list(b)
	box.sh("agent-sandbox-exec true")
	box.denied(a)
	box.denied(b)
	u.readable(a) // a launch from outside takes it away
	u.denied(b)
}

func TestMovedAwayAndMadeAgainInside(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	noSecret(t, "inside", finish(t, u.in("sh", "-c", "cd; mv secret moved; ln secret linked; touch secret; cat moved linked secret")).out)
	noSecret(t, "next launch", finish(t, u.in("sh", "-c", "cd; cat moved linked secret; cat *")).out)
	if data, _ := os.ReadFile(file); string(data) != secret+"\n" {
		t.Errorf("the listed file is now %q", data)
	}
}

func TestMovedAwayOutsideStaysDenied(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.list(file)
	box := u.enter()
	must(t, u.as("sh", "-c", "cd; mv secret moved; echo new >secret"))
	u.denied(filepath.Join(u.home, "moved"))
	box.denied(filepath.Join(u.home, "moved"))
	box.denied(file)
}

func TestReplacedByRename(t *testing.T) {
	u := newUser(t)
	file := u.secret("token")
	u.list(file)
	box := u.enter()
	for range 5 {
		must(t, u.as("sh", "-c", "cd; echo "+secret+" >token.new; mv token.new token"))
		box.denied(file)
	}
	// From inside, the new file cannot get another name.
	noSecret(t, "renamed", box.sh("cd; mv token x; ln token y; cat x y token"))
	noSecret(t, "exchanged", box.sh("cd; touch z; mv -T token z; python3 -c 'import ctypes; ctypes.CDLL(None).renameat2(-100, b\"token\", -100, b\"z\", 2)'; cat z token"))
}

func TestMadeAfterTheLaunch(t *testing.T) {
	u := newUser(t)
	file := filepath.Join(u.home, "later")
	long := filepath.Join(u.home, strings.Repeat("n", 255))
	u.list(file, long)
	box := u.enter()
	for _, f := range []string{file, long} {
		u.secret(f)
		box.denied(f)
		noSecret(t, "linked", box.sh("cd; ln %s x; cat x", f))
		noSecret(t, "write-only, then read", box.sh("cat %s 2>&1 >>%s", f, f))
	}
	// Where only the name is known, an overlay of the agent's own does not hide it.
	noSecret(t, "own overlay", box.sh("unshare -Urm sh -c 'mkdir -p /tmp/ov%d; mount -t overlay -o lowerdir=%s:/var overlay /mnt && cat /mnt/later; mount -t tmpfs t /tmp/ov%d; mkdir /tmp/ov%d/u /tmp/ov%d/w; mount -t overlay -o lowerdir=%s,upperdir=/tmp/ov%d/u,workdir=/tmp/ov%d/w overlay /mnt && echo >>/mnt/later; cat /mnt/later'",
		u.uid, u.home, u.uid, u.uid, u.uid, u.home, u.uid, u.uid))
}

func TestFolderAboveCannotBeMovedFromInside(t *testing.T) {
	u := newUser(t)
	file := u.secret("a/b/c/secret")
	missing := filepath.Join(u.home, "d/later")
	u.mkdir(filepath.Dir(missing))
	u.list(file, missing)
	box := u.enter()
	for _, dir := range []string{"a", "a/b", "a/b/c"} {
		noSecret(t, dir, box.sh("cd; mv %s moved; cat moved/secret moved/c/secret moved/b/c/secret", dir))
	}
	box.sh("cd; rmdir d; mkdir d")
	u.secret(missing)
	box.denied(file)
	box.denied(missing)
}

func TestFolderMovedOutsideStaysDenied(t *testing.T) {
	u := newUser(t)
	file := u.secret("a/secret")
	u.list(file)
	box := u.enter()
	must(t, u.as("sh", "-c", "cd; mv a b"))
	box.denied(filepath.Join(u.home, "b/secret"))
	// A new file of the name there is denied, too.
	must(t, u.as("sh", "-c", "cd ~/b; echo "+secret+" >n; mv n secret"))
	box.denied(filepath.Join(u.home, "b/secret"))
	u.denied(filepath.Join(u.home, "b/secret"))
}

func TestLinkOnTheWayCannotBeChangedFromInside(t *testing.T) {
	u := newUser(t)
	u.secret("real/secret")
	must(t, u.as("ln", "-s", "real", filepath.Join(u.home, "way")))
	file := filepath.Join(u.home, "way/secret")
	u.list(file)
	box := u.enter()
	box.sh("cd; rm way; mkdir way; mv way x")
	if to, err := os.Readlink(filepath.Join(u.home, "way")); err != nil || to != "real" {
		t.Errorf("the link is now %q, %v", to, err)
	}
	box.denied(file)
}

func TestSymlinkLineIsSkippedAndTheUserIsTold(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	link := filepath.Join(u.home, "link")
	must(t, u.as("ln", "-s", file, link))
	u.list("# comment", link)
	r := finish(t, u.in("cat", file))
	if r.code != 0 || !strings.Contains(r.err, `denylist": line 2: is a symbolic link`) {
		t.Errorf("%v", r)
	}
}

func TestLinesWithoutEffectAreToldAndTheRestHolds(t *testing.T) {
	u := newUser(t)
	file := u.secret("sp ace\xff")
	u.list("relative", "~/x", u.home, filepath.Join(u.home, "nothing"), filepath.Join(u.home, "no/folder"), "/dev/null", file+"\r")
	r := finish(t, u.in("cat", file))
	if r.code != 1 || !strings.Contains(r.err, refusal) {
		t.Errorf("%v", r)
	}
	for n := 1; n <= 6; n++ {
		if !strings.Contains(r.err, fmt.Sprintf("line %d: ", n)) {
			t.Errorf("no warning for line %d: %v", n, r)
		}
	}
}

func TestBaseListFollowsLinksAndHoldsForEverybody(t *testing.T) {
	u, v := newUser(t), newUser(t)
	file := u.secret("secret")
	link := filepath.Join(u.home, "link")
	must(t, u.as("ln", "-s", "secret", link))
	if err := os.WriteFile(baseList, []byte(link+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.WriteFile(baseList, nil, 0o644)
	u.denied(file)
	v.denied(file)
	v.denied(link)
	// SIGHUP applies it to sandboxes that run.
	box := v.enter()
	other := u.secret("other")
	os.WriteFile(baseList, []byte(other+"\n"), 0o644)
	theDaemon.cmd.Process.Signal(syscall.SIGHUP)
	eventually(t, "the list after SIGHUP", func() bool { return strings.Contains(box.sh("cat %s", other), refusal) })
	eventually(t, "the end of the old list", func() bool { return strings.Contains(box.sh("cat %s", file), secret) })
}

func TestListsOfUsersDoNotBindEachOther(t *testing.T) {
	u, v := newUser(t), newUser(t)
	file := u.secret("secret")
	v.list(file)
	v.denied(file)
	u.readable(file)
}

func TestEditsCountFromTheNextLaunch(t *testing.T) {
	u := newUser(t)
	a, b := u.secret("a"), u.secret("b")
	u.list(a)
	u.denied(a)
	u.readable(b)
	u.list(a, b)
	u.denied(b)
	u.list(b)
	u.readable(a)
	u.denied(b)
}

// A list that cannot be read keeps what was denied and refuses the launch.
func TestHomeListThatCannotBeRead(t *testing.T) {
	cases := map[string]struct{ command, reason string }{
		"folder":       {"rm $L; mkdir $L", "is not a regular file"},
		"fifo":         {"rm $L; mkfifo $L", "is not a regular file"},
		"link to zero": {"rm $L; ln -s /dev/zero $L", "is a symbolic link"},
		"mode 0":       {"chmod 0 $L", "permission denied"},
		"folder mode":  {"chmod 0 $(dirname $L)", "permission denied"},
		"huge":         {"truncate -s 1G $L", "larger than 1048576 bytes"},
		"many":         {"seq -f /nothing/%.0f 9000 >$L", "more than 8192 paths"},
		"path mode":    {"mkdir ~/d; touch ~/d/f; echo ~/d/f >>$L; chmod 0 ~/d", "line 2 cannot be looked up: permission denied"},
	}
	for name, c := range cases {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			u := newUser(t)
			file := u.secret("secret")
			u.list(file)
			box := u.enter()
			must(t, u.as("sh", "-c", "L="+u.listPath()+"; "+c.command))
			u.refused(c.reason)
			box.denied(file)
		})
	}
}

func TestByteOrderMarkIsIgnored(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	u.write(u.listPath(), "\xef\xbb\xbf"+file)
	u.denied(file)
}

// A home that root cannot see into, as on NFS with root_squash: a FUSE mount.
func TestHomeThatRootCannotRead(t *testing.T) {
	u := newUser(t)
	u.mkdir(filepath.Join(u.home, ".config"))
	u.mkdir(filepath.Join(u.home, "src"))
	u.mkdir("/tmp/fuse" + u.name)
	file := u.secret("src/secret")
	u.write("src/agent-sandbox-exec/denylist", filepath.Join(u.home, ".config/secret")+"\n")
	must(t, u.as("bindfs", "--no-allow-other", filepath.Join(u.home, "src"), filepath.Join(u.home, ".config")))
	defer root(t, "umount -l %s/.config", u.home)
	if _, err := os.ReadFile(u.listPath()); err == nil {
		t.Fatal("root can read the home")
	}
	r := finish(t, u.in("cat", filepath.Join(u.home, ".config/secret")))
	if r.code != 1 || !strings.Contains(r.err, refusal) {
		t.Errorf("%v", r)
	}
	_ = file
}

func TestMapFull(t *testing.T) {
	u, v := newUser(t), newUser(t)
	file := u.secret("secret")
	u.list(file)
	box := u.enter()
	defer func() {
		theDaemon.stop(syscall.SIGTERM)
		box.cmd.Process.Kill()
		box.cmd.Wait()
		must(t, finishDetach())
		if err := theDaemon.start(); err != nil {
			t.Fatal(err)
		}
	}()
	theDaemon.stop(syscall.SIGTERM)
	box.cmd.Process.Kill()
	box.cmd.Wait()
	must(t, finishDetach())
	if err := theDaemon.start("--map-entries", "64"); err != nil {
		t.Fatal(err)
	}
	u.denied(file)
	var many []string
	for i := range 200 {
		many = append(many, v.secret(fmt.Sprintf("f%d", i)))
	}
	v.list(many...)
	v.refused("map of listed files is full")
	u.denied(file) // and nothing of the other is left
	v.list(many[0])
	v.denied(many[0])
}

// fusermount would put a mount of the agent's over a list or a listed path, for
// the next launch to see.
func TestNoMountOverAListedPathFromInside(t *testing.T) {
	u := newUser(t)
	file := u.secret("keys/secret")
	u.list(file)
	u.mkdir(filepath.Join(u.home, "empty"))
	u.mkdir(filepath.Join(u.home, "free"))
	box := u.enter()
	for _, dir := range []string{".config/agent-sandbox-exec", ".config", "keys", ""} {
		out := box.sh("bindfs --no-allow-other -o nonempty ~/empty ~/%s && echo MOUNTED", dir)
		if strings.Contains(out, "MOUNTED") {
			t.Errorf("a mount over ~/%s: %q", dir, out)
			root(t, "umount -l %s/%s", u.home, dir)
		}
	}
	if out := box.sh("bindfs --no-allow-other ~/empty ~/free && echo MOUNTED"); out != "MOUNTED" {
		t.Errorf("a mount elsewhere: %q", out)
	}
	root(t, "umount -l %s/free", u.home)
	// In a namespace of its own an agent may: so the mount sandbox works inside.
	if out := box.sh("bwrap --dev-bind / / --tmpfs ~/keys ls -A ~/keys"); out != "" {
		t.Errorf("bwrap inside: %q", out)
	}
	u.denied(file)
}
