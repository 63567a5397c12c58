package session

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"agent-sandbox/internal/mountplan"
)

func sample() Record {
	return Record{
		ID: "3fa9c1d2", Version: "0.1.0", Host: "node17", Boot: "0d4c8a3e-1", PIDNS: 4026531836, UID: 1001, Backend: "bwrap",
		Project: "/home/u/pr oj\n\xff", Command: "claude --resume 'a\tb'", Started: time.Date(2026, 11, 29, 16, 40, 0, 0, time.UTC),
		Launcher: Proc{4242, 881230}, Sandbox: Proc{4250, 881236}, MountNS: 4026532178, Guard: Proc{4243, 881232},
		ConfigDir: "/home/u/.config/agent-sandbox", Conf: "/home/u/alt.conf", HomeAccess: "read",
		Settings: []Setting{{Name: "PRIVATE_TMP", Value: "true"}, {Name: "DEVICES"}, {Name: "SANDBOX_ENV", Value: "sha256:00"}},
		Mounts: []mountplan.Mount{
			{Kind: mountplan.Proc, Path: "/proc"}, {Kind: mountplan.Tmpfs, Path: "/run", Options: "mode=0755"},
			{Kind: mountplan.RO, Path: "/usr"}, {Kind: mountplan.RW, Path: "/a b", Source: "/c\td"},
			{Kind: mountplan.Symlink, Path: "/bin", Target: "usr/bin"},
			{Kind: mountplan.Data, Path: "/etc/passwd", Digest: strings.Repeat("0a", 32), N: 3},
			{Kind: mountplan.Data, Path: "/h/.gitconfig", Digest: strings.Repeat("0a", 32), N: 4, Mode: mountplan.DataCopy},
			{Kind: mountplan.MaskDir, Path: "/home/u/.ssh"}},
		Made: []string{"/home/u/.ssh"},
	}
}

func TestRecordComesBackWhole(t *testing.T) {
	r := sample()
	data := r.Marshal()
	back, err := Parse(data)
	if err != nil {
		t.Fatalf("%v\n%s", err, data)
	}
	if !reflect.DeepEqual(r, back) {
		t.Errorf("got  %+v\nwant %+v", back, r)
	}
}

func TestRecordRefusesDamage(t *testing.T) {
	good := string(sample().Marshal())
	for name, edit := range map[string]func(string) string{
		"empty":         func(string) string { return "" },
		"truncated":     func(s string) string { return s[:len(s)-5] },
		"no end":        func(s string) string { return strings.TrimSuffix(s, "end\n") },
		"after the end": func(s string) string { return s + "mount ro /x\n" },
		"unknown key":   func(s string) string { return strings.Replace(s, "host ", "hoast ", 1) },
		"twice":         func(s string) string { return strings.Replace(s, "uid 1001\n", "uid 1001\nuid 1001\n", 1) },
		"order": func(s string) string {
			return strings.Replace(s, "mount ro /usr\nmount", "made /x\nmount ro /usr\nmount", 1)
		},
		"relative path":       func(s string) string { return strings.Replace(s, "mount ro /usr", "mount ro usr", 1) },
		"dot dot":             func(s string) string { return strings.Replace(s, "mount ro /usr", "mount ro /usr/../etc", 1) },
		"unknown kind":        func(s string) string { return strings.Replace(s, "mount ro /usr", "mount bind /usr", 1) },
		"pid 0":               func(s string) string { return strings.Replace(s, "launcher 4242", "launcher 0", 1) },
		"negative pid":        func(s string) string { return strings.Replace(s, "launcher 4242", "launcher -1", 1) },
		"pid with plus":       func(s string) string { return strings.Replace(s, "launcher 4242", "launcher +4242", 1) },
		"bad escape":          func(s string) string { return strings.Replace(s, `\xff`, `\xFF`, 1) },
		"id":                  func(s string) string { return strings.Replace(s, "id 3fa9c1d2", "id ../../xx", 1) },
		"other backend":       func(s string) string { return strings.Replace(s, "backend bwrap", "backend none", 1) },
		"no mount namespace":  func(s string) string { return strings.Replace(s, " 4026532178", "", 1) },
		"huge":                func(s string) string { return s + strings.Repeat("x", MaxRecord) },
		"carriage returns":    func(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") },
		"data without digest": func(s string) string { return strings.Replace(s, "sha256:0a", "sha256:0", 1) },
	} {
		bad := edit(good)
		if bad == good {
			t.Fatalf("%s: the edit did nothing", name)
		}
		if r, err := Parse([]byte(bad)); err == nil || !reflect.DeepEqual(r, Record{}) {
			t.Errorf("%s: accepted: %v", name, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(sample().Marshal())
	f.Add([]byte("agent-sandbox-session 1\nend\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if err != nil {
			if !reflect.DeepEqual(r, Record{}) {
				t.Fatal("a failed parse gave a record")
			}
			return
		}
		if !bytes.Equal(r.Marshal(), data) {
			t.Fatalf("accepted\n%q\nbut writes\n%q", data, r.Marshal())
		}
	})
}
