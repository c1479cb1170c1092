// The guard of the agent's own limits: a command of the same user may not lower them.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// A callNumber is prlimit64's in one of the kernel's interfaces, whichever a command enters by.
type callNumber struct{ arch, number uint32 }

var prlimitCalls = map[string][]callNumber{
	"amd64": {{0xC000003E, 302}, {0xC000003E, 0x40000000 | 302}, {0x40000003, 340}},
	"arm64": {{0xC00000B7, 261}, {0x40000028, 369}},
}

var seccompCall = map[string]uintptr{"amd64": 317, "arm64": 277}

const (
	bpfLoad    = 0x20
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

// guardFilter refuses to touch the limits of the processes from `first` to `last`.
func guardFilter(calls []callNumber, first, last uint32) (program []bpf) {
	for _, c := range calls {
		program = append(program,
			bpf{bpfLoad, 0, 0, dataArch},
			bpf{bpfEqual, 0, 7, c.arch},
			bpf{bpfLoad, 0, 0, dataNumber},
			bpf{bpfEqual, 0, 5, c.number},
			bpf{bpfLoad, 0, 0, dataPid},
			bpf{bpfEqual, 3, 0, 0}, // its own
			bpf{bpfAtLeast, 0, 2, first},
			bpf{bpfGreater, 1, 0, last},
			bpf{bpfReturn, 0, 0, seccompErrno | uint32(syscall.EPERM)},
		)
	}
	return append(program, bpf{bpfReturn, 0, 0, seccompAllow})
}

// guardLimits keeps commands from the agent's limits, for which Linux asks for no more than the
// same user: with no open files, no address space or no processor time left for the agent, nothing
// could be run any more, and it would look like the machine's doing. It is called when the agent
// has all its threads, before its first command. A process that gets a number between theirs later
// has its limits kept from others as well; from the sandbox's first processes' Linux keeps such
// numbers free, as it begins above 300 again when it has used all.
func guardLimits() error {
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
	program := struct {
		length uint16
		at     unsafe.Pointer
	}{uint16(len(filter)), unsafe.Pointer(&filter[0])}
	thread, _, e := syscall.Syscall(seccompCall[runtime.GOARCH], setModeFilter, filterAllThreads,
		uintptr(unsafe.Pointer(&program)))
	runtime.KeepAlive(filter)
	// A kernel without filters, or without this system call, has none to ask.
	if e != 0 && e != syscall.ENOSYS && e != syscall.EINVAL {
		return fmt.Errorf("seccomp: %w", e)
	}
	if e == 0 && thread != 0 {
		return fmt.Errorf("seccomp: its thread %d cannot have the filter", thread)
	}
	return nil
}
