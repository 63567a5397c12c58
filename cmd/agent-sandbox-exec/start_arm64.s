#include "textflag.h"

// The kernel's entry: the stack holds the arguments and must stay as it is.
TEXT ·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD	$167, R8 // prctl(PR_GET_THP_DISABLE)
	MOVD	$42, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	SVC
	CBNZ	R0, begin // off already, or unknown
	MOVD	$41, R0 // prctl(PR_SET_THP_DISABLE, 1)
	MOVD	$1, R1
	MOVD	$0, R2
	SVC
	CBNZ	R0, begin
	MOVD	$1, R1
	MOVB	R1, ·hugePagesOff(SB)
begin:
	B	_rt0_arm64_linux(SB)
