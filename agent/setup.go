// The setup of a command: the files that are written, and the resource limits that are set, before it starts.
package main

import (
	"bytes"
	"fmt"
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
	kept    uint32 // the client's number of a content that is kept for later commands; 0 if it is not kept
	missing bool   // the client sent only the number, and the content is not kept any more
}

const (
	// keepContent is the bit of a file's mode that says that its content is kept, and begins with a number.
	keepContent = 1 << 16
	// mostKept is how many bytes of contents a connection keeps, besides the newest content.
	mostKept = 4 << 20
)

// keptContents are the contents of files that a client will send again by number, the oldest first. They
// are in the agent's memory, which no command can reach.
type keptContents struct {
	files []setupFile
	size  int
}

// complete keeps the contents of the files that have one, and gives the others theirs.
func (k *keptContents) complete(files []setupFile) {
	for i := range files {
		f := &files[i]
		if f.kept == 0 {
			continue
		}
		if len(f.content) > 0 {
			f.content = bytes.Clone(f.content) // apart from the rest of its frame
			k.files, k.size = append(k.files, *f), k.size+len(f.content)
			for k.size > mostKept && len(k.files) > 1 {
				k.size -= len(k.files[0].content)
				k.files = k.files[1:]
			}
			continue
		}
		f.missing = true
		for _, other := range k.files {
			if other.kept == f.kept {
				f.content, f.missing = other.content, false
			}
		}
	}
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
		f := setupFile{path: in.str(), mode: in.u32(), content: in.bytes()}
		if f.mode != keepMode && f.mode&keepContent != 0 {
			content := fields{rest: f.content}
			f.kept = content.u32()
			f.content = content.rest
			in.err = content.err
		}
		s.files = append(s.files, f)
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
		if f.missing {
			return setupError{fmt.Errorf("content %d is not kept any more: %w", f.kept, syscall.ESTALE), f.path}
		}
		if err := writeFile(inside(f.path), f.mode, f.content, nil); err != nil {
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
