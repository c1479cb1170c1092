// Signals: as PID 1 the agent must not be stopped by its own commands, not even by root's.
package main

import (
	"os"
	"slices"
	"strings"
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

// quiet are the signals that need no handling in the agent. They are blocked in its threads: a
// command may send them faster than they can be handled, and would hold up who gets them.
var quiet = func() (mask uint64) {
	for number := syscall.Signal(1); number <= 64; number++ {
		if number != syscall.SIGCHLD && number != syscall.SIGURG &&
			!slices.Contains(coreSignals, number) {
			mask |= 1 << (number - 1)
		}
	}
	return mask
}()

// serves tells a sandbox's agent from what only leads to it.
var serves = len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-")

// startMask is the signals that the agent was started with as blocked, and its commands are. It is
// read and changed where Go is certain to be on a process's first thread, which Linux prefers.
var startMask = func() uint64 {
	if !serves {
		return 0
	}
	// By this one Go has all threads make a system call, as it must until there are no privileges.
	const allThreads = 33
	return blockSignals(quiet &^ (1 << (allThreads - 1)))
}()

// blockSignals is for the calling thread, and returns what was blocked there before.
func blockSignals(more uint64) (before uint64) {
	const add = 0
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, add, uintptr(unsafe.Pointer(&more)),
		uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	return before
}

const rlimitSigpending = 11

// queuedSignals is how many real-time signals may be queued for a command: what the agent had.
var queuedSignals [2]uint64

// queueNoSignals lets a flood of real-time signals cost nothing. Those that are blocked would be
// queued, and the queue is the user's, everywhere on the machine: it would be full for the next
// agent, which needs such a signal at its start. Without a queue each is pending once.
func queueNoSignals() {
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitSigpending, 0,
		uintptr(unsafe.Pointer(&queuedSignals)), 0, 0)
	none := [2]uint64{0, queuedSignals[1]}
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitSigpending,
		uintptr(unsafe.Pointer(&none)), 0, 0, 0)
}
