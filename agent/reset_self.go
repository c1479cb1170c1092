// Detection of changes to the agent by a job of its own user: limits, priorities, CPU affinity.
package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

const goarch = runtime.GOARCH

const (
	limitCount     = 16
	ioprioProcess  = 1
	schedAttrBytes = 56
)

type schedulerCalls struct{ getAttr, getAffinity, ioprioGet uintptr }

var scheduler = map[string]schedulerCalls{
	"amd64": {getAttr: 315, getAffinity: 204, ioprioGet: 252},
	"arm64": {getAttr: 275, getAffinity: 123, ioprioGet: 31},
}[goarch]

// A schedule is a thread's scheduling state: attributes, CPU affinity and I/O priority.
type schedule struct {
	attributes [schedAttrBytes]byte
	affinity   [128]byte
	ioprio     uintptr
}

func scheduleOf(thread int) (s schedule) {
	id := uintptr(thread)
	syscall.RawSyscall6(scheduler.getAttr, id, uintptr(unsafe.Pointer(&s.attributes[0])),
		schedAttrBytes, 0, 0, 0)
	syscall.RawSyscall(scheduler.getAffinity, id, uintptr(len(s.affinity)),
		uintptr(unsafe.Pointer(&s.affinity[0])))
	s.ioprio, _, _ = syscall.RawSyscall(scheduler.ioprioGet, ioprioProcess, id, 0)
	return s
}

// ownState is the agent's own state at the inventory. All its threads have the same schedule.
type ownState struct {
	limits [limitCount][2]uint64
	like   schedule
}

func limitsNow() (limits [limitCount][2]uint64) {
	for i := range limits {
		syscall.RawSyscall6(syscall.SYS_PRLIMIT64, 0, uintptr(i), 0,
			uintptr(unsafe.Pointer(&limits[i])), 0, 0)
	}
	return limits
}

func ownStateNow() ownState { return ownState{limitsNow(), scheduleOf(self)} }

// ownChanged returns a list of the changes of the agent's state. If each job has its own user, it first
// replaces the threads that acted as that user, because a job may have changed their scheduling.
func (j *jobs) ownChanged() []string {
	left := j.self.changed()
	if len(left) == 0 || j.uids == nil {
		return left
	}
	filesAs.retire()
	j.actor.thread.stop()
	var err error
	if j.actor, err = newActor(); err != nil {
		return []string{err.Error()}
	}
	if left = until(j.self.changed); len(left) == 0 {
		reserveThreads()
	}
	return left
}

func (o *ownState) changed() (left []string) {
	if limitsNow() != o.limits {
		left = append(left, "a limit of the agent")
	}
	dir, err := os.Open("/proc/self/task")
	if err != nil {
		return append(left, err.Error())
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		thread, _ := strconv.Atoi(name)
		if s := scheduleOf(thread); s != o.like {
			if _, err := os.Stat("/proc/self/task/" + name); err == nil {
				left = append(left, fmt.Sprintf("how the agent's thread %d is scheduled", thread))
			}
		}
	}
	return left
}
