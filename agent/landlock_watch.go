// The memory and the number of processes of a sandbox with Landlock, where no control group limits them.
package main

import (
	"bytes"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const watchEvery = 100 * time.Millisecond

// The reasons for the sandbox's end that the owner knows.
const outOfMemory, tooMany = "out of memory", "too many processes"

// watch ends the sandbox when its processes have too much memory together, or are too many.
func (c *confinement) watch(b *sandbox) {
	for range time.Tick(watchEvery) {
		tops := slices.Collect(maps.Keys(procs.living()))
		tree := descendants(append(tops, int(forks.pid.Load())))
		if c.Processes > 0 && len(tree) > c.Processes {
			b.end(tooMany)
		}
		resident := uint64(0)
		for _, pid := range tree {
			resident += residentOf(pid)
		}
		if c.Memory > 0 && resident > c.Memory && c.shared(b.as(), tree) > c.Memory {
			b.end(outOfMemory)
		}
	}
}

// shared returns the memory of processes, in which a page that several of them share counts once.
func (c *confinement) shared(id identity, tree []int) (total uint64) {
	_ = filesAs.run(id, func() {
		for _, pid := range tree {
			data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
			_, after, known := bytes.Cut(data, []byte("\nPss:"))
			if f := bytes.Fields(after); err == nil && known && len(f) > 0 {
				kib, _ := strconv.ParseUint(string(f[0]), 10, 64)
				total += kib << 10
			} else {
				total += residentOf(pid) // it hides the number
			}
		}
	})
	return total
}

// descendants returns the pids of all processes below some. It reads nothing of other processes of the machine.
func descendants(todo []int) (found []int) {
	for len(todo) > 0 {
		folder := "/proc/" + strconv.Itoa(todo[0]) + "/task/"
		todo = todo[1:]
		threads, _ := os.ReadDir(folder)
		for _, thread := range threads {
			data, _ := os.ReadFile(folder + thread.Name() + "/children")
			for _, each := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(each); err == nil {
					todo, found = append(todo, pid), append(found, pid)
				}
			}
		}
	}
	return found
}
