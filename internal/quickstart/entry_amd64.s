#include "textflag.h"

// The kernel's entry: the stack holds the arguments and must stay as it is.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	XORL	SI, SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	MOVL	$157, AX // prctl(PR_GET_THP_DISABLE)
	MOVL	$42, DI
	SYSCALL
	TESTQ	AX, AX
	JNE	timer // off already, or unknown
	MOVL	$157, AX // prctl(PR_SET_THP_DISABLE, 1)
	MOVL	$41, DI
	MOVL	$1, SI
	SYSCALL
	TESTQ	AX, AX
	JNE	timer
	MOVB	$1, ·hugePagesOff(SB)
timer:
	XORL	SI, SI
	MOVL	$157, AX // prctl(PR_GET_TIMERSLACK)
	MOVL	$30, DI
	SYSCALL
	TESTQ	AX, AX
	JLE	begin // a real-time process has none
	CMPQ	AX, $2000000
	JGE	begin
	MOVQ	AX, ·slack(SB)
	MOVL	$157, AX // prctl(PR_SET_TIMERSLACK, 2 ms)
	MOVL	$29, DI
	MOVL	$2000000, SI
	SYSCALL
begin:
	JMP	_rt0_amd64_linux(SB)
