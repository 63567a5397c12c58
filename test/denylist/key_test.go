//go:build vm

package denylist

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
)

// mount makes a file system of a kind below a new folder and returns it.
func mount(t testing.TB, u *user, kind string) string {
	t.Helper()
	base := t.TempDir()
	root(t, "chmod 755 %s %s", filepath.Dir(base), base)
	dir := filepath.Join(base, "mnt")
	root(t, "mkdir -p %s", dir)
	disk := func(fs string) {
		root(t, "truncate -s 320M %s/disk && mkfs.%s -q %s/disk && mount -o loop %s/disk %s", base, fs, base, base, dir)
	}
	switch kind {
	case "ext4", "xfs":
		disk(kind)
	case "tmpfs":
		root(t, "mount -t tmpfs tmpfs %s", dir)
	case "btrfs-top":
		disk("btrfs")
	case "btrfs-subvolume":
		disk("btrfs")
		root(t, "btrfs -q subvolume create %s/sub", dir)
		dir += "/sub"
	case "btrfs-subvolume-mount":
		disk("btrfs")
		root(t, "btrfs -q subvolume create %s/sub && mkdir %s/m && mount -o loop,subvol=sub %s/disk %s/m", dir, base, base, base)
		t.Cleanup(func() { root(t, "umount -l %s/m", base) })
		t.Cleanup(func() { root(t, "umount -l %s", filepath.Join(base, "mnt")) })
		root(t, "chmod 777 %s/m", base)
		return base + "/m"
	case "overlay-one-fs":
		root(t, "cd %s && mkdir l u w && chmod 777 l u", base)
		root(t, "cd %s && mount -t overlay -o lowerdir=l,upperdir=u,workdir=w overlay mnt", base)
	case "overlay-two-fs":
		root(t, "cd %s && mkdir l up && mount -t tmpfs tmpfs up && mkdir up/u up/w && chmod 777 l up/u", base)
		root(t, "cd %s && mount -t overlay -o lowerdir=l,upperdir=up/u,workdir=up/w overlay mnt", base)
		t.Cleanup(func() { root(t, "umount -l %s/up", base) })
	case "overlay-two-lower":
		root(t, "cd %s && mkdir l l2 up && mount -t tmpfs tmpfs l2 && mount -t tmpfs tmpfs up && mkdir up/u up/w && chmod 777 l l2 up/u", base)
		root(t, "cd %s && mount -t overlay -o lowerdir=l:l2,upperdir=up/u,workdir=up/w overlay mnt", base)
		t.Cleanup(func() { root(t, "umount -l %s/up %s/l2", base, base) })
	default:
		t.Fatalf("no file system %q", kind)
	}
	root(t, "chmod 777 %s", dir)
	t.Cleanup(func() { root(t, "umount -l %s", filepath.Join(base, "mnt")) })
	return dir
}

// The key is the one the kernel sees, on every kind of file system: a file that
// was there, one that replaces it, and a hard link.
func testKey(t testing.TB, kind string) {
	u := newUser(t)
	dir := mount(t, u, kind)
	file := u.secret(filepath.Join(dir, "secret"))
	other := u.secret(filepath.Join(dir, "other"))
	u.list(file)
	u.denied(file)
	u.readable(other)
	box := u.enter()
	must(t, u.as("ln", file, filepath.Join(dir, "link")))
	box.denied(filepath.Join(dir, "link"))
	must(t, u.as("sh", "-c", fmt.Sprintf("echo %s >%s/new && mv %s/new %s", secret, dir, dir, file)))
	box.denied(file)
	box.denied(filepath.Join(dir, "link"))
	u.denied(filepath.Join(dir, "link")) // while the box runs, the line is listed
}

func TestKeyExt4(t *testing.T)                { testKey(t, "ext4") }
func TestKeyXfs(t *testing.T)                 { testKey(t, "xfs") }
func TestKeyTmpfs(t *testing.T)               { testKey(t, "tmpfs") }
func TestKeyBtrfsTop(t *testing.T)            { testKey(t, "btrfs-top") }
func TestKeyBtrfsSubvolume(t *testing.T)      { testKey(t, "btrfs-subvolume") }
func TestKeyBtrfsSubvolumeMount(t *testing.T) { testKey(t, "btrfs-subvolume-mount") }
func TestKeyOverlayOneFS(t *testing.T)        { testKey(t, "overlay-one-fs") }
func TestKeyOverlayTwoFS(t *testing.T)        { testKey(t, "overlay-two-fs") }
func TestKeyOverlayTwoLower(t *testing.T)     { testKey(t, "overlay-two-lower") }

