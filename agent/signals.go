// Signals: no command, not even root's, may be able to stop or kill the agent, which is PID 1.
package main

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

// coreSignals are the signals whose default action dumps core. Some of them end the Go runtime, depending
// on the fields that the sender set. So they get their default action, which Linux does not take for a
// namespace's first process.
var coreSignals = []syscall.Signal{
	syscall.SIGQUIT, syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS,
	syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGSYS,
}

// ignoreSignalPC is the address of a handler that returns at once, in ignore_*.s.
var ignoreSignalPC uint64

// A sigaction is the kernel's struct sigaction: handler, flags, restorer, mask.
type sigaction [4]uint64

func rtSigaction(number syscall.Signal, set, get *sigaction) {
	syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(number),
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(get)), 8, 0, 0)
}

// shieldFromSignals makes every signal do nothing, except SIGKILL and SIGSTOP, which cannot come from
// inside. All signals except coreSignals get an empty handler. The default action would kill even a first
// process if one of its threads blocks the signal and another does not, and commands would inherit SIG_IGN.
func shieldFromSignals() {
	var ignore sigaction
	rtSigaction(syscall.SIGURG, nil, &ignore) // reads the Go runtime's flags and restorer
	ignore[0] = ignoreSignalPC
	for number := syscall.Signal(1); number <= 64; number++ {
		switch {
		case number == syscall.SIGCHLD, number == syscall.SIGURG:
			// SIGCHLD is for reaping; the Go scheduler uses SIGURG.
		case slices.Contains(coreSignals, number):
			rtSigaction(number, &sigaction{}, nil)
		default:
			rtSigaction(number, &ignore, nil)
		}
	}
}

// quiet are the signals that the agent need not handle. Its threads block them, because a command may
// send them faster than a thread can handle them, which would stall that thread.
var quiet = func() (mask uint64) {
	for number := syscall.Signal(1); number <= 64; number++ {
		if number != syscall.SIGCHLD && number != syscall.SIGURG &&
			!slices.Contains(coreSignals, number) {
			mask |= 1 << (number - 1)
		}
	}
	return mask
}()

// serves is true in a sandbox's agent, and false in a program that only connects to one.
var serves = len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-")

// startMask is the set of signals that were blocked when the agent started. Commands start with the same
// set. It is read and changed during initialisation, where Go is certain to be on the process's first
// thread, which Linux prefers for signals.
var startMask = func() uint64 {
	if !serves {
		return 0
	}
	// Go uses this signal for system calls on all threads, which dropPrivileges needs.
	const allThreads = 33
	return blockSignals(quiet &^ (1 << (allThreads - 1)))
}()

// blockSignals blocks more signals in the calling thread, and returns the set that was blocked before.
func blockSignals(more uint64) (before uint64) {
	const add = 0
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, add, uintptr(unsafe.Pointer(&more)),
		uintptr(unsafe.Pointer(&before)), 8, 0, 0)
	return before
}

const rlimitSigpending = 11

// queuedSignals is the limit of queued signals and timers of commands: see limits.go.
var queuedSignals [2]uint64

// queueNoSignals sets the agent's limit of queued signals to 0, so that a flood of real-time signals costs
// nothing. Otherwise Linux would queue the blocked ones. Their number is limited per user of the machine,
// and a full queue would stop the next agent, which needs such a signal at its start. Without a queue
// each signal is pending at most once.
func queueNoSignals() {
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitSigpending, 0,
		uintptr(unsafe.Pointer(&queuedSignals)), 0, 0)
	queuedSignals = [2]uint64{min(queuedSignals[0], mostQueuedSignals),
		min(queuedSignals[1], mostQueuedSignals)}
	none := [2]uint64{0, queuedSignals[1]}
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitSigpending,
		uintptr(unsafe.Pointer(&none)), 0, 0, 0)
}
