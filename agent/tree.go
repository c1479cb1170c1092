// Killing of one command's whole process tree, including members that tried to leave it.
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

type processStat struct {
	pid, ppid, session int
	start              uint64
	ticks              uint64 // CPU time of the process and of children that it waited for
	pages              uint64 // resident
	threads            int
	state              byte   // R, S, D, T and so on
	ordinary           bool // wants a full share of a CPU, see isOrdinary
	dead               bool
}

// parseStat parses /proc/PID/stat. Its second field is a name, which may contain any bytes.
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
	s.state = f[0][0]
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
	// A zombie that has threads left still runs: only its first thread has ended.
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

// self is the agent's pid. It is 1 unless the sandbox has another first process.
var self = os.Getpid()

// processTable lists every living process of the sandbox except the agent and its reapers. If the agent is
// the first process, these are all processes; otherwise they are its descendants.
func processTable(reapers map[int]*reaper) []processStat {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var table []processStat
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self || reapers[pid] != nil {
			continue
		}
		if s, ok := readStat(pid); ok && !s.dead {
			table = append(table, s)
		}
	}
	if self != 1 {
		table = below(self, table, reapers)
	}
	return table
}

// below picks the descendants of top and of its reapers. top is a subreaper, so orphans of its descendants
// stay below it.
func below(top int, table []processStat, reapers map[int]*reaper) []processStat {
	parents := make(map[int]int, len(table))
	for _, p := range table {
		parents[p.pid] = p.ppid
	}
	var out []processStat
	for _, p := range table {
		at := p.ppid
		// The table is not atomic: a reused pid may make a cycle.
		for range table {
			above, known := parents[at]
			if !known {
				break
			}
			at = above
		}
		if at == top || reapers[at] != nil {
			out = append(out, p)
		}
	}
	return out
}

// uidOf returns a process's real uid. Without privileges a process cannot change it, so it is the uid of
// its command.
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

// startTime returns the start time that /proc/PID/stat would show for a process that starts now: clock
// ticks of 10 ms, which is the unit on every Linux, since the machine's boot.
func startTime() uint64 {
	const clockBoottime = 7
	var now syscall.Timespec
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime,
		uintptr(unsafe.Pointer(&now)), 0)
	return uint64(now.Nano()) / 10_000_000
}

// A tree is the set of one command's processes: all descendants of its reaper. If the reaper was killed, or
// the kernel has no subreapers, the tree includes every orphan of the command's user that is not older than
// the command and not below another command's reaper or main process, even if its command is uncertain.
type tree struct {
	reaper *reaper
	start  uint64 // no member started before this time
	uid    uint32
	uidOf  func(pid int) uint32
}

func (t *tree) ended() <-chan ending { return t.reaper.exit }

func (t *tree) release() {}

// members selects the command's processes from the table. ours are the living reapers, and mains the main
// processes of other commands.
func (t *tree) members(table []processStat, known map[int]uint64, ours map[int]*reaper,
	mains map[int]bool) []processStat {
	return pick(table, func(p, above *processStat, mine func(*processStat) bool) bool {
		switch r := ours[p.ppid]; {
		case p.pid == t.reaper.main && !t.reaper.exited, known[p.pid] == p.start && p.start != 0,
			r == t.reaper && r != nil:
			return true
		case r != nil, mains[p.pid], p.ppid == 0, forks.is(p.pid):
			return false
		case above != nil:
			return mine(above)
		}
		return p.ppid == self && t.reaper.lost && p.start >= t.start && t.uidOf(p.pid) == t.uid
	})
}

// pick returns the processes for which isMine is true. isMine receives a process, its parent, which is nil
// if the table lacks it, and a function that reports whether the parent was picked.
func pick(table []processStat,
	isMine func(p, above *processStat, mine func(*processStat) bool) bool) []processStat {
	byPid := make(map[int]*processStat, len(table))
	for i := range table {
		byPid[table[i].pid] = &table[i]
	}
	found := map[int]bool{}
	var mine func(p *processStat) bool
	mine = func(p *processStat) bool {
		if _, asked := found[p.pid]; !asked {
			found[p.pid] = false // the table is not atomic: a reused pid may make a cycle
			found[p.pid] = isMine(p, byPid[p.ppid], mine)
		}
		return found[p.pid]
	}
	var out []processStat
	for i := range table {
		if mine(&table[i]) {
			out = append(out, table[i])
		}
	}
	return out
}

func (t *tree) kill() { strikeUntil(t.strike) }

// strikeUntil calls strike until no member is left. A strike stops members until a scan finds no new one,
// so that none can escape by a fork, and then kills all of them.
func strikeUntil(strike func(known map[int]uint64) (gone bool)) {
	known := map[int]uint64{}
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		if strike(known) {
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
		if t.reaper.gone && !t.reaper.lost {
			return true // the reaper exits once it has no children, which is more reliable than a scan
		}
		table := processTable(procs.byPid)
		mains, alone := procs.others(t.reaper)
		members := t.members(table, known, procs.byPid, mains)
		if len(members) == 0 {
			return t.reaper.gone && t.reaper.exited
		}
		if killsAll() && alone && len(members) == len(table) {
			// Every other process is the command's. A signal to all is atomic, so no fork can escape it.
			_ = syscall.Kill(-1, syscall.SIGKILL)
			return false
		}
		if !stopNew(members, known) {
			killEach(members)
			return false
		}
	}
}

// stopNew stops the members that are not known yet, and reports whether there were any.
func stopNew(members []processStat, known map[int]uint64) (any bool) {
	for _, p := range members {
		if known[p.pid] != p.start {
			known[p.pid] = p.start
			any = true
			_ = syscall.Kill(p.pid, syscall.SIGSTOP)
		}
	}
	return any
}

func killEach(members []processStat) {
	for _, p := range members {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
}
