package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// Programs are the names of the suite's own binaries.
var Programs = []string{"agent-sandbox", "agent-sandbox-reload", "agent-sandbox-exec", "agent-sandbox-execd",
	"mount-repair", "mount-guard", "chaperon", "chaperon-stub"}

// Self is the path of the running binary, with links followed.
func Self() (string, error) {
	p, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(p)
}

// libexec are the folders of helpers, in the order in which they are looked
// through: the binary's own, the one that belongs to it where the suite is
// installed as a whole, and the one set at build time.
func libexec(self string) []string {
	bin := filepath.Dir(self)
	return []string{bin, filepath.Join(filepath.Dir(bin), "libexec", "agent-sandbox"), Libexec}
}

// Data finds a folder of the shipped data files in the same way.
func Data(name string) string {
	dir := filepath.Join(Datadir, name)
	self, err := Self()
	if err != nil {
		return dir
	}
	bin := filepath.Dir(self)
	for _, d := range []string{filepath.Join(bin, "share", name), filepath.Join(filepath.Dir(bin), "share", "agent-sandbox", name)} {
		if st, err := os.Stat(d); err == nil && st.IsDir() {
			return d
		}
	}
	return dir
}

// Helper finds a program of the suite: beside the running binary, else in
// the folders of libexec; never through PATH, which an agent may have a hand in.
func Helper(name string) (string, error) {
	self, err := Self()
	if err != nil {
		return "", err
	}
	for _, dir := range libexec(self) {
		p := filepath.Join(dir, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", WithHint(fmt.Errorf("cannot find the helper %s beside %s or in %s", Quote(name), Quote(self), Quote(Libexec)),
		"install the whole suite: make install, or the Debian package agent-sandbox")
}

// Binaries are the files of the suite that exist, for the protection of each.
func Binaries() []string {
	self, err := Self()
	if err != nil {
		return nil
	}
	var out []string
	for _, dir := range libexec(self) {
		for _, name := range Programs {
			if p := filepath.Join(dir, name); exists(p) {
				out = append(out, p)
			}
		}
	}
	if p := Data("agents"); exists(p) {
		out = append(out, p)
	}
	return out
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}
