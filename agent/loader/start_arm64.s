#include "textflag.h"

#define memfd_create 279
#define openat 56
#define sendfile 71
#define close 57
#define fchmod 52
#define execveat 281
#define exit_group 94

TEXT main·start(SB),NOSPLIT|NOFRAME|TOPFRAME,$0
	MOVD	RSP, R19 // argc, argv, 0, envp
	SUB	$64, RSP
	MOVD	$0x0000746e65676100, R0 // "\0agent"
	MOVD	R0, 0(RSP)
	MOVD	$0x6f62646e61732e2f, R0 // "/.sandbo"
	MOVD	R0, 16(RSP)
	MOVD	$0x0030702f74696b78, R0 // "xkit/p0"
	MOVD	R0, 24(RSP)

	MOVD	$71, R20
	MOVD	RSP, R0
	ADD	$1, R0
	MOVD	$1, R1 // MFD_CLOEXEC
	MOVD	$memfd_create, R8
	SVC
	TBNZ	$63, R0, fail
	MOVD	R0, R21

	MOVD	$72, R20
part:
	MOVD	$-100, R0
	MOVD	RSP, R1
	ADD	$16, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$openat, R8
	SVC
	CMN	$2, R0 // ENOENT: there are no more parts
	BEQ	run
	TBNZ	$63, R0, fail
	MOVD	R0, R22
copy:
	MOVD	R21, R0
	MOVD	R22, R1
	MOVD	$0, R2
	MOVD	$0x100000, R3
	MOVD	$sendfile, R8
	SVC
	TBNZ	$63, R0, fail
	CBNZ	R0, copy
	MOVD	R22, R0
	MOVD	$close, R8
	SVC
	MOVBU	30(RSP), R0
	ADD	$1, R0
	MOVB	R0, 30(RSP)
	B	part

run:
	MOVD	$73, R20
	MOVD	R21, R0
	MOVD	$0111, R1 // an unreadable program's process cannot be traced
	MOVD	$fchmod, R8
	SVC
	MOVD	R21, R0
	MOVD	RSP, R1 // ""
	ADD	$8, R19, R2
	MOVD	0(R19), R3
	ADD	R3<<3, R19, R3
	ADD	$16, R3
	MOVD	$0x1000, R4 // AT_EMPTY_PATH: the file itself
	MOVD	$execveat, R8
	SVC
fail:
	MOVD	R20, R0
	MOVD	$exit_group, R8
	SVC
	BRK
