package packagetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"agent-sandbox/test/harness"
)

// The profile is read by AppArmor 4 (of Debian 13, as in Ubuntu 24.04), and not by
// AppArmor 3 of Debian 12, which is why postinst looks before it puts it in place.
func TestAppArmorProfile(t *testing.T) {
	harness.Need(t, os.Getuid() == 0, "fetching packages for another release needs root")
	dir := t.TempDir()
	fetch := filepath.Join(dir, "fetch")
	if err := os.WriteFile(fetch, []byte(`
set -eu
cd "$1"
mkdir -p lists/partial cache/archives/partial root
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${ASB_MIRROR:-http://deb.debian.org/debian} $2 main" >sources.list
where=$1
apt() { apt-get -qq -o Dir::Etc::sourcelist="$where/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State="$where" -o Dir::State::status=/dev/null -o Dir::Cache="$where/cache" -o APT::Sandbox::User=root "$@"; }
apt update
apt download apparmor libc6
for d in *.deb; do dpkg -x "$d" root; done
`), 0o755); err != nil {
		t.Fatal(err)
	}
	parse := func(release string) error {
		where := filepath.Join(dir, release)
		if err := os.Mkdir(where, 0o755); err != nil {
			t.Fatal(err)
		}
		command(t, nil, "sh", fetch, where, release)
		lib := filepath.Join(where, "root/lib/x86_64-linux-gnu")
		if _, err := os.Stat(filepath.Join(lib, "libc.so.6")); err != nil {
			lib = filepath.Join(where, "root/usr/lib/x86_64-linux-gnu")
		}
		parser, _ := filepath.Glob(filepath.Join(where, "root/*/apparmor_parser"))
		if len(parser) == 0 {
			parser, _ = filepath.Glob(filepath.Join(where, "root/usr/*/apparmor_parser"))
		}
		if len(parser) == 0 {
			t.Fatalf("no apparmor_parser in apparmor of %s", release)
		}
		base := filepath.Join(where, "root/etc/apparmor.d")
		features, _ := filepath.Glob(filepath.Join(base, "abi/[34].0"))
		newest := features[len(features)-1]
		c := exec.Command(filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, parser[0],
			"--skip-kernel-load", "--skip-cache", "--base", base, "--policy-features", newest, "--kernel-features", newest,
			filepath.Join(harness.Root(), "apparmor/agent-sandbox"))
		out, err := c.CombinedOutput()
		t.Logf("%s: %v\n%s", release, err, out)
		return err
	}
	if err := parse("trixie"); err != nil {
		t.Errorf("AppArmor 4 does not read the profile: %v", err)
	}
	if err := parse("bookworm"); err == nil {
		t.Error("AppArmor 3 reads the profile: then it can be installed everywhere")
	}
}
