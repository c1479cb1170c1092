// Limits of commands on resources that the kernel counts per user of the machine, because other sandboxes
// may share that user.
package main

import (
	"fmt"
	"syscall"
	"unsafe"

	"sandboxkit/agent/early"
)

const (
	rlimitMemlock  = 8
	rlimitMsgqueue = 12

	mostQueuedSignals = 1024
	mostQueueBytes    = 128 << 10 // one queue of Linux's default size
	mostLockedBytes   = 64 << 10
)

// limitCommands lowers the limits that commands inherit, and gives them a lower limit of open files than
// the agent. Linux counts the descriptors in flight per user, and a process can send more only while this
// count is below its own limit. With its higher limit the agent can still send.
func limitCommands(openFiles uint64) error {
	if openFiles > 0 {
		most := min(openFiles, early.OpenFiles[1])
		early.OpenFiles = [2]uint64{most, most}
	}
	if err := lowerLimit(rlimitMsgqueue, mostQueueBytes); err != nil || self != 1 {
		return err // an agent that is not PID 1 has the machine to itself: keep the limit of locked memory
	}
	return lowerLimit(rlimitMemlock, mostLockedBytes)
}

// lowerLimit never raises a limit, so Linux never refuses it. gVisor refuses limits that it does not have; it
// counts the resource for each sandbox alone.
func lowerLimit(resource uintptr, most uint64) error {
	var limit [2]uint64
	syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, resource, 0, uintptr(unsafe.Pointer(&limit)), 0, 0)
	limit = [2]uint64{min(limit[0], most), min(limit[1], most)}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, resource,
		uintptr(unsafe.Pointer(&limit)), 0, 0, 0); e != 0 && e != syscall.EPERM {
		return fmt.Errorf("limit %d: %w", resource, e)
	}
	return nil
}
