// A seccomp filter that keeps commands of the agent's user from lowering the agent's own limits.
package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// A callNumber is a system call's number in one of the kernel's ABIs. A command may use any ABI.
type callNumber struct{ arch, number uint32 }

var prlimitCalls = map[string][]callNumber{
	"amd64": {{0xC000003E, 302}, {0xC000003E, 0x40000000 | 302}, {0x40000003, 340}},
	"arm64": {{0xC00000B7, 261}, {0x40000028, 369}},
}

var ptraceCalls = map[string][]callNumber{
	"amd64": {{0xC000003E, 101}, {0xC000003E, 0x40000000 | 521}, {0x40000003, 26}},
	"arm64": {{0xC00000B7, 117}, {0x40000028, 26}},
}

const ptraceAttach, ptraceSeize = 16, 0x4206

var seccompCall = map[string]uintptr{"amd64": 317, "arm64": 277}

const (
	bpfLoad    = 0x20
	bpfAnd     = 0x54
	bpfEqual   = 0x15
	bpfGreater = 0x25
	bpfAtLeast = 0x35
	bpfReturn  = 0x06

	dataNumber, dataArch, dataPid = 0, 4, 16

	seccompAllow     = 0x7FFF0000
	seccompErrno     = 0x00050000
	setModeFilter    = 1
	filterAllThreads = 1
)

type bpf struct {
	code    uint16
	yes, no uint8
	value   uint32
}

// guardFilter builds a filter that denies changes to the limits of the processes from first to last.
func guardFilter(calls []callNumber, first, last uint32) (program []bpf) {
	for _, c := range calls {
		program = append(program,
			bpf{bpfLoad, 0, 0, dataArch},
			bpf{bpfEqual, 0, 7, c.arch},
			bpf{bpfLoad, 0, 0, dataNumber},
			bpf{bpfEqual, 0, 5, c.number},
			bpf{bpfLoad, 0, 0, dataPid},
			bpf{bpfEqual, 3, 0, 0}, // pid 0, the caller itself
			bpf{bpfAtLeast, 0, 2, first},
			bpf{bpfGreater, 1, 0, last},
			bpf{bpfReturn, 0, 0, seccompErrno | uint32(syscall.EPERM)},
		)
	}
	return append(program, bpf{bpfReturn, 0, 0, seccompAllow})
}

// attachFilter builds the beginning of a filter, which denies attaching to a process with ptrace.
// Another filter must follow.
func attachFilter(calls []callNumber) (program []bpf) {
	for _, c := range calls {
		program = append(program,
			bpf{bpfLoad, 0, 0, dataArch},
			bpf{bpfEqual, 0, 6, c.arch},
			bpf{bpfLoad, 0, 0, dataNumber},
			bpf{bpfEqual, 0, 4, c.number},
			bpf{bpfLoad, 0, 0, dataPid}, // the first argument, ptrace's request
			bpf{bpfEqual, 1, 0, ptraceAttach},
			bpf{bpfEqual, 0, 1, ptraceSeize},
			bpf{bpfReturn, 0, 0, seccompErrno | uint32(syscall.EPERM)},
		)
	}
	return program
}

// guardLimits prevents commands from changing the agent's limits, which Linux allows to any process of the
// same user. An agent without open files, address space or CPU time could run nothing, and the failure
// would look like the machine's. Call it when the agent has all its threads, before its first command. The
// filter protects the range of the threads' pids, and so also any later process with a pid in this range.
// Linux does not reuse pids up to 300, so this cannot affect a sandbox whose agent is the first process.
//
// daemon means that a vendor's daemon runs as the commands' user, so a command could stop it by attaching
// as a debugger. The filter then denies attaching. A command may still trace children that request it with
// PTRACE_TRACEME.
func guardLimits(daemon bool) error {
	first, last := self, self
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("its threads: %w", err)
	}
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			first, last = min(first, id), max(last, id)
		}
	}
	filter := guardFilter(prlimitCalls[runtime.GOARCH], uint32(first), uint32(last))
	if daemon {
		filter = append(attachFilter(ptraceCalls[runtime.GOARCH]), filter...)
	}
	// Ignore a kernel that has no filters or lacks this system call.
	if err = installFilter(filter, filterAllThreads); errors.Is(err, syscall.ENOSYS) || errors.Is(err, syscall.EINVAL) {
		return nil
	}
	return err
}

// installFilter adds a filter to the calling thread, or to all threads.
func installFilter(filter []bpf, flags uintptr) error {
	program := struct {
		length uint16
		at     unsafe.Pointer
	}{uint16(len(filter)), unsafe.Pointer(&filter[0])}
	thread, _, e := syscall.Syscall(seccompCall[runtime.GOARCH], setModeFilter, flags,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	if e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: its thread %d cannot have the filter", thread)
	}
	return nil
}
