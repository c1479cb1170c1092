// Package early reads what Go's own start changes. It imports nothing, so it is initialised before
// the packages that do: of those that can be, the one with the first import path is next.
package early

import "unsafe"

//go:linkname rawSyscall6 syscall.RawSyscall6
func rawSyscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2, errno uintptr)

// OpenFiles is the limit of open files that the process was started with, which Go raises for
// itself: soft and hard.
var OpenFiles = read()

func read() (limit [2]uint64) {
	const openFiles = 7
	rawSyscall6(prlimit64, 0, openFiles, 0, uintptr(unsafe.Pointer(&limit)), 0, 0)
	return limit
}
