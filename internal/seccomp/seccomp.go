// Package seccomp makes the system call filter of a session: a classic BPF
// program (seccomp(2)) in the binary form that `bwrap --seccomp FD` reads, an
// array of struct sock_filter. What it refuses stands in agent-sandbox.conf(5).
//
// The filter is a list of what is refused, not of what is allowed: compilers,
// debuggers and browsers run under it. What a list misses is what the kernel gets
// next, so numbers above the newest one that was looked at are answered ENOSYS.
package seccomp

import (
	"encoding/binary"
	"fmt"
	"runtime"

	"agent-sandbox/internal/sys"
)

// Options say what a filter is for.
type Options struct {
	Nested   bool   // NESTED_SANDBOX=true: user and mount namespaces may be made and used inside
	Landlock bool   // no pid namespace around the session: no ptrace, process_vm_*, limits of others
	Offline  bool   // no network namespace where there should be one: no internet sockets
	Arch     string // as GOARCH; empty: the running one
}

// Install puts the calling thread, and all that it starts, under the filter. The
// thread has no_new_privs.
func Install(o Options) error {
	prog, err := Program(o)
	if err != nil {
		return err
	}
	return sys.SetSeccomp(prog)
}

// Program returns the filter in the byte order of the architecture it is for.
func Program(o Options) ([]byte, error) {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	a, ok := arches[o.Arch]
	if !ok {
		return nil, fmt.Errorf("no system call filter for the architecture %s (there is one for amd64 and arm64)", o.Arch)
	}
	var b builder
	b.filter(o, a)
	out := make([]byte, 0, 8*len(b))
	for _, i := range b {
		out = binary.LittleEndian.AppendUint16(out, i.code) // both architectures are little-endian
		out = append(out, i.jt, i.jf)
		out = binary.LittleEndian.AppendUint32(out, i.k)
	}
	return out, nil
}

// The rules, in the order in which they are tried: those that look at arguments
// first, since the kernel remembers the answer for the other numbers.
func (b *builder) filter(o Options, a arch) {
	b.load(offArch)
	b.when(jeq, a.audit, func(b *builder) {
		b.load(offNr)
		// -1 is no call: a tracer's way to skip one.
		b.when(jeq, noCall, func(b *builder) { b.ret(allow) })
		// amd64: x32 calls have bit 30 set, and the old kernel mistake of taking
		// 512 to 547 for x32 without it falls to the same rule.
		b.when(jge, x32Bit, func(b *builder) { b.ret(refuse(eperm)) })
		b.when(jgt, newest, func(b *builder) { b.ret(refuse(enosys)) })

		b.call(a, "ioctl", func(b *builder) {
			b.load(offArg(1)) // the kernel too looks at the low half only
			b.when(jeq, tiocsti, func(b *builder) { b.ret(refuse(eperm)) })
			b.when(jeq, tioclinux, func(b *builder) { b.ret(refuse(eperm)) })
			b.ret(allow)
		})
		for _, name := range []string{"socket", "socketpair"} {
			b.call(a, name, func(b *builder) {
				b.load(offArg(0))
				for _, family := range families(o) {
					b.when(jeq, family, func(b *builder) { b.ret(allow) })
				}
				b.ret(refuse(eperm))
			})
		}
		b.call(a, "personality", func(b *builder) {
			b.load(offArg(0))
			b.when(jeq, personalityQuery, func(b *builder) { b.ret(allow) })
			b.when(jset, ^uint32(personalityHarmless), func(b *builder) { b.ret(refuse(eperm)) })
			b.ret(allow)
		})
		if !o.Nested {
			for _, name := range []string{"clone", "unshare"} {
				b.call(a, name, func(b *builder) {
					b.load(offArg(0))
					b.when(jset, cloneNewUser|cloneNewNS, func(b *builder) { b.ret(refuse(eperm)) })
					b.ret(allow)
				})
			}
			// Its flags lie in memory, where no filter can look: callers fall
			// back to clone when it is not there.
			b.call(a, "clone3", func(b *builder) { b.ret(refuse(enosys)) })
			b.refuse(a, namespaceCalls)
		}
		if o.Landlock {
			b.refuse(a, traceCalls)
			// A limit of processor time of 0 kills, which the scope of
			// signals does not see. Reading is allowed, and so is pid 0, the
			// caller itself.
			b.call(a, "prlimit64", func(b *builder) {
				b.load(offArg(0))
				b.when(jeq, 0, func(b *builder) { b.ret(allow) })
				b.load(offArg(2))
				b.when(jeq, 0, func(b *builder) {
					b.load(offArg(2) + 4)
					b.when(jeq, 0, func(b *builder) { b.ret(allow) })
				})
				b.ret(refuse(eperm))
			})
		}
		b.refuse(a, always)
		b.ret(allow)
	})
	b.ret(refuse(eperm)) // i386 through int 0x80, AArch32
}

// An insn is struct sock_filter, linux/filter.h.
type insn struct {
	code   uint16
	jt, jf uint8
	k      uint32
}

const (
	ldAbs = 0x20 // BPF_LD|BPF_W|BPF_ABS
	jeq   = 0x15 // BPF_JMP|BPF_JEQ|BPF_K
	jgt   = 0x25 // BPF_JMP|BPF_JGT|BPF_K
	jge   = 0x35 // BPF_JMP|BPF_JGE|BPF_K
	jset  = 0x45 // BPF_JMP|BPF_JSET|BPF_K
	ja    = 0x05 // BPF_JMP|BPF_JA
	retK  = 0x06 // BPF_RET|BPF_K
)

// Offsets in struct seccomp_data, linux/seccomp.h; of an argument the low half.
const (
	offNr   = 0
	offArch = 4
)

func offArg(n int) uint32 { return uint32(16 + 8*n) }

const (
	allow  = 0x7fff0000 // SECCOMP_RET_ALLOW
	errno  = 0x00050000 // SECCOMP_RET_ERRNO
	eperm  = 1
	enosys = 38
)

func refuse(e uint32) uint32 { return errno | e }

// A builder is a program in the making.
type builder []insn

func (b *builder) load(off uint32)  { *b = append(*b, insn{code: ldAbs, k: off}) }
func (b *builder) ret(value uint32) { *b = append(*b, insn{code: retK, k: value}) }

// when runs body where the loaded word compares as op says with k. Conditional
// jumps reach 255 instructions: a longer body is jumped over by a long jump.
func (b *builder) when(op uint16, k uint32, body func(*builder)) {
	var inner builder
	body(&inner)
	if len(inner) <= 255 {
		*b = append(*b, insn{op, 0, uint8(len(inner)), k})
	} else {
		*b = append(*b, insn{op, 1, 0, k}, insn{code: ja, k: uint32(len(inner))})
	}
	*b = append(*b, inner...)
}

// call runs body, which ends in a ret, for a call by name. What follows needs the
// number loaded still: a body that loads something else does not fall through.
func (b *builder) call(a arch, name string, body func(*builder)) { b.when(jeq, a.number(name), body) }

func (b *builder) refuse(a arch, names []string) {
	for _, name := range names {
		b.call(a, name, func(b *builder) { b.ret(refuse(eperm)) })
	}
}
