// Package packagetest checks what is built and shipped: that it is the same wherever
// it is built, that every list of it agrees, and that Debian's checker has nothing
// to say. The life of the packages on a system is test/vm/suites/packages.
package packagetest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(harness.Root(), path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// command runs at the top of the checkout and gives standard output; it has to succeed.
func command(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.Command(name, args...)
	c.Dir = harness.Root()
	c.Env = append(os.Environ(), env...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

func version(t *testing.T) string { return strings.TrimSpace(read(t, "VERSION")) }

// debs are the packages of this machine's architecture that `make package` left in build/.
func debs(t *testing.T) []string {
	t.Helper()
	_, err := exec.LookPath("dpkg-buildpackage")
	harness.Need(t, err == nil, "dpkg-buildpackage is not installed: run make deps")
	arch := strings.TrimSpace(command(t, nil, "dpkg", "--print-architecture"))
	var found []string
	for _, name := range []string{"agent-sandbox", "agent-sandbox-exec"} {
		deb := fmt.Sprintf("build/%s_%s_%s.deb", name, version(t), arch)
		_, err := os.Stat(filepath.Join(harness.Root(), deb))
		harness.Need(t, err == nil, deb+" is missing: run make package")
		found = append(found, deb)
	}
	return found
}

// contents are the paths in a package, those of folders with a slash at the end.
func contents(t *testing.T, deb string) []string {
	t.Helper()
	var paths []string
	for line := range strings.Lines(command(t, nil, "dpkg-deb", "--contents", deb)) {
		paths = append(paths, strings.TrimPrefix(strings.Fields(line)[5], "."))
	}
	return paths
}

// The version stands in VERSION; the two change logs name it first.
func TestVersionsAgree(t *testing.T) {
	want := version(t)
	debian := regexp.MustCompile(`^agent-sandbox \(([^)]+)\) `).FindStringSubmatch(read(t, "debian/changelog"))
	if debian == nil || debian[1] != want {
		t.Errorf("debian/changelog begins with %q, VERSION is %s", debian, want)
	}
	notes := regexp.MustCompile(`(?m)^## (\S+) - (\d{4}-\d\d-\d\d)$`).FindStringSubmatch(read(t, "CHANGELOG.md"))
	if notes == nil || notes[1] != want {
		t.Fatalf("CHANGELOG.md begins with %q, VERSION is %s", notes, want)
	}
	// The same day, and the same text but for its line breaks and quotes.
	day := command(t, nil, "date", "-u", "+%Y-%m-%d", "-d", command(t, nil, "dpkg-parsechangelog", "-S", "Date"))
	if strings.TrimSpace(day) != notes[2] {
		t.Errorf("debian/changelog is of %s CHANGELOG.md of %s", day, notes[2])
	}
	plain := func(s string) string {
		return strings.Join(strings.Fields(strings.NewReplacer("`", "", "*", "").Replace(s)), " ")
	}
	_, text, _ := strings.Cut(read(t, "CHANGELOG.md"), notes[0])
	text, _, _ = strings.Cut(text, "\n## ")
	_, entry, _ := strings.Cut(read(t, "debian/changelog"), "\n")
	entry, _, _ = strings.Cut(entry, "\n -- ")
	if plain(text) != plain(entry) {
		t.Errorf("the entries of %s differ:\nCHANGELOG.md:     %s\ndebian/changelog: %s", want, plain(text), plain(entry))
	}
}

// copyTree copies the checkout, without what is built, to another path.
func copyTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "another place")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "sh", "-c", `tar -c --exclude=./build --exclude=./.cache . | tar -x -C "$1"`, "sh", dir)
	return dir
}

func digest(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(b))
}

// Built in another folder, with nothing taken from a cache, under another umask,
// time zone and language: the same binaries and the same packages.
func TestReproducible(t *testing.T) {
	root, other := harness.Root(), copyTree(t)
	made := debs(t)
	env := []string{"GOCACHE=" + filepath.Join(t.TempDir(), "cache"), "TZ=Asia/Tokyo", "LC_ALL=C"}
	command(t, env, "sh", "-c", `umask 077 && cd "$1" && make build && scripts/package`, "sh", other)

	programs, err := filepath.Glob(filepath.Join(root, "cmd/*"))
	if err != nil || len(programs) == 0 {
		t.Fatalf("no programs: %v", err)
	}
	var files []string
	for _, p := range programs {
		files = append(files, filepath.Join("build", filepath.Base(p)))
	}
	for _, f := range append(files, made...) {
		if digest(t, filepath.Join(root, f)) != digest(t, filepath.Join(other, f)) {
			t.Errorf("%s differs when it is built elsewhere (or is older than the sources: make build package)", f)
		}
	}
}

func TestLintian(t *testing.T) {
	debs(t)
	changes, _ := filepath.Glob(filepath.Join(harness.Root(), "build/agent-sandbox_"+version(t)+"_*.changes"))
	if len(changes) == 0 {
		t.Fatal("no .changes in build/: run make package")
	}
	for _, c := range changes {
		command(t, nil, "lintian", "--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0", c)
	}
}

// files lists what is no folder below dir, as absolute paths.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			paths = append(paths, strings.TrimPrefix(p, dir))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(paths)
	return paths
}

