// Changes of modes and times in a sandbox with Landlock, whose commands have their owner's uid. Landlock does not
// restrict these calls, so a filter refuses them, and the agent makes the change if the file is the sandbox's.
package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	askReceive, askSend, askStillValid = 0xc0502100, 0xc0182101, 0x40082102

	atHere      = -100
	longestPath = 4096
)

// The calls that the filter asks about, by number. arm64 has no chmod and no utimes.
var asked = map[string]map[int32]string{
	"amd64": {90: "chmod", 91: "fchmod", 268: "fchmodat", 452: "fchmodat2", 280: "utimensat"},
	"arm64": {52: "fchmod", 53: "fchmodat", 452: "fchmodat2", 88: "utimensat"},
}

var utimensatCall = map[string]uintptr{"amd64": 280, "arm64": 88}

// A question is the kernel's struct seccomp_notif.
type question struct {
	id        uint64
	thread    uint32
	flags     uint32
	number    int32
	arch      uint32
	at        uint64
	arguments [6]uint64
}

// answer answers the questions of a filter until no process has it.
func (c *confinement) answer(filter int) {
	defer syscall.Close(filter)
	for {
		q := question{}
		_, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(filter), askReceive, uintptr(unsafe.Pointer(&q)))
		if e == syscall.EINTR || e == syscall.ENOENT {
			continue // the process that asked has ended
		}
		if e != 0 {
			return
		}
		reply := struct {
			id    uint64
			value int64
			error int32
			flags uint32
		}{id: q.id, error: -int32(c.change(filter, &q))}
		syscall.Syscall(syscall.SYS_IOCTL, uintptr(filter), askSend, uintptr(unsafe.Pointer(&reply)))
	}
}

// change makes the change that a process asks for, if the file is in one of the sandbox's folders.
func (c *confinement) change(filter int, q *question) syscall.Errno {
	name, a := asked[runtime.GOARCH][q.number], q.arguments
	at, path, value, flags := int32(a[0]), uintptr(a[1]), a[2], uint64(0)
	switch name {
	case "chmod":
		at, path, value = atHere, uintptr(a[0]), a[1]
	case "fchmod":
		path, value = 0, a[1]
	case "fchmodat2", "utimensat":
		flags = a[3]
	}
	process := "/proc/" + strconv.Itoa(int(q.thread))
	memory, err := os.Open(process + "/mem")
	if err != nil {
		return syscall.EPERM
	}
	defer memory.Close()
	var text []byte
	if path != 0 {
		if text = readText(memory, path); text == nil {
			return syscall.EFAULT
		}
	}
	var times [32]byte
	if name == "utimensat" && value != 0 {
		if _, err := memory.ReadAt(times[:], int64(value)); err != nil {
			return syscall.EFAULT
		}
	}
	base := process + "/cwd"
	if at != atHere {
		base = process + "/fd/" + strconv.Itoa(int(at))
	}
	file, errno := openTarget(base, string(text), flags)
	if errno != 0 {
		return errno
	}
	defer syscall.Close(file)
	// The process is still the one that asked, and its memory was read while it waited.
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(filter), askStillValid, uintptr(unsafe.Pointer(&q.id))); e != 0 {
		return e
	}
	if !c.owns(file) {
		return syscall.EPERM
	}
	var when *[32]byte // nil: now
	if value != 0 {
		when = &times
	}
	link := "/proc/self/fd/" + strconv.Itoa(file)
	if name != "utimensat" {
		return errnoOrNone(syscall.Chmod(link, uint32(value)))
	}
	named := append([]byte(link), 0)
	_, _, errno = syscall.Syscall6(utimensatCall[runtime.GOARCH], ^uintptr(0), uintptr(unsafe.Pointer(&named[0])),
		uintptr(unsafe.Pointer(when)), 0, 0, 0)
	return errno
}

// openTarget opens the file that a call is about, without access to it.
func openTarget(base, path string, flags uint64) (int, syscall.Errno) {
	how := oPath | syscall.O_CLOEXEC
	from, err := syscall.Open(base, how, 0)
	if err != nil || path == "" {
		return from, errnoOrNone(err)
	}
	defer syscall.Close(from)
	if flags&atNoFollow != 0 {
		how |= syscall.O_NOFOLLOW
	}
	file, err := syscall.Openat(from, path, how, 0)
	return file, errnoOrNone(err)
}

func errnoOrNone(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return errnoOf(err)
}

// owns reports whether an open file is in a folder of the sandbox, into which nothing else can be moved or linked.
func (c *confinement) owns(file int) bool {
	place, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(file))
	for _, folder := range c.Write {
		if err == nil && (place == folder || strings.HasPrefix(place, folder+"/")) {
			return true
		}
	}
	return false
}

// readText reads a C string of at most the length of a path; nil if there is none.
func readText(memory *os.File, at uintptr) []byte {
	text := make([]byte, longestPath)
	n, _ := memory.ReadAt(text, int64(at)) // fewer at the end of a mapping
	end := bytes.IndexByte(text[:n], 0)
	if end < 0 {
		return nil
	}
	return text[:end]
}
