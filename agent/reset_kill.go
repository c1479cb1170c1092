// The processes of a job: all except the agent, its reapers, the interpreter, and processes that entered
// the sandbox from outside.
package main

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"syscall"
)

// strangers lists the processes that a job has left, including zombies, because their names can carry
// data. outside reports whether there are processes that entered from outside. Hold children.mu.
func (b *sandbox) strangers(spared map[int]bool) (found []processStat, outside bool) {
	if self != 1 && b.jobs.uids == nil {
		for _, p := range processTable(procs.byPid) {
			if !spared[p.pid] {
				found = append(found, p)
			}
		}
		return found, true
	}
	var others []int
	names, err := namesIn("/proc")
	if err != nil {
		return []processStat{{pid: self}}, true
	}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err == nil && pid != self && procs.byPid[pid] == nil && !spared[pid] {
			others = append(others, pid)
		}
	}
	if self != 1 {
		mine := b.ofJob(others)
		for _, pid := range mine {
			found = append(found, processStat{pid: pid})
		}
		return found, len(mine) < len(others)
	}
	for _, pid := range others {
		s, ok := readStat(pid)
		switch {
		case !ok && syscall.Kill(pid, 0) == syscall.ESRCH: // it has ended
		case ok && s.ppid == 0 && len(b.ofJob([]int{pid})) == 0:
			outside = true // a process that entered from outside has no parent in this namespace
		default:
			s.pid = pid
			found = append(found, s)
		}
	}
	return found, outside
}

func namesIn(folder string) ([]string, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// ofJob picks the processes that the job's user may signal. It returns none if jobs have no user of
// their own.
func (b *sandbox) ofJob(pids []int) (mine []int) {
	if b.jobs.uids != nil && len(pids) > 0 {
		b.jobs.actor.as(b.as(), func() []string {
			for _, pid := range pids {
				if syscall.Kill(pid, 0) == nil {
					mine = append(mine, pid)
				}
			}
			return nil
		})
	}
	return mine
}

// processesLeft names the processes and zombies that a job has left.
func (b *sandbox) processesLeft() []string {
	return until(func() (left []string) {
		procs.reap()
		spared := forks.pids()
		procs.mu.Lock()
		found, _ := b.strangers(spared)
		for _, r := range procs.byPid {
			if !spared[r.main] {
				left = append(left, fmt.Sprintf("process %d, the reaper of a command", r.pid))
			}
		}
		procs.mu.Unlock()
		for _, p := range found {
			left = append(left, "process "+described(p.pid))
		}
		return left
	})
}

func described(pid int) string {
	name, _ := os.ReadFile(path.Join("/proc", strconv.Itoa(pid), "comm"))
	return fmt.Sprintf("%d, %q", pid, name)
}

// endProcesses kills the job's processes and waits until they are gone. It returns those that are left.
func (b *sandbox) endProcesses() []string {
	known := map[int]uint64{}
	return until(func() (left []string) {
		if b.jobs.uids != nil {
			b.jobs.actor.as(b.as(), func() []string {
				// One signal to all of the user's processes is atomic: no fork can escape it.
				_ = syscall.Kill(-1, syscall.SIGKILL)
				return nil
			})
		}
		procs.reap()
		spared := forks.pids()
		procs.mu.Lock()
		defer procs.mu.Unlock()
		found, outside := b.strangers(spared)
		if b.jobs.uids == nil {
			strike(found, known, outside || len(spared) > 0)
		}
		for _, p := range found {
			left = append(left, "process "+described(p.pid))
		}
		for _, r := range procs.byPid {
			if !spared[r.main] {
				left = append(left, fmt.Sprintf("process %d, the reaper of a command", r.pid))
			}
		}
		return left
	})
}

// strike kills the processes found. As long as some are new, it stops them instead, so that none can
// escape by a fork. Hold children.mu.
func strike(found []processStat, known map[int]uint64, others bool) {
	fresh, alive := 0, 0
	for _, p := range found {
		if p.dead {
			continue
		}
		alive++
		if before, seen := known[p.pid]; !seen || before != p.start {
			known[p.pid] = p.start
			fresh++
		}
	}
	switch {
	case alive > 0 && !others:
		_ = syscall.Kill(-1, syscall.SIGKILL)
	case fresh > 0:
		for _, p := range found {
			_ = syscall.Kill(p.pid, syscall.SIGSTOP)
		}
	default:
		for _, p := range found {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
	}
}
