package mountinfo

import (
	"os"
	"strings"
	"testing"
)

func TestParseOwn(t *testing.T) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	ms, err := Parse(data)
	if err != nil || len(ms) != strings.Count(string(data), "\n") {
		t.Fatalf("%d mounts, %v", len(ms), err)
	}
}

func TestParseKeepsBytes(t *testing.T) {
	long := strings.Repeat("x", 1<<17)
	ms, err := Parse([]byte(`36 35 98:0 /mnt\0401 /a\012b\134\011c rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue
37 36 0:259 / /` + long + ` ro - tmpfs tmpfs rw,size=1
`))
	if err != nil {
		t.Fatal(err)
	}
	m := ms[0]
	if m.Root != "/mnt 1" || m.Point != "/a\nb\\\tc" || !m.Shared || !m.Master || m.ReadOnly() || m.Major != 98 || m.FSType != "ext3" {
		t.Errorf("%+v", m)
	}
	if m = ms[1]; m.Point != "/"+long || !m.ReadOnly() || m.Shared || m.Minor != 259 {
		t.Errorf("second line wrong")
	}
}

func TestParseRefusesDamage(t *testing.T) {
	for _, l := range []string{"x", "36 35 98:0 / / rw - ext3", "a 35 98:0 / / rw - ext3 /dev/root rw", "36 35 98 / / rw - ext3 /dev/root rw", "36 35 98:0 / / rw ext3 /dev/root rw x"} {
		if _, err := Parse([]byte(l + "\n")); err == nil {
			t.Errorf("%q accepted", l)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"))
	f.Add([]byte("36 35 98:0 / /a\\040b ro - x y z\n\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		ms, err := Parse(data)
		if err != nil && ms != nil {
			t.Fatal("a failed parse gave mounts")
		}
	})
}
