// What a sandbox uses: processes, memory, processor time, and its wait for a processor.
package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// Linux shows times in /proc/PID/stat in ticks, of which there are 100 a second everywhere.
	nanosPerTick = 10_000_000
	unknown      = ^uint64(0)
	schedOther   = "0"
	schedBatch   = "3"
)

// stats counts the living processes, the agent included, their resident memory in bytes, the
// processor time of all but the agent and that of the agent, and the time starved of a processor.
func stats() []byte {
	reaped, own := processorTimes(syscall.RUSAGE_CHILDREN), processorTimes(syscall.RUSAGE_SELF)
	table := processTable()
	processes, resident, used := 1, residentOf(1), reaped
	for _, p := range table {
		processes++
		resident += p.pages * uint64(os.Getpagesize())
		used += p.ticks * nanosPerTick
	}
	starved := waits.sample(table, time.Now())
	exact := byte(0)
	if total, ok := groupCounter().read(); ok {
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

// A counter is where the sandbox's control group counts the processor time of all of it, also of
// what nobody waited for.
type counter struct {
	path   string
	prefix string // of the line with microseconds; empty for a file that is one number of nanoseconds
}

// groupCounter finds the counter that the container shows. An unprivileged command can neither
// mount another there nor write to it.
var groupCounter = sync.OnceValue(func() counter {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	groups, _ := os.ReadFile("/proc/self/cgroup")
	return findCounter(string(mounts), string(groups))
})

func findCounter(mounts, groups string) counter {
	own := map[string]string{}
	for _, line := range strings.Split(groups, "\n") {
		if f := strings.SplitN(line, ":", 3); len(f) == 3 {
			for _, controller := range strings.Split(f[1], ",") {
				own[controller] = f[2]
			}
		}
	}
	for _, line := range strings.Split(mounts, "\n") {
		before, after, _ := strings.Cut(line, " - ")
		mount, kind := strings.Fields(before), strings.Fields(after)
		if len(mount) < 5 || len(kind) < 3 {
			continue
		}
		controllers := "," + kind[2] + ","
		switch {
		case kind[0] == "cgroup" && strings.Contains(controllers, ",cpuacct,") && own["cpuacct"] == mount[3]:
			return counter{path: mount[4] + "/cpuacct.usage"}
		case kind[0] == "cgroup2" && own[""] == mount[3]:
			if _, split := own["cpuacct"]; !split {
				return counter{path: mount[4] + "/cpu.stat", prefix: "usage_usec "}
			}
		}
	}
	return counter{}
}

func (c counter) read() (nanos uint64, ok bool) {
	data, err := os.ReadFile(c.path)
	if err != nil {
		return 0, false
	}
	for _, line := range strings.Split(string(data), "\n") {
		if number, found := strings.CutPrefix(line, c.prefix); found {
			n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			if c.prefix != "" {
				n *= 1000
			}
			return n, err == nil
		}
	}
	return 0, false
}

type threadKey struct {
	id    int
	start uint64
}

// waitTimes adds up how long the sandbox was starved of a processor: from one sample to the next
// as long as the thread that waited longest. It is too little where threads come and go between
// samples, and more than what others took by no more than the processor time of the sandbox.
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

// threadsOf describes each of a process's threads as if it were a process.
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
		// Less than before: the number was used again in the same tick.
		if before := w.seen[key]; wait > before {
			most = max(most, wait-before)
		}
	}
	w.total += min(most, uint64(max(now.Sub(w.last), 0)))
	w.seen, w.last = found, now
}

// waitOf reads how many nanoseconds a thread was ready to run and did not.
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

// ownNice is what the sandbox was started with: its owner may run at a lower priority itself.
var ownNice = func() int {
	priority, err := syscall.Getpriority(syscall.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - priority // the system call's own way to avoid negative numbers
}()

// isOrdinary tells whether a thread wants its full share: one that made itself nicer than the sandbox
// is, or idle, waits by its own choice, and without privileges it cannot take that back.
func isOrdinary(nice, policy string) bool {
	n, err := strconv.Atoi(nice)
	return err == nil && n <= ownNice && (policy == schedOther || policy == schedBatch)
}
