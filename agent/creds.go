// Privileges: what PID 1 keeps, the threads that start commands with none, and the threads
// that touch files as the sandbox's user.
package main

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"unsafe"
)

const (
	capKill   = 5
	capSetgid = 6
	capSetuid = 7
	capLast   = 63

	prSetDumpable   = 4
	prCapbsetDrop   = 24
	prSetNoNewPrivs = 38
	prCapAmbient    = 47
	prAmbientClear  = 4

	capVersion3 = 0x20080522
)

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

func getCaps() (permitted uint64, err error) {
	header := capHeader{version: capVersion3}
	var data [2]capData
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return 0, fmt.Errorf("capget: %w", errno)
	}
	return uint64(data[0].permitted) | uint64(data[1].permitted)<<32, nil
}

func capSets(keep uint64) [2]capData {
	low, high := uint32(keep), uint32(keep>>32)
	return [2]capData{{effective: low, permitted: low}, {effective: high, permitted: high}}
}

// setThreadCaps leaves the calling thread with these capabilities and no others.
func setThreadCaps(keep uint64) error {
	header := capHeader{version: capVersion3}
	data := capSets(keep)
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// dropPrivileges makes the whole process keep only CAP_KILL, CAP_SETUID, CAP_SETGID and those for
// its commands of what it has, and forbids it and all it starts to gain more.
func dropPrivileges(forCommands uint64) error {
	if _, _, e := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no_new_privs: %w", e)
	}
	syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prCapAmbient, prAmbientClear, 0, 0, 0, 0)
	for c := range capLast + 1 {
		// Needs CAP_SETPCAP, and the capability to exist. It is a second line of defence only.
		syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prCapbsetDrop, uintptr(c), 0)
	}
	has, err := getCaps()
	if err != nil {
		return err
	}
	if missing := forCommands &^ has; missing != 0 {
		return fmt.Errorf("capabilities %#x are not there to give to commands", missing)
	}
	header := capHeader{version: capVersion3}
	data := capSets(has & (1<<capKill | 1<<capSetuid | 1<<capSetgid | forCommands))
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	// Nothing in here may be read through /proc by the user whose commands run beside it.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	return nil
}

// A thread runs functions, one at a time, on one operating system thread of its own.
type thread struct{ jobs chan func() }

func newThread(setup func() error) (*thread, error) {
	t := &thread{jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := setup()
		ready <- err
		if err != nil {
			return
		}
		for job := range t.jobs {
			job()
		}
	}()
	return t, <-ready
}

func (t *thread) do(job func()) {
	done := make(chan struct{})
	t.jobs <- func() { defer close(done); job() }
	<-done
}

func (t *thread) stop() { close(t.jobs) }

// fileThreads hands out threads whose file accesses are those of one identity. They have no
// capabilities, so what PID 1 may do beyond that user cannot be borrowed through them.
type fileThreads struct {
	mu   sync.Mutex
	idle []idleThread
}

type idleThread struct {
	key string
	t   *thread
}

const maxIdleThreads = 3

var filesAs fileThreads

func (p *fileThreads) run(id identity, job func()) error {
	key := id.key()
	p.mu.Lock()
	var t *thread
	for i := range p.idle {
		if p.idle[i].key == key {
			t = p.idle[i].t
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			break
		}
	}
	p.mu.Unlock()
	if t == nil {
		var err error
		if t, err = newThread(func() error { return becomeForFiles(id) }); err != nil {
			return err
		}
	}
	t.do(job)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, idleThread{key, t})
	if len(p.idle) > maxIdleThreads {
		p.idle[0].t.stop()
		p.idle = p.idle[1:]
	}
	return nil
}

func becomeForFiles(id identity) error {
	if !id.isAgent() {
		groups := make([]uint32, len(id.groups)+1)
		copy(groups, id.groups)
		_, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(id.groups)),
			uintptr(unsafe.Pointer(&groups[0])), 0)
		if e != 0 {
			return fmt.Errorf("setgroups: %w", e)
		}
		// Both return the previous id, and never an error: a second call tells.
		syscall.RawSyscall(syscall.SYS_SETFSGID, uintptr(id.gid), 0, 0)
		syscall.RawSyscall(syscall.SYS_SETFSUID, uintptr(id.uid), 0, 0)
		gid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSGID, ^uintptr(0), 0, 0)
		uid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0)
		if uint32(uid) != id.uid || uint32(gid) != id.gid {
			return fmt.Errorf("cannot act as %s: %w", id.name, syscall.EPERM)
		}
	}
	return setThreadCaps(0)
}
