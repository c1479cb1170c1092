// Killing one command's whole process tree, whatever its members did to leave it.
package main

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const markerName = "SANDBOXKIT_EXEC_ID"

type processStat struct {
	pid, ppid, session int
	start              uint64
	ticks              uint64 // of processor time, its own and that of the children it waited for
	pages              uint64 // resident
	threads            int
	ordinary           bool // wants a full share of a processor
	dead               bool
}

// parseStat reads /proc/PID/stat, whose second field is a name that may hold anything.
func parseStat(data []byte) (processStat, bool) {
	open, shut := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || shut < open {
		return processStat{}, false
	}
	f := strings.Fields(string(data[shut+1:]))
	if len(f) < 20 {
		return processStat{}, false
	}
	var s processStat
	s.pid, _ = strconv.Atoi(strings.TrimSpace(string(data[:open])))
	s.ppid, _ = strconv.Atoi(f[1])
	s.session, _ = strconv.Atoi(f[3])
	s.start, _ = strconv.ParseUint(f[19], 10, 64)
	for _, time := range f[11:15] {
		ticks, _ := strconv.ParseUint(time, 10, 64)
		s.ticks += ticks
	}
	s.threads, _ = strconv.Atoi(f[17])
	if len(f) > 38 {
		s.pages, _ = strconv.ParseUint(f[21], 10, 64)
		s.ordinary = isOrdinary(f[16], f[38])
	}
	// A zombie with threads left is a process whose first thread ended before the others.
	s.dead = f[0] == "X" || (f[0] == "Z" && f[17] == "1")
	return s, s.pid > 0
}

func readStat(pid int) (processStat, bool) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return processStat{}, false
	}
	return parseStat(data)
}

// processTable lists every living process but the agent.
func processTable() []processStat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var table []processStat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == 1 {
			continue
		}
		if s, ok := readStat(pid); ok && !s.dead {
			table = append(table, s)
		}
	}
	return table
}

// markersOf reads processes' markers as the user `id`, who may read those environments. One
// that is missing has no marker, or made its environment unreadable.
func markersOf(id identity, pids []int) map[int]string {
	markers := map[int]string{}
	_ = filesAs.run(id, func() {
		for _, pid := range pids {
			for _, entry := range bytes.Split(environOf(pid), []byte{0}) {
				if value, ok := bytes.CutPrefix(entry, []byte(markerName+"=")); ok {
					markers[pid] = string(value)
					break
				}
			}
		}
	})
	return markers
}

// environOf reads a process's environment. One in the middle of an exec has none for a moment,
// and no arguments either, as no other process: that is waited out.
func environOf(pid int) []byte {
	folder := "/proc/" + strconv.Itoa(pid)
	for range 100 {
		data, err := os.ReadFile(folder + "/environ")
		if err != nil || len(data) > 0 {
			return data
		}
		if arguments, err := os.ReadFile(folder + "/cmdline"); err != nil || len(arguments) > 0 {
			// The exec may have ended between the two.
			data, _ = os.ReadFile(folder + "/environ")
			return data
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

// uidOf is a process's real uid: without privileges it is its command's, for good.
func uidOf(pid int) uint32 {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if _, after, ok := bytes.Cut(data, []byte("\nUid:")); ok {
		if f := bytes.Fields(after); len(f) > 0 {
			uid, _ := strconv.ParseUint(string(f[0]), 10, 32)
			return uint32(uid)
		}
	}
	return ^uint32(0)
}

// startTime is the time that a process which starts now gets in its stat: clock ticks, of which
// Linux shows 100 a second everywhere, since the machine's boot.
func startTime() uint64 {
	const clockBoottime = 7
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime,
		uintptr(unsafe.Pointer(&now)), 0)
	return uint64(now.Nano()) / 10_000_000
}

// A tree is what one command's process tree is known by.
type tree struct {
	root   int
	start  uint64 // no member started before
	marker string
	id     identity
	// others tells whether a session belongs to another running command.
	others func(session int) bool
}

// members picks the command's processes from the table.
func (t *tree) members(table []processStat, known map[int]uint64) []processStat {
	in := map[int]bool{}
	for _, p := range table {
		if p.pid == t.root && p.start >= t.start || p.session == t.root ||
			known[p.pid] == p.start && p.start != 0 {
			in[p.pid] = true
		}
	}
	adopt := func() {
		for grew := true; grew; {
			grew = false
			for _, p := range table {
				if !in[p.pid] && in[p.ppid] {
					in[p.pid] = true
					grew = true
				}
			}
		}
	}
	adopt()
	var strangers []int
	for _, p := range table {
		if !in[p.pid] && p.ppid != 0 && p.start >= t.start {
			strangers = append(strangers, p.pid)
		}
	}
	if len(strangers) > 0 {
		markers := markersOf(t.id, strangers)
		for _, p := range table {
			if in[p.pid] || p.ppid == 0 || p.start < t.start {
				continue
			}
			marker, marked := markers[p.pid]
			orphan := !marked && p.ppid == 1 && !t.others(p.session) && uidOf(p.pid) == t.id.uid
			if marker == t.marker && marked || orphan {
				in[p.pid] = true
			}
		}
		adopt()
	}
	var out []processStat
	for _, p := range table {
		if in[p.pid] {
			out = append(out, p)
		}
	}
	return out
}

// kill returns when no member is left: it stops what it finds until a scan finds nothing new,
// so that nothing forks away, and then kills all of it.
func (t *tree) kill() {
	known := map[int]uint64{}
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if t.strike(known) {
			return
		}
		procs.reap()
		time.Sleep(pause)
	}
}

func (t *tree) strike(known map[int]uint64) (gone bool) {
	procs.mu.Lock()
	defer procs.mu.Unlock()
	for {
		table := processTable()
		members := t.members(table, known)
		if len(members) == 0 {
			return true
		}
		if len(members) == len(table) {
			// Atomic: nothing can fork out of it. All but the agent belongs to the command.
			_ = syscall.Kill(-1, syscall.SIGKILL)
			return false
		}
		fresh := 0
		for _, p := range members {
			if known[p.pid] != p.start {
				known[p.pid] = p.start
				fresh++
				_ = syscall.Kill(p.pid, syscall.SIGSTOP)
			}
		}
		if fresh == 0 {
			for _, p := range members {
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
			return false
		}
	}
}
