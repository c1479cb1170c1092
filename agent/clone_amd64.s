// Start of a process whose first function runs on a separate stack.

#include "textflag.h"

// func cloneOn(flags, stack, tid uintptr, state *reaperState) (pid uintptr)
TEXT ·cloneOn(SB),NOSPLIT|NOFRAME,$0-40
	MOVQ	flags+0(FP), DI
	MOVQ	stack+8(FP), SI
	MOVQ	tid+16(FP), DX
	MOVQ	state+24(FP), R12
	XORQ	R10, R10
	XORQ	R8, R8
	MOVQ	$56, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, pid+32(FP)
	RET
child:
	SUBQ	$16, SP
	MOVQ	R12, 0(SP)
	MOVQ	·clonedPC(SB), AX
	CALL	AX
	INT	$3

// Call indirectly: the function runs on a new stack, so the linker must not add up the frames.
DATA ·clonedPC(SB)/8, $·cloned(SB)
GLOBL ·clonedPC(SB), NOPTR|RODATA, $8
