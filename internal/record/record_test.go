package record

import "testing"

func TestEscapeKeepsEveryByte(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"/home/u", "/home/u"}, {"a b", "a b"}, {"a\\b", `a\\b`},
		{"a\nb\tc", `a\nb\tc`}, {"\x01\x7f", `\x01\x7f`}, {"\xff\xc3", `\xff\xc3`}, {"é", "é"},
		{"\xc3\xa9\xff", "é" + `\xff`}, {"\uFFFD", "\uFFFD"},
	} {
		got := Escape(c.in)
		if got != c.want {
			t.Errorf("Escape(%q) = %q, want %q", c.in, got, c.want)
		}
		back, err := Unescape(got)
		if err != nil || back != c.in {
			t.Errorf("Unescape(%q) = %q, %v, want %q", got, back, err, c.in)
		}
	}
}

func TestUnescapeRefusesOtherSpellings(t *testing.T) {
	for _, s := range []string{`\`, `\q`, `\x4`, `\xFF`, `\x41`, `\x0a`, `\xc3\xa9`, "a\nb", "a\x00", "\xff"} {
		if got, err := Unescape(s); err == nil {
			t.Errorf("Unescape(%q) = %q, want an error", s, got)
		}
	}
}

func FuzzUnescape(f *testing.F) {
	for _, s := range []string{"", "a", `\\n`, `\xff`, "\n", "\\", "\xff\xfe"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e := Escape(s)
		if back, err := Unescape(e); err != nil || back != s {
			t.Fatalf("%q -> %q -> %q, %v", s, e, back, err)
		}
		if v, err := Unescape(s); err == nil && Escape(v) != s {
			t.Fatalf("%q accepted but %q is written", s, Escape(v))
		}
	})
}

func TestWord(t *testing.T) {
	for _, c := range []struct {
		s    string
		want bool
	}{{"", false}, {"a", true}, {"abc", true}, {"a-b", false}, {"-", false}, {"ab\n", false}, {"é", false}} {
		if got := Word(c.s, Lower); got != c.want {
			t.Errorf("Word(%q) = %v", c.s, got)
		}
	}
	for _, c := range []struct {
		s    string
		want bool
	}{{"", false}, {"PATH", true}, {"_x1", true}, {"1x", false}, {"a b", false}, {"A\n", false}, {"x=", false}} {
		if got := Variable(c.s); got != c.want {
			t.Errorf("Variable(%q) = %v", c.s, got)
		}
	}
}
