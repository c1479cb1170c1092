#include "textflag.h"

#define memfd_create 319
#define open 2
#define sendfile 40
#define close 3
#define fchmod 91
#define execveat 322
#define exit_group 231

TEXT main·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVQ	SP, R15 // argc, argv, 0, envp
	SUBQ	$64, SP
	MOVQ	$0x0000746e65676100, AX // "\0agent"
	MOVQ	AX, 0(SP)
	MOVQ	$0x6f62646e61732e2f, AX // "/.sandbo"
	MOVQ	AX, 16(SP)
	MOVQ	$0x0030702f74696b78, AX // "xkit/p0"
	MOVQ	AX, 24(SP)

	MOVQ	$71, R14
	LEAQ	1(SP), DI
	MOVQ	$1, SI // MFD_CLOEXEC
	MOVQ	$memfd_create, AX
	SYSCALL
	TESTQ	AX, AX
	JLT	fail
	MOVQ	AX, R12

	MOVQ	$72, R14
part:
	LEAQ	16(SP), DI
	XORQ	SI, SI
	XORQ	DX, DX
	MOVQ	$open, AX
	SYSCALL
	CMPQ	AX, $-2 // ENOENT: there are no more parts
	JEQ	run
	TESTQ	AX, AX
	JLT	fail
	MOVQ	AX, R13
copy:
	MOVQ	R12, DI
	MOVQ	R13, SI
	XORQ	DX, DX
	MOVQ	$0x100000, R10
	MOVQ	$sendfile, AX
	SYSCALL
	TESTQ	AX, AX
	JLT	fail
	JGT	copy
	MOVQ	R13, DI
	MOVQ	$close, AX
	SYSCALL
	ADDB	$1, 30(SP)
	JMP	part

run:
	MOVQ	$73, R14
	MOVQ	R12, DI
	MOVQ	$0111, SI // an unreadable program's process cannot be traced
	MOVQ	$fchmod, AX
	SYSCALL
	MOVQ	R12, DI
	LEAQ	0(SP), SI // ""
	LEAQ	8(R15), DX
	MOVQ	0(R15), AX
	LEAQ	16(R15)(AX*8), R10
	MOVQ	$0x1000, R8 // AT_EMPTY_PATH: the file itself
	MOVQ	$execveat, AX
	SYSCALL
fail:
	MOVQ	R14, DI
	MOVQ	$exit_group, AX
	SYSCALL
	INT	$3