// `make install` puts the same files in place as the two packages together, and
// `make uninstall` takes them away again but for the admin's configuration.
func TestInstall(t *testing.T) {
	dest := t.TempDir()
	args := []string{"PREFIX=/usr", "UNITDIR=/lib/systemd/system", "DESTDIR=" + dest}
	command(t, nil, "make", append(args, "install")...)
	installed := files(t, dest)

	var shipped []string
	for _, deb := range debs(t) {
		for _, p := range contents(t, deb) {
			if strings.HasSuffix(p, "/") || strings.HasPrefix(p, "/usr/share/doc/") && !strings.HasSuffix(p, ".md") || strings.HasPrefix(p, "/usr/share/lintian/") {
				continue
			}
			if strings.HasPrefix(p, "/usr/share/man/") {
				p = strings.TrimSuffix(p, ".gz")
			}
			shipped = append(shipped, p)
		}
	}
	slices.Sort(shipped)
	if !slices.Equal(installed, shipped) {
		t.Errorf("make install and the packages differ:\ninstalled %q\nshipped   %q", installed, shipped)
	}

	mine := filepath.Join(dest, "etc/agent-sandbox-exec/denylist")
	if err := os.WriteFile(mine, []byte("/mine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, nil, "make", append(args, "uninstall")...)
	if left := files(t, dest); !slices.Equal(left, []string{"/etc/agent-sandbox-exec/denylist"}) {
		t.Errorf("left after make uninstall: %q", left)
	}
}

// What is started by path: the unit, and the hints of postinst, name what is there.
func TestUnitNamesWhatIsInstalled(t *testing.T) {
	dest := t.TempDir()
	command(t, nil, "make", "PREFIX=/opt/x", "DESTDIR="+dest, "install")
	unit, err := os.ReadFile(filepath.Join(dest, "opt/x/lib/systemd/system/agent-sandbox-execd.service"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^Exec\w+=[-+!@]*(/\S+)`).FindAllSubmatch(unit, -1)
	if len(lines) == 0 {
		t.Fatal("no Exec line in the unit")
	}
	for _, l := range lines {
		if !bytes.HasPrefix(l[1], []byte("/opt/x/sbin/")) {
			continue // a program of the system, such as /bin/kill
		}
		if _, err := os.Stat(filepath.Join(dest, string(l[1]))); err != nil {
			t.Errorf("%s: %v", l[0], err)
		}
	}
	if !bytes.Contains(unit, []byte("ExecStart=/opt/x/sbin/agent-sandbox-execd")) {
		t.Errorf("the unit does not start the installed daemon:\n%s", unit)
	}
}

// A path under FILES of a man page is in a package, as a file, a folder or what a pattern
// stands for. What an admin writes, his sandbox.conf, has its folder in one. Places that
// only exist at run time or belong to a user are no business of the packages.
func TestManPagesNameShippedFiles(t *testing.T) {
	var shipped []string
	for _, deb := range debs(t) {
		for _, p := range contents(t, deb) {
			shipped = append(shipped, strings.TrimSuffix(p, "/"))
		}
	}
	pages, _ := filepath.Glob(filepath.Join(harness.Root(), "man/*.[1-8]"))
	if len(pages) == 0 {
		t.Fatal("no man pages")
	}
	entry := regexp.MustCompile(`(?m)^\.It Pa (/\S+)`)
	seen := 0
	for _, page := range pages {
		_, section, _ := strings.Cut(read(t, strings.TrimPrefix(page, harness.Root()+"/")), "\n.Sh FILES\n")
		section, _, _ = strings.Cut(section, "\n.Sh ")
		for _, m := range entry.FindAllStringSubmatch(section, -1) {
			want := strings.TrimSuffix(m[1], "/")
			switch {
			case strings.HasPrefix(want, "/run/") || strings.HasPrefix(want, "/sys/"):
				continue
			case want == "/etc/agent-sandbox/sandbox.conf":
				want = filepath.Dir(want)
			}
			seen++
			if !slices.ContainsFunc(shipped, func(p string) bool { ok, _ := filepath.Match(want, p); return ok }) {
				t.Errorf("%s: FILES names %s, which no package has", filepath.Base(page), m[1])
			}
		}
	}
	if seen == 0 {
		t.Error("no man page names a shipped file: the test looks for the wrong form")
	}
}

// Every command has a man page, a package that ships it, and completion where users type it.
func TestEveryCommandIsShippedAndDocumented(t *testing.T) {
	var all []string
	for _, deb := range debs(t) {
		all = append(all, contents(t, deb)...)
	}
	commands, _ := filepath.Glob(filepath.Join(harness.Root(), "cmd/*"))
	for _, c := range commands {
		name := filepath.Base(c)
		for _, form := range []string{"/usr/*bin/" + name, "/usr/libexec/agent-sandbox/" + name} {
			i := slices.IndexFunc(all, func(p string) bool { ok, _ := filepath.Match(form, p); return ok })
			if i < 0 {
				continue
			}
			section := "8"
			if strings.HasPrefix(all[i], "/usr/bin/") {
				section = "1"
				if !slices.Contains(all, "/usr/share/bash-completion/completions/"+name) {
					t.Errorf("%s has no completion", name)
				}
			}
			if page := "/usr/share/man/man" + section + "/" + name + "." + section + ".gz"; !slices.Contains(all, page) {
				t.Errorf("%s is shipped without %s", all[i], page)
			}
			name = ""
			break
		}
		if name != "" {
			t.Errorf("no package has %s", name)
		}
	}
}
