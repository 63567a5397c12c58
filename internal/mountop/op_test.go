package mountop

import "testing"

func TestLinesKeepTheirMeaning(t *testing.T) {
	for _, l := range []string{
		"rw /a", "rw /a\t/b", `ro /a\nb`, "dev /dev/x", "mask-file /a", "mask-dir /a\t/b", "data /a\t/b", "data /a\t/b\trw",
		"tmpfs /a", "tmpfs /a\tmode=0700", "private /", "private /\t/net\t/misc", "remount-ro /a", "remount-rw /a", "detach /a",
		"keep /a", "keep /a\trw", "keep /a\tro\t/b", "keep /a\tdata\t/b", "keep /a\tdata\t/b\trw", "keep /a\ttmpfs",
	} {
		op, err := ParseOp(l)
		if err != nil || op.Line() != l {
			t.Errorf("%q: %q, %v", l, op.Line(), err)
		}
	}
	for _, l := range []string{"", "rw", "rw ", "rw a", "rw /a/", "rw /a/../b", "rw /a\t", "x /a", "remount-ro /a\t/b", "data /a", "data /a\t/b\tro",
		"tmpfs /a\tsize=1", "tmpfs /a\tmode=9", "private /\tx", "keep /a\tproc", "keep /a\trw\t/b\trw", `rw /\x41`, "rw /a\x00"} {
		if op, err := ParseOp(l); err == nil {
			t.Errorf("%q accepted as %+v", l, op)
		}
	}
}

func TestResultsKeepTheirMeaning(t *testing.T) {
	for _, l := range []string{"ok", "busy", "busy\t1 sh fd 3 /a\\nb", "refused no", "unsupported no"} {
		r, err := ParseResult(l)
		if err != nil || r.Line() != l {
			t.Errorf("%q: %+v, %v", l, r, err)
		}
	}
	for _, l := range []string{"", "okay", "ok no", "busy x", "refused\tx", "refused", "ok "} {
		if r, err := ParseResult(l); err == nil && l != "refused" {
			t.Errorf("%q accepted as %+v", l, r)
		}
	}
}

func FuzzParseOp(f *testing.F) {
	f.Add("rw /a\t/b")
	f.Add("keep /a\tdata\t/b\trw")
	f.Add(`data /\xff\n` + "\t/c")
	f.Fuzz(func(t *testing.T, line string) {
		op, err := ParseOp(line)
		if err != nil {
			return
		}
		again, err := ParseOp(op.Line())
		if err != nil || again.Line() != op.Line() {
			t.Fatalf("%q -> %q -> %q, %v", line, op.Line(), again.Line(), err)
		}
	})
}
