/* Tries every call that the filter is about and prints `NAME ERRNO`, 0 where it
 * worked. The arguments are such that nothing happens where a call is let
 * through, and that the kernel, where it can, finds a fault in them before it
 * looks at capabilities: without the filter the answer is another one. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define HIGH (1L << 32)

static void say(const char *name, long r)
{
	printf("%s %d\n", name, r == -1 ? errno : 0);
	fflush(stdout);
}

#define TRY(name, ...) say(name, syscall(__VA_ARGS__))

/* In a child, for what changes or kills the caller. */
static void child(const char *name, long (*f)(void))
{
	fflush(stdout);
	pid_t p = fork();
	if (p == 0) {
		errno = 0;
		long r = f();
		_exit(r == -1 ? errno : 0);
	}
	int st = 0;
	waitpid(p, &st, 0);
	printf("%s %d\n", name, WIFSIGNALED(st) ? 128 + WTERMSIG(st) : WEXITSTATUS(st));
	fflush(stdout);
}

static long unshare_user(void) { return syscall(SYS_unshare, CLONE_NEWUSER); }
static long unshare_mount(void) { return syscall(SYS_unshare, CLONE_NEWNS); }
static long unshare_mount_high(void) { return syscall(SYS_unshare, CLONE_NEWNS | CLONE_FS); }
static long unshare_ipc(void) { return syscall(SYS_unshare, CLONE_NEWIPC); }
static long clone_with(long flags)
{
	long r = syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
	if (r == 0)
		_exit(0);
	if (r > 0)
		waitpid(r, NULL, 0);
	return r;
}
static long clone_user(void) { return clone_with(CLONE_NEWUSER); }
static long clone_mount(void) { return clone_with(CLONE_NEWNS); }
static long clone_user_high(void) { return clone_with(CLONE_NEWUSER | HIGH); }
static long clone_plain(void) { return clone_with(0); }
static long clone3_user(void)
{
	unsigned long a[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
	long r = syscall(435, a, sizeof a);
	if (r == 0)
		_exit(0);
	if (r > 0)
		waitpid(r, NULL, 0);
	return r;
}
static long traceme(void) { return syscall(SYS_ptrace, PTRACE_TRACEME, 0, 0, 0); }

#ifdef __x86_64__
static long i386(void)
{
	long r;
	/* 20 is getpid for i386, writev for amd64. */
	__asm__ volatile("int $0x80" : "=a"(r) : "a"(20) : "memory", "r8", "r9", "r10", "r11");
	if (r < 0) {
		errno = -r;
		return -1;
	}
	return r;
}
static long x32_getpid(void) { return syscall(0x40000000 | SYS_getpid); }
static long x32_ioctl(void) { return syscall(0x40000000 | 514, 0, 0x5412, "x"); }
static long x32_ioctl_without_bit(void) { return syscall(514, 0, 0x5412, "x"); }
#endif

int main(void)
{
	int null = open("/dev/null", O_RDWR);

	TRY("io_uring_setup", 425, 0, 0);
	TRY("io_uring_enter", 426, -1, 0, 0, 0, 0, 0);
	TRY("io_uring_register", 427, -1, 0, 0, 0);
	TRY("userfaultfd", SYS_userfaultfd, 1 | O_CLOEXEC);
	TRY("kexec_load", SYS_kexec_load, 0, 0, 0, 0xff);
	TRY("kexec_file_load", SYS_kexec_file_load, -1, -1, 0, 0, 0xffff);
	TRY("bpf", SYS_bpf, 9999, 0, 0);
	TRY("reboot", SYS_reboot, 1, 2, 3, 0);
	TRY("swapon", SYS_swapon, "/nonexistent", -1);
	TRY("swapoff", SYS_swapoff, "/nonexistent");
	TRY("acct", SYS_acct, "/nonexistent");
	TRY("quotactl", SYS_quotactl, -1, 0, 0, 0);
	TRY("quotactl_fd", 443, -1, -1, 0, 0);
	TRY("kcmp", SYS_kcmp, getpid(), getpid(), 99, 0, 0);
	TRY("add_key", SYS_add_key, 0, 0, 0, 0, 0);
	TRY("request_key", SYS_request_key, 0, 0, 0, 0);
	TRY("keyctl", SYS_keyctl, 9999, 0, 0, 0, 0);
	TRY("perf_event_open", SYS_perf_event_open, 0, 0, 0, 0, 0);

	TRY("mount", SYS_mount, "x", "/nonexistent", "tmpfs", 0, 0);
	TRY("umount2", SYS_umount2, "/nonexistent", 0);
	TRY("pivot_root", SYS_pivot_root, "/nonexistent", "/nonexistent");
	TRY("open_tree", 428, -1, "nonexistent", 1);
	TRY("move_mount", 429, -1, "nonexistent", -1, "nonexistent", 0);
	TRY("fsopen", 430, "nonexistent", 0);
	TRY("fsconfig", 431, -1, 0, 0, 0, 0);
	TRY("fsmount", 432, -1, 0, 0);
	TRY("fspick", 433, -1, "nonexistent", 0);
	TRY("mount_setattr", 442, -1, "nonexistent", 0, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32);
	TRY("open_tree_attr", 467, -1, "nonexistent", 1, 0, 0);
	TRY("setns", SYS_setns, -1, 0);

	child("unshare-user", unshare_user);
	child("unshare-mount", unshare_mount);
	child("unshare-mount-more", unshare_mount_high);
	child("unshare-ipc", unshare_ipc);
	child("clone-user", clone_user);
	child("clone-mount", clone_mount);
	child("clone-user-high", clone_user_high);
	child("clone-plain", clone_plain);
	child("clone3-user", clone3_user);

	TRY("tiocsti", SYS_ioctl, null, 0x5412L, "x");
	TRY("tiocsti-high", SYS_ioctl, null, 0x5412L | HIGH, "x");
	TRY("tioclinux", SYS_ioctl, null, 0x541cL, "x");
	TRY("tioclinux-high", SYS_ioctl, null, 0x541cL | HIGH, "x");
	TRY("ioctl-other", SYS_ioctl, null, 0x5401L, 0); /* TCGETS */

	TRY("socket-unix", SYS_socket, 1, 1, 0);
	TRY("socket-inet", SYS_socket, 2, 1, 0);
	TRY("socket-inet6", SYS_socket, 10, 1, 0);
	TRY("socket-netlink", SYS_socket, 16, 3, 0);
	TRY("socket-packet", SYS_socket, 17, 99, 0);
	TRY("socket-packet-high", SYS_socket, 17 | HIGH, 99, 0);
	TRY("socket-alg", SYS_socket, 38, 99, 0);
	TRY("socket-vsock", SYS_socket, 40, 99, 0);
	int sv[2];
	TRY("socketpair-unix", SYS_socketpair, 1, 1, 0, sv);
	TRY("socketpair-tipc", SYS_socketpair, 30, 1, 0, sv);

	TRY("personality-query", SYS_personality, 0xffffffffL);
	TRY("personality-same", SYS_personality, 0L);
	TRY("personality-aslr", SYS_personality, 0x0040000L);
	TRY("personality-exec", SYS_personality, 0x0400000L);
	TRY("personality-page-zero", SYS_personality, 0x0100000L);
	TRY("personality-high", SYS_personality, 0x0400000L | HIGH);

	TRY("process_vm_readv", SYS_process_vm_readv, getpid(), 0, 0, 0, 0, 99);
	TRY("process_vm_writev", SYS_process_vm_writev, getpid(), 0, 0, 0, 0, 99);
	child("ptrace", traceme);
	unsigned long limit[2] = {0, 0};
	TRY("prlimit-other", SYS_prlimit64, getppid(), 4 /* RLIMIT_CORE */, limit, 0);
	TRY("prlimit-read", SYS_prlimit64, getppid(), 4, 0, limit);
	TRY("prlimit-self", SYS_prlimit64, 0, 4, limit, 0);

	TRY("newer-than-known", 472, 0, 0, 0);
#ifdef __x86_64__
	child("i386", i386);
	child("x32", x32_getpid);
	child("x32-ioctl", x32_ioctl);
	child("x32-ioctl-without-bit", x32_ioctl_without_bit);
#endif
	return 0;
}
