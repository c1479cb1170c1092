// Removal of everything from a place that was not there before the first job. It runs as the job's user
// and never follows a link.
package main

import (
	"fmt"
	"path"
	"syscall"
	"time"
	"unsafe"
)

const (
	maxRemovals = 200_000
	// manyRemovals is a number of removals whose names take a relevant amount of memory.
	manyRemovals = 5_000
	maxDepth     = 256
	// removalPatience allows for a busy machine.
	removalPatience = 5 * time.Second
)

// A removal is the budget of time and entries for emptying all places.
type removal struct {
	end     time.Time
	entries int
}

func (r *removal) spent() bool {
	r.entries--
	return r.entries < 0 || (r.entries%64 == 0 && time.Now().After(r.end))
}

// empty removes everything that was not there before the first job. Call it as the job's user.
func (p *place) empty(r *removal) []string {
	if p.watched || p.regular {
		return nil
	}
	return p.emptyFolder(r, p.fd, p.path, p.kept, p.buffer, 0)
}

func (p *place) emptyFolder(r *removal, fd int, name string, kept map[string]bool, buffer []byte,
	depth int) (left []string) {
	if depth > maxDepth {
		return []string{fmt.Sprintf("%s: folders that are more than %d deep", p.path, maxDepth)}
	}
	for {
		names, err := p.names(fd, buffer)
		if err != nil {
			return []string{quoted(name) + ": " + err.Error()}
		}
		left = nil
		removed := 0
		for _, each := range names {
			if kept[each] {
				continue
			}
			if r.spent() {
				return []string{fmt.Sprintf("%s: more than can be removed in %v", p.path, removalPatience)}
			}
			if more := p.remove(r, fd, name, each, depth); len(more) == 0 {
				removed++
			} else if left = append(left, more...); len(left) >= maxFindings {
				return left
			}
		}
		if removed == 0 || len(left) > 0 {
			return left
		}
	}
}

func (p *place) remove(r *removal, fd int, in, name string, depth int) []string {
	const removeFolder = 0x200
	err := unlinkat(fd, name, 0)
	if err == nil || err == syscall.ENOENT {
		return nil
	}
	if err == syscall.EISDIR || err == syscall.EPERM {
		if err = unlinkat(fd, name, removeFolder); err == nil {
			return nil
		}
	}
	full := path.Join(in, name)
	if err == syscall.ENOTEMPTY || err == syscall.EEXIST {
		if left := p.emptyBelow(r, fd, name, full, depth); len(left) > 0 {
			return left
		}
		if err = unlinkat(fd, name, removeFolder); err == nil {
			return nil
		}
	}
	return []string{quoted(full) + ": " + err.Error()}
}

func (p *place) emptyBelow(r *removal, fd int, name, full string, depth int) []string {
	const how = syscall.O_RDONLY | syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_NONBLOCK |
		syscall.O_CLOEXEC
	// This follows no link: the entry is a folder, and no process is left that could replace it.
	_ = syscall.Fchmodat(fd, name, 0o700, 0)
	folder, err := syscall.Openat(fd, name, how, 0)
	if err != nil {
		return []string{quoted(full) + ": " + err.Error()}
	}
	defer syscall.Close(folder)
	return p.emptyFolder(r, folder, full, nil, make([]byte, placeBuffer), depth+1)
}

func unlinkat(fd int, name string, flags int) error {
	key, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	_, _, e := syscall.RawSyscall(syscall.SYS_UNLINKAT, uintptr(fd), uintptr(unsafe.Pointer(key)),
		uintptr(flags))
	if e != 0 {
		return e
	}
	return nil
}
