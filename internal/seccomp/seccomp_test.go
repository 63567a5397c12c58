package seccomp

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// run interprets a filter for one call as kernel/seccomp.c does; an instruction
// that the filter has no business with is an error.
func run(t *testing.T, prog []byte, audit, nr uint32, args ...uint64) uint32 {
	t.Helper()
	data := make([]byte, 64)
	binary.LittleEndian.PutUint32(data, nr)
	binary.LittleEndian.PutUint32(data[4:], audit)
	for i, a := range args {
		binary.LittleEndian.PutUint64(data[16+8*i:], a)
	}
	var acc uint32
	for pc := 0; pc < len(prog)/8; pc++ {
		in := prog[8*pc:]
		code, jt, jf, k := binary.LittleEndian.Uint16(in), int(in[2]), int(in[3]), binary.LittleEndian.Uint32(in[4:])
		taken := false
		switch code {
		case ldAbs:
			acc = binary.LittleEndian.Uint32(data[k:])
			continue
		case retK:
			return k
		case ja:
			pc += int(k)
			continue
		case jeq:
			taken = acc == k
		case jgt:
			taken = acc > k
		case jge:
			taken = acc >= k
		case jset:
			taken = acc&k != 0
		default:
			t.Fatalf("instruction %d: code %#x", pc, code)
		}
		if taken {
			pc += jt
		} else {
			pc += jf
		}
	}
	t.Fatal("ran off the end")
	return 0
}

func TestVerdicts(t *testing.T) {
	const high = 1 << 32
	eperm, enosys := refuse(eperm), refuse(enosys)
	for name, a := range arches {
		for _, o := range []Options{{}, {Nested: true}, {Landlock: true}, {Nested: true, Landlock: true}, {Landlock: true, Offline: true}} {
			t.Run(fmt.Sprintf("%s nested=%t landlock=%t offline=%t", name, o.Nested, o.Landlock, o.Offline), func(t *testing.T) {
				o.Arch = name
				prog, err := Program(o)
				if err != nil {
					t.Fatal(err)
				}
				if n := len(prog) / 8; n > 4096 {
					t.Fatalf("%d instructions", n)
				}
				nr := func(want uint32, n uint32, args ...uint64) {
					t.Helper()
					if got := run(t, prog, a.audit, n, args...); got != want {
						t.Errorf("call %d %x: %#x, want %#x", n, args, got, want)
					}
				}
				call := func(want uint32, call string, args ...uint64) {
					t.Helper()
					nr(want, a.number(call), args...)
				}
				unless := func(lifted bool, v uint32) uint32 {
					if lifted {
						return allow
					}
					return v
				}
				for _, c := range always {
					call(eperm, c)
				}
				for _, c := range namespaceCalls {
					call(unless(o.Nested, eperm), c)
				}
				for _, c := range traceCalls {
					call(unless(!o.Landlock, eperm), c)
				}
				for _, args := range [][]uint64{{1, 0, 1}, {1, 0, high}, {1 | high, 0, 1 | high}} {
					call(unless(!o.Landlock, eperm), "prlimit64", args...)
				}
				for _, args := range [][]uint64{{0, 0, 1}, {high, 0, 1}, {1, 0, 0}} {
					call(allow, "prlimit64", args...)
				}
				for _, c := range []string{"clone", "unshare"} {
					for _, flags := range []uint64{cloneNewUser, cloneNewNS, cloneNewUser | cloneNewNS | 17, cloneNewUser | high} {
						call(unless(o.Nested, eperm), c, flags)
					}
					call(allow, c, 0x01200011) // fork, as glibc does it
					call(allow, c, 0x3d0f00)   // pthread_create
				}
				call(unless(o.Nested, enosys), "clone3")
				for _, cmd := range []uint64{tiocsti, tioclinux, tiocsti | high, tioclinux | 0xdead<<32} {
					call(eperm, "ioctl", 0, cmd)
				}
				call(allow, "ioctl", tiocsti, 0x5401)
				for f := uint64(0); f < 64; f++ {
					want := eperm
					if f == 1 || f == 16 || (f == 2 || f == 10) && !o.Offline {
						want = allow
					}
					for _, c := range []string{"socket", "socketpair"} {
						call(want, c, f)
						call(want, c, f|high)
					}
				}
				for _, p := range []uint64{0, 8, 0x20000, 0x20008, 0x40000, 0xffffffff, 8 | high} {
					call(allow, "personality", p)
				}
				for _, p := range []uint64{0x400000, 0x100000, 0x440000, 1, 0x400000 | high, 0xfffffffe} {
					call(eperm, "personality", p)
				}
				nr(allow, noCall)
				nr(allow, newest)
				nr(enosys, newest+1)
				nr(enosys, x32Bit-1)
				nr(eperm, x32Bit)
				nr(eperm, x32Bit|16, 0, 0x5401)
				for _, other := range []uint32{0x40000003, 0x40000028, 0xc000003e, 0xc00000b7, 0} { // i386, arm, amd64, arm64
					if other != a.audit {
						if got := run(t, prog, other, 20); got != eperm {
							t.Errorf("architecture %#x: %#x", other, got)
						}
					}
				}
				// Everything else goes through.
				named := map[uint32]bool{}
				for c := range numbers {
					named[a.number(c)] = true
				}
				for n := uint32(0); n <= newest; n++ {
					if !named[n] {
						nr(allow, n, ^uint64(0), ^uint64(0))
					}
				}
			})
		}
	}
	if _, err := Program(Options{Arch: "mips"}); err == nil {
		t.Error("a filter for mips")
	}
}

// TestNumbers compares the table with golang.org/x/sys, which is generated from
// the kernel's headers, and tells when that knows newer calls than the filter.
func TestNumbers(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "golang.org/x/sys").Output()
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile(`(?m)^\tSYS_([A-Z0-9_]+) += (\d+)$`)
	for name, a := range arches {
		src, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "unix", "zsysnum_linux_"+name+".go"))
		if err != nil {
			t.Fatal(err)
		}
		theirs, last := map[string]uint32{}, uint32(0)
		for _, m := range re.FindAllStringSubmatch(string(src), -1) {
			n, _ := strconv.ParseUint(m[2], 10, 32)
			theirs[strings.ToLower(m[1])] = uint32(n)
			last = max(last, uint32(n))
		}
		for c := range numbers {
			if theirs[c] != a.number(c) {
				t.Errorf("%s %s: %d, x/sys has %d", name, c, a.number(c), theirs[c])
			}
		}
		if last > newest {
			t.Errorf("%s: x/sys knows calls up to %d: look at those above %d", name, last, newest)
		}
	}
}
