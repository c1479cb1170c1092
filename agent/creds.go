// Privileges: what PID 1 keeps, and the threads that touch files as the sandbox's user.
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

// lowerThreadCaps leaves the calling thread without capabilities: for good, or until it becomes
// another user.
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

// dropPrivileges makes the whole process keep only CAP_KILL, CAP_SETUID, CAP_SETGID and those for
// its commands of what it has, and forbids it and all it starts to gain more.
func dropPrivileges(forCommands uint64) error {
	if _, _, e := syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("no_new_privs: %w", e)
	}
	syscall.AllThreadsSyscall6(syscall.SYS_PRCTL, prCapAmbient, prAmbientClear, 0, 0, 0, 0)
	has, err := getCaps()
	if err != nil {
		return err
	}
	// The interpreter inherits them. Without a bounding set nothing more can be made inheritable.
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
		// Needs CAP_SETPCAP, and the capability to exist. It is a second line of defence only.
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
//
// There are never more than were reserved: Go ends the process if it cannot start another, and
// a fork bomb sees to that. Who finds all of them busy waits.
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

// take is called by who has a slot: if no thread may be added, one is idle.
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
		// It becomes another one: a new thread costs more.
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

// retire ends the threads that are idle.
func (p *fileThreads) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, each := range p.idle {
		each.t.stop()
	}
	p.alive -= len(p.idle)
	p.idle = nil
}

// becomeForFiles can be called again on the same thread, for another identity.
func becomeForFiles(id identity) error {
	if os.Getuid() == 0 {
		// From what it was before; with the effective uid its capabilities come back.
		if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, 0); e != nil {
			return fmt.Errorf("cannot be the agent's user again: %w", e)
		}
	}
	if !id.isAgent() {
		if e := setGroups(id.groups); e != nil {
			return fmt.Errorf("setgroups: %w", e)
		}
		// Of this thread alone, and its effective ids only: whom Linux lets signal or trace a process
		// is decided by the other ones. (The ids for files alone are not everywhere: not in gVisor.)
		if e := becomeEffective(syscall.SYS_SETRESGID, syscall.SYS_GETRESGID, id.gid); e != nil {
			return fmt.Errorf("cannot act as %s: %w", id.name, e)
		}
		if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, id.uid); e != nil {
			return fmt.Errorf("cannot act as %s: %w", id.name, e)
		}
		// A change of them makes the process as dumpable as the administrator lets set-user-id
		// programs be.
		syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	}
	return lowerThreadCaps(id.isAgent())
}

func setGroups(groups []uint32) error {
	list := append(slices.Clone(groups), 0) // so that there is an address
	_, _, e := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(&list[0])), 0)
	if e != 0 {
		return e
	}
	return nil
}

// becomeEffective sets the calling thread's effective id, and reads it back.
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
