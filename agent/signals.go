// Signals: as PID 1 the agent must not be stopped by its own commands, not even by root's.
package main

import (
	"slices"
	"syscall"
	"unsafe"
)

// Signals whose default action dumps core. The Go runtime dies of some of them, depending on
// what the sender wrote into them, so they get their default action, which Linux does not
// take in a namespace's first process.
var coreSignals = []syscall.Signal{
	syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGSYS,
}

// ignoreSignalPC is the address of a handler that returns at once, in ignore_*.s.
var ignoreSignalPC uint64

// The kernel's struct sigaction: handler, flags, restorer, mask.
type sigaction [4]uint64

func rtSigaction(number syscall.Signal, set, get *sigaction) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(number),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 8, 0, 0)
}

// shieldFromSignals makes every signal but SIGKILL and SIGSTOP, which cannot come from inside,
// do nothing. The others get a handler: their default action does take a first process down,
// when they arrive while one of its threads has them blocked and another has not. Ignoring
// them would be inherited by commands.
func shieldFromSignals() {
	var ignore sigaction
	rtSigaction(syscall.SIGURG, nil, &ignore) // for its flags, and the way back
	ignore[0] = ignoreSignalPC
	for number := syscall.Signal(1); number <= 64; number++ {
		switch {
		case number == syscall.SIGCHLD, number == syscall.SIGURG:
			// The reaper's, and the runtime's own for its scheduler.
		case slices.Contains(coreSignals, number):
			rtSigaction(number, &sigaction{}, nil)
		default:
			rtSigaction(number, &ignore, nil)
		}
	}
}
