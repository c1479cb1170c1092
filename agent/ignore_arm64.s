// A signal handler that does nothing, and its address.

#include "textflag.h"

TEXT ·ignoreSignal(SB),NOSPLIT|NOFRAME,$0
	RET

DATA ·ignoreSignalPC(SB)/8, $·ignoreSignal(SB)
GLOBL ·ignoreSignalPC(SB), NOPTR|RODATA, $8