// The root disk is NVMe, whose devices have major number 259.
func TestKeyDeviceMajor259(t *testing.T) {
	u := newUser(t)
	file := u.secret("secret")
	var st syscall.Stat_t
	if err := syscall.Stat(file, &st); err != nil || st.Dev>>8&0xfff != 259 {
		t.Fatalf("device %#x, %v", st.Dev, err)
	}
	u.list(file)
	u.denied(file)
}

func TestKeyBtrfsSnapshotAndSameNumberInAnotherSubvolume(t *testing.T) {
	u := newUser(t)
	dir := mount(t, u, "btrfs-top")
	root(t, "cd %s && btrfs -q subvolume create a && btrfs -q subvolume create b && chmod 777 a b", dir)
	a, b := u.secret(dir+"/a/f"), u.secret(dir+"/b/f")
	u.list(a, b)
	u.denied(a)
	u.denied(b)
}

func testOverlayLayer(t testing.TB, kind, layer string) {
	u := newUser(t)
	dir := mount(t, u, kind)
	base := filepath.Dir(dir)
	real := u.secret(filepath.Join(base, layer, "secret"))
	merged := filepath.Join(dir, "secret")
	u.list(merged)
	u.denied(merged)
	u.denied(real)
	// Through a bind mount of the layer in a namespace of the agent's.
	r := finish(t, u.in("unshare", "-Urm", "sh", "-c", fmt.Sprintf("mount --bind %s/%s /mnt && cat /mnt/secret", base, layer)))
	noSecret(t, "bind of the layer", r.out)
	if r.code == 0 {
		t.Errorf("bind of the layer: %v", r)
	}
}

func TestOverlayListedMergedReachedThroughLower(t *testing.T) {
	testOverlayLayer(t, "overlay-two-lower", "l2")
}
func TestOverlayListedMergedReachedThroughLowerOneFS(t *testing.T) {
	testOverlayLayer(t, "overlay-one-fs", "l")
}
func TestOverlayListedMergedReachedThroughUpperOneFS(t *testing.T) {
	testOverlayLayer(t, "overlay-one-fs", "u")
}
func TestOverlayListedMergedReachedThroughUpper(t *testing.T) {
	testOverlayLayer(t, "overlay-two-fs", "up/u")
}

// The other way round: what is listed lies in the lower folder.
func TestOverlayListedLowerReachedThroughMerged(t *testing.T) {
	u := newUser(t)
	dir := mount(t, u, "overlay-two-fs")
	real := u.secret(filepath.Join(filepath.Dir(dir), "l/secret"))
	u.list(real)
	u.denied(filepath.Join(dir, "secret"))
	// Copying it up reads it too.
	r := finish(t, u.in("sh", "-c", "echo more >>"+filepath.Join(dir, "secret")))
	if r.code == 0 {
		t.Errorf("copy-up: %v", r)
	}
}

func TestInodeNumberUsedAgain(t *testing.T) {
	u := newUser(t)
	dir := mount(t, u, "ext4")
	file := u.secret(filepath.Join(dir, "secret"))
	u.list(file)
	box := u.enter()
	box.denied(file)
	var old, now syscall.Stat_t
	if err := syscall.Stat(file, &old); err != nil {
		t.Fatal(err)
	}
	must(t, u.as("rm", file))
	for i := range 50 {
		other := u.write(filepath.Join(dir, fmt.Sprintf("other%d", i)), "harmless\n")
		if err := syscall.Stat(other, &now); err != nil {
			t.Fatal(err)
		}
		if now.Ino == old.Ino {
			if out := box.sh("cat %s", other); out != "harmless" {
				t.Errorf("an innocent file with the number of a deleted one: %q", out)
			}
			return
		}
	}
	t.Fatal("ext4 did not use the number again")
}
