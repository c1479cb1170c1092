// The pause: every process of the sandbox stands still, except the agent and its reapers.
//
// The agent itself runs on, so that the sandbox still ends with its owner, its lease or its lifetime, and
// so that commands can be killed.
package main

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"syscall"
	"time"
)

// pausePatience is how long processes may take to stop; each needs the CPU for that.
const pausePatience = 10 * time.Second

// How a client asks for a pause; anything else ends it.
const (
	pauseOn = 1
	// pauseWhileConnected is a pause that also ends with the client's connection.
	pauseWhileConnected = 2
)

// errPaused refuses a request in a paused sandbox. The client knows the number.
var errPaused = fmt.Errorf("the sandbox is paused: %w", syscall.EHOSTDOWN)

// A pause is the set of the processes that the agent has stopped. children.mu guards it.
type pause struct {
	on bool
	// stopped maps pids to start times. It lacks processes that had stopped before.
	stopped map[int]uint64
}

func (c *children) isPaused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pause.on
}

// stopAll stops all processes and returns when none of them runs. If that fails, all continue. Idempotent.
func (c *children) stopAll() error {
	c.mu.Lock()
	c.pause.on = true // from here on no command starts
	if c.pause.stopped == nil {
		c.pause.stopped = map[int]uint64{}
	}
	c.mu.Unlock()
	end := time.Now().Add(pausePatience)
	for wait := 100 * time.Microsecond; ; wait = min(2*wait, 10*time.Millisecond) {
		running, err := c.stopOnce()
		if err == nil && running == 0 {
			return nil
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("process %d does not stop: %w", running, syscall.ETIMEDOUT)
		}
		if err != nil {
			c.continueAll()
			return err
		}
		time.Sleep(wait)
	}
}

// pause stops all processes, or lets them go on.
func (c *conn) pause(how byte) error {
	c.mu.Lock()
	c.pauses = how == pauseWhileConnected
	c.mu.Unlock()
	if how != pauseOn && how != pauseWhileConnected {
		procs.continueAll()
		return nil
	}
	err := procs.stopAll()
	c.mu.Lock()
	ended := c.closed && c.pauses
	if err != nil {
		c.pauses = false // another client may pause before this connection ends
	}
	c.mu.Unlock()
	if ended { // perhaps before the pause began
		procs.continueAll()
	}
	return err
}

// stopOnce stops every process that runs. It returns the pid of one that did, or 0.
func (c *children) stopOnce() (running int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.pause.on {
		return 0, nil // another client has resumed it meanwhile
	}
	for _, p := range processTable(c.byPid) {
		if self == 1 && p.ppid == 0 {
			continue // it entered from outside, and may carry a client's connection
		}
		ours := c.pause.stopped[p.pid] == p.start
		if isStill(p.pid, ours) {
			continue
		}
		running = p.pid
		c.pause.stopped[p.pid] = p.start
		if err := syscall.Kill(p.pid, syscall.SIGSTOP); err != nil && err != syscall.ESRCH {
			return 0, fmt.Errorf("process %d cannot be stopped: %w", p.pid, err)
		}
	}
	return running, nil
}

// isStill reports whether no thread of a process runs. A thread that the kernel blocks does not count as
// running once its process was sent the signal: it stops before it runs again.
func isStill(pid int, signalled bool) bool {
	folder := path.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := namesIn(folder)
	if err != nil {
		return true // it has ended
	}
	for _, thread := range threads {
		data, err := os.ReadFile(path.Join(folder, thread, "stat"))
		if err != nil {
			continue
		}
		switch s, _ := parseStat(data); s.state {
		case 'T', 't', 'Z', 'X', 0:
		case 'D':
			if !signalled {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// continueAll continues the processes that stopAll has stopped. Idempotent.
func (c *children) continueAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for pid, start := range c.pause.stopped {
		if s, ok := readStat(pid); ok && s.start == start {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	c.pause = pause{}
}
