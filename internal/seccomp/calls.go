package seccomp

// An arch is what differs between architectures.
type arch struct {
	audit  uint32 // AUDIT_ARCH_*, linux/audit.h
	column int    // of the table numbers
}

var arches = map[string]arch{
	"amd64": {0xc000003e, 0},
	"arm64": {0xc00000b7, 1},
}

func (a arch) number(name string) uint32 {
	n, ok := numbers[name]
	if !ok {
		panic("seccomp: no number for " + name)
	}
	return n[a.column]
}

const (
	noCall = 0xffffffff
	x32Bit = 0x40000000 // __X32_SYSCALL_BIT
	newest = 471        // rseq_slice_yield, the last one looked at; the same on both

	tiocsti   = 0x5412
	tioclinux = 0x541c

	cloneNewNS   = 0x00020000
	cloneNewUser = 0x10000000

	personalityQuery = 0xffffffff
	// PER_LINUX32, UNAME26 and ADDR_NO_RANDOMIZE: what setarch, gdb and the
	// thread sanitizer use. None changes what a process may reach.
	personalityHarmless = 0x0008 | 0x0020000 | 0x0040000
)

const (
	unix    = 1
	inet    = 2
	inet6   = 10
	netlink = 16
)

// families of sockets that may be made.
func families(o Options) []uint32 {
	if o.Offline {
		return []uint32{unix, netlink}
	}
	return []uint32{unix, inet, inet6, netlink}
}

// always is refused in every session.
var always = []string{
	"io_uring_setup", "io_uring_enter", "io_uring_register",
	"userfaultfd", "kexec_load", "kexec_file_load", "bpf",
	"reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "kcmp",
	"add_key", "request_key", "keyctl", "perf_event_open",
}

// namespaceCalls are refused unless the session may make user and mount
// namespaces; there the kernel allows them in namespaces of its own only.
var namespaceCalls = []string{
	"setns", "mount", "umount2", "pivot_root", "open_tree", "open_tree_attr", "move_mount",
	"fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
}

// traceCalls reach into other processes.
var traceCalls = []string{"ptrace", "process_vm_readv", "process_vm_writev"}

// numbers of the calls on amd64 and arm64, asm/unistd.h; a test compares them
// with those of golang.org/x/sys.
var numbers = map[string][2]uint32{
	"ioctl":             {16, 29},
	"socket":            {41, 198},
	"socketpair":        {53, 199},
	"clone":             {56, 220},
	"ptrace":            {101, 117},
	"personality":       {135, 92},
	"pivot_root":        {155, 41},
	"acct":              {163, 89},
	"mount":             {165, 40},
	"umount2":           {166, 39},
	"swapon":            {167, 224},
	"swapoff":           {168, 225},
	"reboot":            {169, 142},
	"quotactl":          {179, 60},
	"kexec_load":        {246, 104},
	"add_key":           {248, 217},
	"request_key":       {249, 218},
	"keyctl":            {250, 219},
	"unshare":           {272, 97},
	"perf_event_open":   {298, 241},
	"setns":             {308, 268},
	"process_vm_readv":  {310, 270},
	"process_vm_writev": {311, 271},
	"prlimit64":         {302, 261},
	"kcmp":              {312, 272},
	"kexec_file_load":   {320, 294},
	"bpf":               {321, 280},
	"userfaultfd":       {323, 282},
	"io_uring_setup":    {425, 425},
	"io_uring_enter":    {426, 426},
	"io_uring_register": {427, 427},
	"open_tree":         {428, 428},
	"move_mount":        {429, 429},
	"fsopen":            {430, 430},
	"fsconfig":          {431, 431},
	"fsmount":           {432, 432},
	"fspick":            {433, 433},
	"clone3":            {435, 435},
	"mount_setattr":     {442, 442},
	"quotactl_fd":       {443, 443},
	"open_tree_attr":    {467, 467},
}
