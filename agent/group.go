// Kernel counters of the whole sandbox, read from the container's control group if it is visible.
package main

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// A counter is one number in a file of a control group. The file is kept open.
type counter struct {
	path   string
	prefix string // of the line with the number; empty if the file is only a number
	scale  uint64 // factor to nanoseconds, or 1
	fd     int
}

// A group holds a control group's counters. A counter without a path is not visible in the container.
type group struct{ processor, throttled, oomKills counter }

// ownGroup finds the visible counters of the container. An unprivileged command can neither write to
// them nor mount other files over them.
var ownGroup = sync.OnceValue(func() *group {
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	groups, _ := os.ReadFile("/proc/self/cgroup")
	g := findGroup(string(mounts), string(groups))
	for _, c := range []*counter{&g.processor, &g.throttled, &g.oomKills} {
		c.open()
	}
	return &g
})

func findGroup(mounts, groups string) (g group) {
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
		root, at := mount[3], mount[4]
		switch kind[0] {
		case "cgroup":
			for _, controller := range strings.Split(kind[2], ",") {
				if path, is := own[controller]; !is || path != root {
					continue
				}
				switch controller {
				case "cpuacct":
					g.processor = counter{path: at + "/cpuacct.usage", scale: 1}
				case "cpu":
					g.throttled = counter{path: at + "/cpu.stat", prefix: "throttled_time ", scale: 1}
				case "memory":
					g.oomKills = counter{path: at + "/memory.oom_control", prefix: "oom_kill ", scale: 1}
				}
			}
		case "cgroup2":
			if path, is := own[""]; !is || path != root {
				continue
			}
			// A controller with its own version 1 hierarchy counts there, not in this one.
			if _, split := own["cpuacct"]; !split {
				g.processor = counter{path: at + "/cpu.stat", prefix: "usage_usec ", scale: 1000}
			}
			if _, split := own["cpu"]; !split {
				g.throttled = counter{path: at + "/cpu.stat", prefix: "throttled_usec ", scale: 1000}
			}
			if _, split := own["memory"]; !split {
				g.oomKills = counter{path: at + "/memory.events", prefix: "oom_kill ", scale: 1}
			}
		}
	}
	return g
}

func (c *counter) open() {
	c.fd = -1
	if c.path != "" {
		if fd, err := syscall.Open(c.path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
			c.fd = fd
		}
	}
}

func (c *counter) read() (value uint64, ok bool) {
	if c.fd < 0 {
		return 0, false
	}
	var buf [1024]byte
	n, err := syscall.Pread(c.fd, buf[:], 0)
	if err != nil {
		return 0, false
	}
	for _, line := range strings.Split(string(buf[:n]), "\n") {
		if number, found := strings.CutPrefix(line, c.prefix); found {
			value, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
			return value * c.scale, err == nil
		}
	}
	return 0, false
}

// since returns the counter's growth from an earlier value, or all ones if that is unknown.
func (c *counter) since(before uint64, known bool) uint64 {
	now, ok := c.read()
	if !ok || !known || now < before {
		return unknown
	}
	return now - before
}

// A moment holds the values of two of a group's counters at a command's start.
type moment struct {
	throttled, oomKills           uint64
	knowsThrottled, knowsOOMKills bool
}

func (g *group) now() (m moment) {
	m.throttled, m.knowsThrottled = g.throttled.read()
	m.oomKills, m.knowsOOMKills = g.oomKills.read()
	return m
}
