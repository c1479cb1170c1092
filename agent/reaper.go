// The reaper: a process between the agent and one command. It adopts the command's orphans, so that
// none of them leaves the command's tree.
//
// It is cloned from the agent without an exec, which costs less than the start of a thread. It shares
// only the agent's memory, which no process in the sandbox may read or trace, and needs no memory but a
// stack. The reaper, and the command until its exec, run only functions of this file, on their own
// stacks and with all signals blocked. These functions make system calls, but never allocate, store a
// pointer, lock or grow a stack. They write all results to memory that the agent reads, so nothing is
// lost when a command of the same user kills its reaper.
package main

import (
	"syscall"
	"unsafe"
)

const (
	prSetChildSubreaper = 36
	sysCloseRange       = 436
	pAll                = 0
	sigSetmask          = 2

	// The numbers in the reaper; in the agent they have others.
	wakeFD    = 3
	rulesetFD = 4
)

// The steps at which the start of a command can fail.
const (
	stepFork = iota
	stepFiles
	stepSession
	stepUser
	stepCwd
	stepTerminal
	stepLimits
	stepExec
)

// A siginfo is waitid's description of a child that ended.
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

const cldExited = 1

// reaperState is the shared memory through which the agent, a reaper and a command before its exec
// communicate. It is outside Go's heap, and holds addresses of memory that the agent does not move.
type reaperState struct {
	// Written by the agent.
	id                    uint64
	wake                  uintptr
	fds                   [3]uintptr
	lastFD                uintptr // the last descriptor to close, if the kernel lacks close_range
	path, argv, envv, cwd uintptr
	groups, groupCount    uintptr
	uid, gid              uintptr
	switchUser, terminal  bool
	openFiles             [2]uint64
	queuedSignals         [2]uint64
	limits                [mostLimits]resourceLimit
	limitCount            int
	commandMask           uint64  // of signals
	ruleset               uintptr // the command's Landlock domain; 0: none

	// Read by the agent.
	subreaper bool
	begun     bool // the command runs, or its start has failed
	exited    bool // ends[0] is the main process's end
	step      int32
	errno     syscall.Errno
	main      int32
	pid       int32
	// The first is for the main process's end, which stays there; the second for all other processes.
	ends   [2]siginfo
	usages [2]syscall.Rusage

	inCommand bool
	all, mask uint64     // signal sets: all signals, and those that the agent's thread blocks
	caps      [2]capData // capabilities that the command may have, or needs to change its user
	nocaps    [2]capData
	capHeader capHeader
	defaults  sigaction
}

const (
	regionBytes = 48 << 10
	stackBytes  = 16 << 10
)

// cloneOn clones the calling thread into a process that runs cloned on another stack.
//
//go:noescape
func cloneOn(flags, stack, tid uintptr, state *reaperState) (pid uintptr)

// clonedPC is the address of cloned, in clone_*.s.
var clonedPC uint64

//go:nosplit
//go:norace
func cloned(s *reaperState) {
	if s.inCommand {
		becomeCommand(s)
	} else {
		reapForEver(s)
	}
	for {
		syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// forkReaper starts a reaper. No signal may reach the reaper before it has blocked all signals.
//
//go:nosplit
//go:norace
func forkReaper(s *reaperState) syscall.Errno {
	s.all = ^uint64(0)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask,
		uintptr(unsafe.Pointer(&s.all)), uintptr(unsafe.Pointer(&s.mask)), 8, 0, 0)
	r := cloneOn(reaperFlags, uintptr(unsafe.Pointer(s))+regionBytes-stackBytes,
		uintptr(unsafe.Pointer(&s.pid)), s)
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask,
		uintptr(unsafe.Pointer(&s.mask)), 0, 8, 0, 0)
	if r > ^uintptr(4095) {
		return syscall.Errno(-r)
	}
	return 0
}

const (
	reaperFlags  = syscall.CLONE_VM | syscall.CLONE_PARENT_SETTID | uintptr(syscall.SIGCHLD)
	commandFlags = syscall.CLONE_VM | syscall.CLONE_VFORK | syscall.CLONE_PARENT_SETTID |
		uintptr(syscall.SIGCHLD)
)

