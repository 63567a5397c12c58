#include "textflag.h"

// The kernel's entry: the stack holds the arguments and must stay as it is.
TEXT ·entry(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD	$167, R8 // prctl(PR_GET_THP_DISABLE)
	MOVD	$42, R0
	MOVD	$0, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	SVC
	CBNZ	R0, timer // off already, or unknown
	MOVD	$41, R0 // prctl(PR_SET_THP_DISABLE, 1)
	MOVD	$1, R1
	MOVD	$0, R2
	SVC
	CBNZ	R0, timer
	MOVD	$1, R1
	MOVB	R1, ·hugePagesOff(SB)
timer:
	MOVD	$30, R0 // prctl(PR_GET_TIMERSLACK)
	MOVD	$0, R1
	SVC
	CMP	$0, R0
	BLE	begin // a real-time process has none
	MOVD	$2000000, R1
	CMP	R1, R0
	BGE	begin
	MOVD	R0, ·slack(SB)
	MOVD	$29, R0 // prctl(PR_SET_TIMERSLACK, 2 ms)
	SVC
begin:
	B	_rt0_arm64_linux(SB)
