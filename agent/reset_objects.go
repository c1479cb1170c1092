// Kernel objects that outlive their processes: System V objects, message queues and keys.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// moreCalls are numbers of system calls that package syscall does not name on both architectures.
type moreCalls struct{ shmctl, semctl, msgctl, shmget, mqOpen, mqUnlink, keyctl uintptr }

var calls = map[string]moreCalls{
	"amd64": {shmctl: 31, semctl: 66, msgctl: 71, shmget: 29, mqOpen: 240, mqUnlink: 241, keyctl: 250},
	"arm64": {shmctl: 195, semctl: 191, msgctl: 187, shmget: 194, mqOpen: 180, mqUnlink: 181, keyctl: 219},
}[goarch]

// kernelObjects describes a sandbox's System V objects, which /proc/sysvipc lists, and its keyrings.
type kernelObjects struct {
	lists []objectList
	keys  bool // there are keyrings, which jobs may use
}

type objectList struct {
	name   string
	fd     int
	before []byte
	remove uintptr // system call
	buffer []byte
}

// read returns the list's current text, which is valid until the next call.
func (l *objectList) read() []byte {
	l.buffer = slices.Grow(l.buffer[:0], 1<<10)
	for {
		l.buffer = slices.Grow(l.buffer, 512)
		size := len(l.buffer)
		n, err := syscall.Pread(l.fd, l.buffer[size:cap(l.buffer)], int64(size))
		if err != nil || n == 0 {
			return l.buffer
		}
		l.buffer = l.buffer[:size+n]
	}
}

// findKernelObjects records the kernel objects before the first job. refused holds the reasons why
// such objects could not be removed later.
func findKernelObjects(all []mount, j *jobs, id identity) (k kernelObjects, refused []string) {
	for _, kind := range []struct {
		name   string
		remove uintptr
	}{{"shm", calls.shmctl}, {"sem", calls.semctl}, {"msg", calls.msgctl}} {
		fd, err := syscall.Open("/proc/sysvipc/"+kind.name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			if _, _, e := syscall.RawSyscall(calls.shmget, 0, 0, 0); e != syscall.ENOSYS &&
				e != syscall.EPERM {
				refused = append(refused, fmt.Sprintf("System V %s cannot be listed: %v", kind.name, err))
			}
			continue
		}
		list := objectList{name: kind.name, fd: fd, remove: kind.remove}
		list.before = bytes.Clone(list.read())
		k.lists = append(k.lists, list)
	}
	refused = append(refused, j.actor.as(id, func() []string {
		if !slices.ContainsFunc(all, func(m mount) bool { return m.kind == "mqueue" && !m.readOnly }) &&
			mayOpenQueue() {
			return []string{"message queues outlive jobs, and no file system shows them"}
		}
		const getKeyring, ofUser = 0, -4
		_, _, e := syscall.RawSyscall(calls.keyctl, getKeyring, uintptr(ofUser&(1<<64-1)), 1)
		k.keys = e == 0
		return nil
	})...)
	return k, refused
}

// mayOpenQueue reports whether the calling thread may create a POSIX message queue.
func mayOpenQueue() bool {
	name, _ := syscall.BytePtrFromString(fmt.Sprintf("sandboxkit-%d", os.Getpid()))
	fd, _, e := syscall.RawSyscall6(calls.mqOpen, uintptr(unsafe.Pointer(name)),
		syscall.O_RDWR|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, 0o600, 0, 0, 0)
	if e != 0 {
		return e != syscall.ENOSYS && e != syscall.EPERM
	}
	syscall.Close(int(fd))
	syscall.RawSyscall(calls.mqUnlink, uintptr(unsafe.Pointer(name)), 0, 0)
	return true
}

// remove removes the job's kernel objects. Call it as the job's user. A later call of left finds objects
// that could not be removed.
func (k *kernelObjects) remove() (left []string) {
	for i := range k.lists {
		l := &k.lists[i]
		now := l.read()
		if bytes.Equal(now, l.before) {
			continue
		}
		was := ids(l.before)
		for _, id := range slices.Sorted(maps.Keys(ids(now))) {
			if !was[id] {
				removeObject(l.remove, id)
			}
		}
	}
	if k.keys {
		const clear = 7
		for _, ring := range []int{-4, -5} { // the user's keyring and its session keyring
			_, _, e := syscall.RawSyscall(calls.keyctl, clear, uintptr(ring), 0)
			if e != 0 && e != syscall.ENOKEY {
				left = append(left, "a keyring: "+e.Error())
			}
		}
	}
	return left
}

func removeObject(call uintptr, id int) {
	const removeID = 0
	if call == calls.semctl {
		syscall.RawSyscall6(call, uintptr(id), 0, removeID, 0, 0, 0)
	} else {
		syscall.RawSyscall(call, uintptr(id), removeID, 0)
	}
}

// ids returns the object ids of a list: its second column.
func ids(list []byte) map[int]bool {
	found := map[int]bool{}
	for _, line := range strings.Split(string(list), "\n") {
		if f := strings.Fields(line); len(f) > 1 {
			if id, err := strconv.Atoi(f[1]); err == nil {
				found[id] = true
			}
		}
	}
	return found
}

func (k *kernelObjects) left() (left []string) {
	for i := range k.lists {
		l := &k.lists[i]
		now := l.read()
		if bytes.Equal(now, l.before) {
			continue
		}
		if !maps.Equal(ids(now), ids(l.before)) {
			left = append(left, "System V objects: "+l.name)
		}
	}
	return left
}

// shrink frees the buffers of long lists, and reports whether there were any.
func (k *kernelObjects) shrink() (had bool) {
	for i := range k.lists {
		if l := &k.lists[i]; cap(l.buffer) > 64<<10 {
			l.buffer, had = nil, true
		}
	}
	return had
}
