// Processes: starting them with no privileges, and reaping everything that ends in the sandbox.
package main

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// children are the processes that the agent started. Its lock is held while one is started,
// while ended ones are reaped and while the process table is scanned for a kill, so that none
// of the three sees another half done.
type children struct {
	mu           sync.Mutex
	exits        map[int]chan int
	unprivileged *thread // has what commands may have: nothing, as a rule
	setuid       *thread
}

var procs = children{exits: map[int]chan int{}}

const wallOption = 0x40000000

func (c *children) start(caps uint64) error {
	var err error
	if c.unprivileged, err = newThread(func() error { return setThreadCaps(caps) }); err != nil {
		return err
	}
	// Becoming another user needs the capability until just before exec. Linux takes it
	// away at the change from root, and at the exec of anyone but root.
	if c.setuid, err = newThread(func() error { return nil }); err != nil {
		return err
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	return nil
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|wallOption, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if exit, ok := c.exits[pid]; ok {
			delete(c.exits, pid)
			code := status.ExitStatus()
			if status.Signaled() {
				code = 128 + int(status.Signal())
			}
			exit <- code
		}
	}
}

type launch struct {
	path string
	argv []string
	env  []string
	cwd  string
	id   identity
	fds  [3]uintptr
	tty  bool
}

// spawn starts a process; its exit status will be sent on the channel.
func (c *children) spawn(l launch) (pid int, exit chan int, err error) {
	attr := &syscall.ProcAttr{
		Dir:   l.cwd,
		Env:   l.env,
		Files: l.fds[:],
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: l.tty},
	}
	by := c.unprivileged
	if !l.id.isAgent() {
		by = c.setuid
		attr.Sys.Credential = &syscall.Credential{Uid: l.id.uid, Gid: l.id.gid, Groups: l.id.groups}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	by.do(func() { pid, err = syscall.ForkExec(l.path, l.argv, attr) })
	if err != nil {
		return 0, nil, err
	}
	exit = make(chan int, 1)
	c.exits[pid] = exit
	return pid, exit, nil
}
