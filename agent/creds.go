// Privileges: the capabilities that PID 1 keeps, and the threads that access files as the sandbox's user.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
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

// lowerThreadCaps removes the calling thread's capabilities: permanently, or only until the thread
// changes its user.
func lowerThreadCaps(forGood bool) error {
	header := capHeader{version: capVersion3}
	var data [2]capData
	if !forGood {
		has, err := getCaps()
		if err != nil {
			return err
		}
		data = capSets(has)
		data[0].effective, data[1].effective = 0, 0
	}
	_, _, errno := syscall.RawSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	return nil
}

// dropPrivileges reduces the whole process to CAP_KILL, CAP_SETUID, CAP_SETGID and the capabilities in
// forCommands. It keeps none that the process did not have, and sets no_new_privs, so neither the process
// nor its children can gain more. It returns an error if a capability in forCommands is missing.
func dropPrivileges(forCommands uint64) error {
	if _, _, e := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no_new_privs: %w", e)
	}
	syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prCapAmbient, prAmbientClear, 0, 0, 0, 0)
	has, err := getCaps()
	if err != nil {
		return err
	}
	// The interpreter inherits these. Set them before the bounding set is reduced, because afterwards no
	// capability can be made inheritable.
	own := has & (1<<capKill | 1<<capSetuid | 1<<capSetgid)
	header := capHeader{version: capVersion3}
	data := capSets(has)
	data[0].inheritable = uint32(own)
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	for c := range capLast + 1 {
		if forCommands&(1<<c) != 0 {
			continue
		}
		// This fails without CAP_SETPCAP, and for a capability that the kernel does not have. Ignore
		// that, because the bounding set is only a second line of defence.
		syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prCapbsetDrop, uintptr(c), 0)
	}
	if missing := forCommands &^ has; missing != 0 {
		return fmt.Errorf("capabilities %#x are not there to give to commands", missing)
	}
	data = capSets(own | has&forCommands)
	data[0].inheritable = uint32(own)
	_, _, errno = syscall.AllThreadsSyscall(syscall.SYS_CAPSET,
		uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	if errno != 0 {
		return fmt.Errorf("capset: %w", errno)
	}
	// Keep commands that run as the agent's user from reading its memory and descriptors in /proc.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	return nil
}

// A thread runs functions, one at a time, on a dedicated operating system thread.
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

// fileThreads is a pool of threads that access files with the rights of one identity. The threads have
// no capabilities, so file calls cannot use PID 1's privileges.
//
// The pool never exceeds the reserved threads, because Go ends the process if it cannot start a thread,
// which a fork bomb can cause. Callers wait while all threads are busy.
type fileThreads struct {
	slots chan struct{}
	mu    sync.Mutex
	alive int
	idle  []idleThread
}

type idleThread struct {
	key string
	t   *thread
}

const (
	maxFileThreads = 12
	slotPatience   = 60 * time.Second
)

var filesAs = fileThreads{slots: make(chan struct{}, maxFileThreads)}

func (p *fileThreads) run(id identity, job func()) error {
	select {
	case p.slots <- struct{}{}:
	case <-time.After(slotPatience):
		return fmt.Errorf("%d file calls are under way, and none of them ends: %w",
			maxFileThreads, syscall.EAGAIN)
	}
	defer func() { <-p.slots }()
	t, err := p.take(id)
	if err != nil {
		return err
	}
	t.do(job)
	p.mu.Lock()
	p.idle = append(p.idle, idleThread{id.key(), t})
	p.mu.Unlock()
	return nil
}

// take returns a thread with this identity. The caller must hold a slot, which guarantees that a thread
// is idle or that one may be added.
func (p *fileThreads) take(id identity) (*thread, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := id.key()
	for i := len(p.idle) - 1; i >= 0; i-- {
		if p.idle[i].key == key {
			return p.remove(i), nil
		}
	}
	if len(p.idle) > 0 {
		// Change the identity of an idle thread, which costs less than a new thread.
		t := p.remove(0)
		var err error
		if t.do(func() { err = becomeForFiles(id) }); err == nil {
			return t, nil
		}
		t.stop()
		p.alive--
	}
	t, err := newThread(func() error { return becomeForFiles(id) })
	if err == nil {
		p.alive++
	}
	return t, err
}

func (p *fileThreads) remove(i int) *thread {
	t := p.idle[i].t
	p.idle = append(p.idle[:i], p.idle[i+1:]...)
	return t
}

// retire ends all idle threads of the pool.
func (p *fileThreads) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.idle {
		each.t.stop()
	}
	p.alive -= len(p.idle)
	p.idle = nil
}

// becomeForFiles gives the calling thread an identity's rights for file accesses. It can be called
// again on the same thread, for another identity.
func becomeForFiles(id identity) error {
	if os.Getuid() == 0 {
		// Undo an earlier change: with the effective uid 0 the thread gets its capabilities back.
		if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, 0); e != nil {
			return fmt.Errorf("cannot be the agent's user again: %w", e)
		}
	}
	if !id.isAgent() {
		if e := setGroups(id.groups); e != nil {
			return fmt.Errorf("setgroups: %w", e)
		}
		// Change this thread only, and its effective ids only: the real and saved ids decide who may
		// signal or trace a process. (gVisor has no fsuid and fsgid.)
		if e := becomeEffective(syscall.SYS_SETRESGID, syscall.SYS_GETRESGID, id.gid); e != nil {
			return fmt.Errorf("cannot act as %s: %w", id.name, e)
		}
		if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, id.uid); e != nil {
			return fmt.Errorf("cannot act as %s: %w", id.name, e)
		}
		// A change of ids sets the process's dumpable flag to fs.suid_dumpable, the administrator's
		// choice. Clear it again.
		syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	}
	return lowerThreadCaps(id.isAgent())
}

func setGroups(groups []uint32) error {
	list := append(slices.Clone(groups), 0) // for an address even if groups is empty
	_, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(&list[0])), 0)
	if e != 0 {
		return e
	}
	return nil
}

// becomeEffective sets the calling thread's effective id, and reads it back to verify the change.
func becomeEffective(set, get uintptr, id uint32) error {
	const keep = ^uintptr(0)
	if _, _, e := syscall.RawSyscall(set, keep, uintptr(id), keep); e != 0 {
		return e
	}
	var real, effective, saved uint32
	_, _, e := syscall.RawSyscall(get, uintptr(unsafe.Pointer(&real)),
		uintptr(unsafe.Pointer(&effective)), uintptr(unsafe.Pointer(&saved)))
	if e == 0 && effective != id {
		e = syscall.EPERM
	}
	if e != 0 {
		return e
	}
	return nil
}
