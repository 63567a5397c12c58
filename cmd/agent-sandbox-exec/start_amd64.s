#include "textflag.h"

// The kernel's entry: the stack holds the arguments and must stay as it is.
TEXT ·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVL	$157, AX // prctl(PR_GET_THP_DISABLE)
	MOVL	$42, DI
	XORL	SI, SI
	XORL	DX, DX
	XORL	R10, R10
	XORL	R8, R8
	SYSCALL
	TESTQ	AX, AX
	JNE	begin // off already, or unknown
	MOVL	$157, AX // prctl(PR_SET_THP_DISABLE, 1)
	MOVL	$41, DI
	MOVL	$1, SI
	XORL	DX, DX
	SYSCALL
	TESTQ	AX, AX
	JNE	begin
	MOVB	$1, ·hugePagesOff(SB)
begin:
	JMP	_rt0_amd64_linux(SB)
