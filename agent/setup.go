// The setup of a command: the files that are written, and the resource limits that are set, before it starts.
package main

import (
	"syscall"
	"unsafe"

	"sandboxkit/agent/early"
)

// mostLimits is how many kinds of resource limits Linux has.
const mostLimits = 16

// A resourceLimit is a soft and a hard limit that a command gets at most. Unlimited means: unchanged.
type resourceLimit struct {
	resource uintptr
	value    [2]uint64
}

type setupFile struct {
	path    string
	mode    uint32
	content []byte
}

type setup struct {
	limits []resourceLimit
	files  []setupFile
}

func parseSetup(in *fields) (s setup) {
	for n := in.u8(); n > 0 && in.err == nil; n-- {
		limit := resourceLimit{uintptr(in.u8()), [2]uint64{in.u64(), in.u64()}}
		if limit.resource >= mostLimits || len(s.limits) == mostLimits {
			in.err = protocolError("no such resource limit")
			return s
		}
		s.limits = append(s.limits, limit)
	}
	for n := in.u32(); n > 0 && in.err == nil; n-- {
		s.files = append(s.files, setupFile{in.str(), in.u32(), in.bytes()})
	}
	return s
}

// A setupError is the reason why one of a command's files was not written.
type setupError struct {
	error
	path string
}

func (e setupError) Unwrap() error { return e.error }

// writeFiles writes the files in their order, as the call write does.
func writeFiles(files []setupFile) error {
	for _, f := range files {
		if err := writeFile(f.path, f.mode, f.content, nil); err != nil {
			return setupError{err, f.path}
		}
	}
	return nil
}

// setLimits stores in out the limits that a command gets: those that it asks for, but never above the agent's.
func setLimits(out *[mostLimits]resourceLimit, asked []resourceLimit) int {
	for i, limit := range asked {
		now := early.OpenFiles
		if limit.resource != syscall.RLIMIT_NOFILE || now[1] == 0 {
			syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, limit.resource, 0, uintptr(unsafe.Pointer(&now)), 0, 0)
		}
		limit.value[1] = min(limit.value[1], now[1])
		limit.value[0] = min(limit.value[0], limit.value[1])
		out[i] = limit
	}
	return len(asked)
}