//go:nosplit
//go:norace
func reapForEver(s *reaperState) {
	_, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0, 0, 0, 0)
	s.subreaper = e == 0
	s.step = stepFiles
	e = keepOnly(s)
	if e == 0 {
		s.step = stepUser
		_, _, e = syscall.RawSyscall(syscall.SYS_CAPSET,
			uintptr(unsafe.Pointer(&s.capHeader)), uintptr(unsafe.Pointer(&s.caps)), 0)
	}
	if e == 0 {
		s.step = stepFork
		s.inCommand = true
		r := cloneOn(commandFlags, uintptr(unsafe.Pointer(s))+regionBytes,
			uintptr(unsafe.Pointer(&s.main)), s)
		if r > ^uintptr(4095) {
			e = syscall.Errno(-r)
		}
	}
	if e != 0 {
		s.main = 0
		s.errno = e
	}
	// From here on the reaper only waits, and needs neither descriptors nor capabilities.
	for fd := uintptr(0); fd < 3; fd++ {
		syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
	}
	syscall.RawSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&s.capHeader)), uintptr(unsafe.Pointer(&s.nocaps)), 0)
	s.begun = true
	syscall.RawSyscall(syscall.SYS_WRITE, wakeFD, uintptr(unsafe.Pointer(&s.id)), 8)
	for {
		at := uintptr(0)
		if s.exited {
			at = 1
		}
		s.ends[at&1].pid = 0
		_, _, e = syscall.RawSyscall6(syscall.SYS_WAITID, pAll, 0,
			uintptr(unsafe.Pointer(&s.ends[at&1])), syscall.WEXITED|wallOption,
			uintptr(unsafe.Pointer(&s.usages[at&1])), 0)
		if e == syscall.EINTR {
			continue
		}
		if e != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
		if !s.exited && s.ends[0].pid == s.main {
			s.exited = true
			syscall.RawSyscall(syscall.SYS_WRITE, wakeFD, uintptr(unsafe.Pointer(&s.id)), 8)
		}
	}
}

// keepOnly closes all descriptors except the command's three and the one that wakes the agent.
//
//go:nosplit
//go:norace
func keepOnly(s *reaperState) syscall.Errno {
	// The sources have higher numbers, because the agent itself uses the first three.
	for i := uintptr(0); i < 3; i++ {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, s.fds[i%3], i, 0); e != 0 {
			return e
		}
	}
	if s.wake != wakeFD {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, s.wake, wakeFD, syscall.O_CLOEXEC); e != 0 {
			return e
		}
	}
	if s.ruleset != 0 && s.ruleset != rulesetFD {
		if _, _, e := syscall.RawSyscall(syscall.SYS_DUP3, s.ruleset, rulesetFD, syscall.O_CLOEXEC); e != 0 {
			return e
		}
	}
	first := uintptr(wakeFD + 1)
	if s.ruleset != 0 {
		first = rulesetFD + 1
	}
	if _, _, e := syscall.RawSyscall(sysCloseRange, first, uintptr(^uint32(0)), 0); e != 0 {
		for fd := uintptr(wakeFD + 1); fd <= s.lastFD; fd++ {
			syscall.RawSyscall(syscall.SYS_CLOSE, fd, 0, 0)
		}
	}
	return 0
}

// becomeCommand executes the command. It returns only after a failure, whose step and errno it has stored.
//
//go:nosplit
//go:norace
func becomeCommand(s *reaperState) {
	var e syscall.Errno
	// No signal handler of the agent may run here, because it would assume a thread of the agent.
	for number := uintptr(1); number <= 64; number++ {
		syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, number,
			uintptr(unsafe.Pointer(&s.defaults)), 0, 8, 0, 0)
	}
	s.step = stepSession
	if _, _, e = syscall.RawSyscall(syscall.SYS_SETSID, 0, 0, 0); e != 0 {
		s.errno = e
		return
	}
	if s.switchUser {
		s.step = stepUser
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETGROUPS, s.groupCount, s.groups, 0); e != 0 {
			s.errno = e
			return
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETGID, s.gid, 0, 0); e != 0 {
			s.errno = e
			return
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_SETUID, s.uid, 0, 0); e != 0 {
			s.errno = e
			return
		}
		if _, _, e = syscall.RawSyscall(syscall.SYS_CAPSET,
			uintptr(unsafe.Pointer(&s.capHeader)), uintptr(unsafe.Pointer(&s.nocaps)), 0); e != 0 {
			s.errno = e
			return
		}
	}
	s.step = stepCwd
	if _, _, e = syscall.RawSyscall(syscall.SYS_CHDIR, s.cwd, 0, 0); e != 0 {
		s.errno = e
		return
	}
	if s.terminal {
		s.step = stepTerminal
		if _, _, e = syscall.RawSyscall(syscall.SYS_IOCTL, 0, syscall.TIOCSCTTY, 1); e != 0 {
			s.errno = e
			return
		}
	}
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, rlimitSigpending,
		uintptr(unsafe.Pointer(&s.queuedSignals)), 0, 0, 0)
	if s.openFiles[1] != 0 {
		syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, syscall.RLIMIT_NOFILE,
			uintptr(unsafe.Pointer(&s.openFiles)), 0, 0, 0)
	}
	s.step = stepLimits
	for i := 0; i < s.limitCount; i++ {
		limit := &s.limits[i%mostLimits]
		if _, _, e = syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, limit.resource,
			uintptr(unsafe.Pointer(&limit.value)), 0, 0, 0); e != 0 {
			s.errno = e
			return
		}
	}
	if s.ruleset != 0 {
		if _, _, e = syscall.RawSyscall(landlockRestrict, rulesetFD, 0, 0); e != 0 {
			s.errno = e
			return
		}
	}
	s.step = stepExec
	syscall.RawSyscall6(syscall.SYS_RT_SIGPROCMASK, sigSetmask,
		uintptr(unsafe.Pointer(&s.commandMask)), 0, 8, 0, 0)
	_, _, s.errno = syscall.RawSyscall(syscall.SYS_EXECVE, s.path, s.argv, s.envv)
}
