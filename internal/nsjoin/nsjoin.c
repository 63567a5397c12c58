/*
 * Enters the namespaces of a session, or makes a pair of its own, before the Go
 * runtime exists. README.md says why and what may not be called here.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { SOCKET = 3, MOUNT_NS = 4, PROC = 5 };

/* One packet on the socket, then out: nothing has been entered by halves that
 * anyone could use, since the process ends. */
static void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *fmt, ...)
{
	char buf[512];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(buf, sizeof buf, fmt, ap);
	va_end(ap);
	if (n > (int)sizeof buf - 1)
		n = sizeof buf - 1;
	if (n > 0 && write(SOCKET, buf, n) < 0)
		_exit(4);
	_exit(3);
}

static ino_t inode_of(int fd, const char *what)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		fail("cannot read the %s namespace: %s", what, strerror(errno));
	return st.st_ino;
}

static ino_t own(int proc, const char *name)
{
	struct stat st;

	if (fstatat(proc, name, &st, 0) < 0)
		fail("cannot read %s of this process: %s", name, strerror(errno));
	return st.st_ino;
}

/*
 * /proc/self is looked up in the pid namespace of the proc mount: after joining
 * a mount namespace whose /proc belongs to another pid namespace it does not
 * resolve. A descriptor of the folder, opened before, goes on working.
 */
static int open_proc(void)
{
	int fd = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		fail("cannot open /proc/self: %s", strerror(errno));
	if (fd != PROC) {
		if (dup3(fd, PROC, O_CLOEXEC) < 0)
			fail("cannot place a descriptor: %s", strerror(errno));
		close(fd);
	}
	return PROC;
}

static void join(const char *asked)
{
	char *end;
	unsigned long long want;
	int proc, user;
	uid_t owner;

	errno = 0;
	want = strtoull(asked, &end, 10);
	if (errno || *end || end == asked)
		fail("no inode of a mount namespace: %s", asked);

	/* NS_GET_NSTYPE is answered by namespace descriptors only (ENOTTY
	 * otherwise): any other file could have the inode asked for. */
	if (ioctl(MOUNT_NS, NS_GET_NSTYPE) != CLONE_NEWNS)
		fail("the descriptor is not a mount namespace");
	if (inode_of(MOUNT_NS, "mount") != want)
		fail("the mount namespace is %llu, not %llu", (unsigned long long)inode_of(MOUNT_NS, "mount"), want);

	proc = open_proc();
	if (own(proc, "ns/mnt") == want)
		fail("mount namespace %llu is the host's own", want);

	/* The user namespace that owns the mount namespace, whatever the process
	 * has now: with --dev bwrap makes a second one below it, which has no
	 * capability over the mounts. EPERM: it is not below the caller's own. */
	user = ioctl(MOUNT_NS, NS_GET_USERNS);
	if (user < 0)
		fail("the user namespace that owns the mount namespace cannot be had: %s", strerror(errno));
	if (inode_of(user, "user") == own(proc, "ns/user"))
		fail("mount namespace %llu is owned by the host's user namespace", want);
	if (ioctl(user, NS_GET_OWNER_UID, &owner) < 0)
		fail("the owner of the user namespace cannot be had: %s", strerror(errno));
	if (owner != getuid())
		fail("mount namespace %llu belongs to uid %u, not to %u", want, owner, getuid());

	/* User namespace first: mntns_install() asks for CAP_SYS_ADMIN in the one
	 * that owns the mount namespace, which only joining it gives. */
	if (setns(user, CLONE_NEWUSER) < 0)
		fail("cannot enter the user namespace: %s", strerror(errno));
	if (setns(MOUNT_NS, CLONE_NEWNS) < 0)
		fail("cannot enter the mount namespace: %s", strerror(errno));

	if (own(proc, "ns/user") != inode_of(user, "user") || own(proc, "ns/mnt") != want)
		fail("entered other namespaces than those asked for");
	close(user);
	close(MOUNT_NS);
}

/*
 * A copy of the host's mount table in which an ordinary user may clone mounts.
 * No uid map is written: file access goes by the kernel's own uid, which stays.
 */
static void source(void)
{
	open_proc();
	if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		fail("cannot make a user namespace: %s", strerror(errno));
}

/* glibc gives constructors the arguments of main, in static programs too. */
__attribute__((constructor)) static void nsjoin(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--join"))
		join(argv[2]);
	else if (argc == 2 && !strcmp(argv[1], "--source"))
		source();
}
