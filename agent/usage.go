// A sandbox's usage: processes, memory, CPU time, and time spent waiting for a CPU.
package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// nanosPerTick is the unit of times in /proc/PID/stat, which is 10 ms on every Linux.
	nanosPerTick = 10_000_000
	unknown      = ^uint64(0)
	schedOther   = "0"
	schedBatch   = "3"
)

// stats returns the number of living processes, their resident memory in bytes, the CPU time of all
// processes except the agent, the CPU time of the agent, whether the CPU time is exact, and the time spent
// waiting for a CPU. Times are in nanoseconds. The number of processes includes the agent, but not its
// reapers, which share the agent's memory.
func stats() []byte {
	reaped, own := processorTimes(syscall.RUSAGE_CHILDREN), processorTimes(syscall.RUSAGE_SELF)
	reapers := procs.living()
	table := processTable(reapers)
	processes, resident, used := 1, residentOf(self), reaped
	for pid := range reapers {
		// A reaper's ticks include the children that it has waited for.
		if p, ok := readStat(pid); ok && !p.dead {
			used += p.ticks * nanosPerTick
		}
	}
	for _, p := range table {
		processes++
		resident += p.pages * uint64(os.Getpagesize())
		used += p.ticks * nanosPerTick
	}
	starved := waits.sample(table, time.Now())
	exact := byte(0)
	// If the agent is not the first process, its control group counts other programs, too.
	if total, ok := ownGroup().processor.read(); ok && self == 1 {
		used, exact = total-min(own, total), 1
	}
	out := binary.BigEndian.AppendUint32(nil, uint32(processes))
	for _, value := range []uint64{resident, used, own} {
		out = binary.BigEndian.AppendUint64(out, value)
	}
	return binary.BigEndian.AppendUint64(append(out, exact), starved)
}

func processorTimes(who int) uint64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(who, &used)
	return uint64(used.Utime.Nano() + used.Stime.Nano())
}

type threadKey struct {
	id    int
	start uint64
}

// waitTimes adds up how long the sandbox waited for a CPU. Between two samples it counts the wait of the
// thread that waited longest. It counts too little if threads start and end between samples. It exceeds
// the CPU time of others by at most the sandbox's own CPU time.
type waitTimes struct {
	mu    sync.Mutex
	last  time.Time
	seen  map[threadKey]uint64
	total uint64
}

var waits = waitTimes{last: time.Now()}

func (w *waitTimes) sample(table []processStat, now time.Time) uint64 {
	if _, ok := waitOf("/proc/self"); !ok {
		return unknown
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	found := map[threadKey]uint64{}
	for _, p := range table {
		folder := "/proc/" + strconv.Itoa(p.pid)
		for _, thread := range threadsOf(p, folder) {
			of := folder
			if thread.pid != p.pid {
				of += "/task/" + strconv.Itoa(thread.pid)
			}
			if wait, ok := waitOf(of); ok && thread.ordinary {
				found[threadKey{thread.pid, thread.start}] = wait
			}
		}
	}
	w.add(found, now)
	return w.total
}

// threadsOf returns a process's threads, each described like a process.
func threadsOf(p processStat, folder string) []processStat {
	threads := []processStat{p}
	if p.threads < 2 {
		return threads
	}
	names, _ := os.ReadDir(folder + "/task")
	for _, name := range names {
		if name.Name() == strconv.Itoa(p.pid) {
			continue
		}
		if data, err := os.ReadFile(folder + "/task/" + name.Name() + "/stat"); err == nil {
			if thread, ok := parseStat(data); ok {
				threads = append(threads, thread)
			}
		}
	}
	return threads
}

func (w *waitTimes) add(found map[threadKey]uint64, now time.Time) {
	most := uint64(0)
	for key, wait := range found {
		// A wait that is shorter than before means that the thread id was reused within one tick.
		if before := w.seen[key]; wait > before {
			most = max(most, wait-before)
		}
	}
	w.total += min(most, uint64(max(now.Sub(w.last), 0)))
	w.seen, w.last = found, now
}

// waitOf returns how many nanoseconds a thread was ready to run but did not run.
func waitOf(folder string) (nanos uint64, ok bool) {
	data, err := os.ReadFile(folder + "/schedstat")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(data)
	if len(f) != 3 {
		return 0, false
	}
	nanos, err = strconv.ParseUint(string(f[1]), 10, 64)
	return nanos, err == nil
}

// ownNice is the nice value with which the sandbox was started; it is not 0 if the owner is niced.
var ownNice = func() int {
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - priority // the system call returns 20 - nice to avoid negative numbers
}()

// isOrdinary reports whether a thread wants its full share of a CPU. A thread that raised its nice value
// above the sandbox's, or made itself idle, waits by its own choice. Without privileges it cannot undo that.
func isOrdinary(nice, policy string) bool {
	n, err := strconv.Atoi(nice)
	return err == nil && n <= ownNice && (policy == schedOther || policy == schedBatch)
}
