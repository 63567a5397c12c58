package cli

import (
	"fmt"
	"os"
	"path/filepath"
)

// Programs are the names of the suite's own binaries.
var Programs = []string{"agent-sandbox", "agent-sandbox-reload", "agent-sandbox-exec", "agent-sandbox-execd",
	"mount-repair", "mount-guard", "chaperon"}

// Self is the path of the running binary, with links followed.
func Self() (string, error) {
	p, err := os.Executable()
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(p)
}

// Helper finds a program of the suite: beside the running binary, else in
// Libexec; never through PATH, which an agent may have a hand in.
func Helper(name string) (string, error) {
	self, err := Self()
	if err != nil {
		return "", err
	}
	beside := filepath.Join(filepath.Dir(self), name)
	for _, p := range []string{beside, filepath.Join(Libexec, name)} {
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
	for _, dir := range []string{filepath.Dir(self), Libexec} {
		for _, name := range Programs {
			if p := filepath.Join(dir, name); exists(p) {
				out = append(out, p)
			}
		}
		if p := filepath.Join(dir, "share"); dir == filepath.Dir(self) && exists(filepath.Join(p, "agents")) {
			out = append(out, filepath.Join(p, "agents"))
		}
	}
	return out
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}
