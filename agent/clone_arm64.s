// Start of a process whose first function runs on a separate stack.

#include "textflag.h"

// func cloneOn(flags, stack, tid uintptr, state *reaperState) (pid uintptr)
TEXT ·cloneOn(SB),NOSPLIT|NOFRAME,$0-40
	MOVD	flags+0(FP), R0
	MOVD	stack+8(FP), R1
	MOVD	tid+16(FP), R2
	MOVD	state+24(FP), R9
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$220, R8
	SVC
	CBZ	R0, child
	MOVD	R0, pid+32(FP)
	RET
child:
	SUB	$32, RSP
	MOVD	R9, 8(RSP)
	MOVD	·clonedPC(SB), R10
	CALL	(R10)
	BRK

// Call indirectly: the function runs on a new stack, so the linker must not add up the frames.
DATA ·clonedPC(SB)/8, $·cloned(SB)
GLOBL ·clonedPC(SB), NOPTR|RODATA, $8
