// Package early reads process state that the start of other Go packages changes. Go initialises packages in
// the order of their import paths, each after its imports, so a package without imports is among the first.
package early

import "unsafe"

//go:linkname rawSyscall6 syscall.RawSyscall6
func rawSyscall6(trap, a1, a2, a3, a4, a5, a6 uintptr) (r1, r2, errno uintptr)

// OpenFiles is the soft and hard limit of open files that the process was started with. Go raises the
// soft limit for itself.
var OpenFiles = read()

func read() (limit [2]uint64) {
	const openFiles = 7
	rawSyscall6(prlimit64, 0, openFiles, 0, uintptr(unsafe.Pointer(&limit)), 0, 0)
	return limit
}
