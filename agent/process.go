// Processes: start of commands without privileges, and reaping of every process that ends in the sandbox.
package main

import (
	"encoding/binary"
	"io"
	"maps"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"sandboxkit/agent/early"
)

// children are the agent's child processes: the reapers that it started, and orphans of reapers that
// were killed. The lock is held while a reaper is started, while ended processes are reaped and while
// the process table is scanned for a kill, so that these three never overlap.
type children struct {
	mu       sync.Mutex
	last     uint64
	byID     map[uint64]*reaper
	byPid    map[int]*reaper
	orphaned map[int]*reaper // by the pid of the main process, which outlived its reaper
	idle     []*reaperState
	wake     int
	caps     uint64 // capabilities of commands of the agent's own user: usually none
	pause    pause
}

var procs = children{
	byID:     map[uint64]*reaper{},
	byPid:    map[int]*reaper{},
	orphaned: map[int]*reaper{},
}

const wallOption = 0x40000000

func (c *children) start(caps uint64) error {
	c.caps = caps
	told, wake, err := newPipe(true)
	if err != nil {
		return err
	}
	c.wake = wake
	go c.listen(told)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		for range ended {
			c.reap()
		}
	}()
	return nil
}

// listen reads from a pipe the ids of reapers whose state has changed, and calls look for each. The pipe
// carries only ids; the states are in shared memory that only the reapers write.
func (c *children) listen(told io.Reader) {
	var ids [512]byte
	for {
		n, err := told.Read(ids[:])
		if err != nil {
			return
		}
		c.mu.Lock()
		for at := 0; at+8 <= n; at += 8 {
			if r := c.byID[binary.NativeEndian.Uint64(ids[at:])]; r != nil {
				r.look()
			}
		}
		c.mu.Unlock()
	}
}

func (c *children) reap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		var status syscall.WaitStatus
		var used syscall.Rusage
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|syscall.WUNTRACED|wallOption, &used)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		r := c.byPid[pid]
		switch {
		case status.Stopped():
			if r != nil || forks.is(pid) && !c.pause.on {
				// A command of the same user stopped the reaper. Continue it, so that its exit is not missed.
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		case r != nil:
			c.reaperEnded(r, status.Exited())
		case forks.is(pid):
			forks.killed.Store(status.Signaled() && status.Signal() == syscall.SIGKILL)
			forks.gone.Store(true) // the end of its socket wakes the waiters
		default:
			c.orphanEnded(pid, endingOf(status, &used))
		}
	}
}

// reaperEnded handles a reaper's exit. Hold the lock. A reaper that exited by itself has no processes
// left; the processes of a killed reaper are now the agent's children.
func (c *children) reaperEnded(r *reaper, cleanly bool) {
	delete(c.byPid, r.pid)
	delete(c.byID, r.state.id)
	r.gone, r.lost = true, !cleanly
	r.look()
	if !r.begun {
		if r.state.main == 0 {
			r.state.errno, r.state.step = syscall.EAGAIN, stepFork
		}
		r.begin()
	}
	switch {
	case r.exited || r.state.main == 0:
		c.release(r)
	case r.state.ends[0].pid == r.state.main:
		// The reaper was killed after its wait returned and before it reported the exit.
		r.finish(r.state.ending())
		c.release(r)
	case r.early != nil:
		r.finish(*r.early)
		c.release(r)
	default:
		c.orphaned[int(r.state.main)] = r
	}
}

func (c *children) orphanEnded(pid int, e ending) {
	if r := c.orphaned[pid]; r != nil {
		delete(c.orphaned, pid)
		r.finish(e)
		c.release(r)
		return
	}
	for _, r := range c.byPid {
		if int(r.state.main) == pid && !r.state.exited {
			r.early = &e // its reaper is dead, too, and is reaped next
		}
	}
}

// release makes an ended reaper's memory available to the next one.
func (c *children) release(r *reaper) {
	if !r.gone {
		return
	}
	c.idle = append(c.idle, r.state)
	r.state = nil
}

// An ending is a process's exit status and resource usage.
type ending struct {
	status    int // 128 + n for signal n
	signal    syscall.Signal
	processor uint64 // nanoseconds
	peak      uint64 // resident bytes
	// failed is not 0 if the start failed, and the reaper was killed before it could report that.
	failed syscall.Errno
	step   int32
	lost   error // for a job: why its exit status is unknown, or why it did not start
}

func endingOf(status syscall.WaitStatus, used *syscall.Rusage) ending {
	e := usedBy(used)
	if e.status = status.ExitStatus(); status.Signaled() {
		e.signal = status.Signal()
		e.status = 128 + int(e.signal)
	}
	return e
}

func usedBy(used *syscall.Rusage) ending {
	e := ending{
		processor: uint64(used.Utime.Nano() + used.Stime.Nano()),
		peak:      uint64(used.Maxrss) << 10,
	}
	var own syscall.Rusage
	// On Linux a program inherits the peak memory of the process that it was forked from, the agent.
	if syscall.Getrusage(syscall.RUSAGE_SELF, &own) != nil || used.Maxrss <= own.Maxrss {
		e.peak = unknown
	}
	return e
}

func (s *reaperState) ending() ending {
	e := usedBy(&s.usages[0])
	if e.status = int(s.ends[0].status); s.ends[0].code != cldExited {
		e.signal = syscall.Signal(s.ends[0].status)
		e.status += 128
	}
	return e
}

// A reaper is the parent of one command's processes, orphans included. children.mu guards its fields
// except the channels.
type reaper struct {
	state *reaperState // nil once the outcome is known and the memory is released
	pid   int
	main  int // 0 until it has begun
	kept  []any
	begun bool
	// started is closed when the command runs or has failed to start; failed then has the reason.
	started chan struct{}
	failed  syscall.Errno
	step    int32
	exited  bool
	exit    chan ending
	early   *ending
	gone    bool // it has ended
	lost    bool // it was killed, or could not become a subreaper: its orphans are the agent's
}

// look reads the reaper's state, and acts on changes.
func (r *reaper) look() {
	if r.state.begun && !r.begun {
		r.begin()
	}
	if r.state.exited && !r.exited {
		r.finish(r.state.ending())
	}
}

func (r *reaper) begin() {
	r.begun = true
	r.main, r.failed, r.step = int(r.state.main), r.state.errno, r.state.step
	r.lost = r.lost || !r.state.subreaper
	if r.state.begun {
		r.kept = nil // otherwise the command may not have called exec yet
	}
	close(r.started)
}

func (r *reaper) finish(e ending) {
	r.exited = true
	e.failed, e.step = r.state.errno, r.state.step
	r.exit <- e
}

type launch struct {
	path   string
	argv   []string
	env    []string
	cwd    string
	id     identity
	fds    [3]uintptr
	tty    bool
	limits []resourceLimit
}

// spawn starts a command's reaper, which starts the command. It does not wait for the command's start.
func (c *children) spawn(l launch) (*reaper, error) {
	r := &reaper{started: make(chan struct{}), exit: make(chan ending, 1)}
	s, err := c.newState()
	if err != nil {
		return nil, err
	}
	if err := r.prepare(s, l); err != nil {
		c.mu.Lock()
		c.idle = append(c.idle, s)
		c.mu.Unlock()
		return nil, err
	}
	if s.caps = capSets(c.caps); s.switchUser {
		s.caps = capSets(1<<capSetuid | 1<<capSetgid)
	}
	c.mu.Lock()
	if c.pause.on {
		c.idle = append(c.idle, s)
		c.mu.Unlock()
		return nil, errPaused
	}
	c.last++
	s.id, s.wake = c.last, uintptr(c.wake)
	var errno syscall.Errno
	if confined.start(func() { errno = forkReaper(s) }); errno != 0 {
		c.idle = append(c.idle, s)
		c.mu.Unlock()
		return nil, &startError{"cannot start another process: " + errno.Error(), errno}
	}
	r.pid = int(s.pid)
	c.byID[s.id], c.byPid[r.pid] = r, r
	c.mu.Unlock()
	return r, nil
}

// begins waits until the command runs or has failed to start, and returns the reason for a failure.
func (r *reaper) begins(l launch) error {
	<-r.started
	if !l.id.isAgent() {
		// The command shares the agent's memory until its exec. Its change of user sets the memory's
		// dumpable flag to fs.suid_dumpable, the administrator's choice. Clear it again.
		syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	}
	if r.failed != 0 {
		return explain(r.step, r.failed, l.argv[0], l.cwd)
	}
	return nil
}

func (c *children) newState() (*reaperState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.idle); n > 0 {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		*s = reaperState{}
		return s, nil
	}
	region, err := syscall.Mmap(-1, 0, regionBytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_PRIVATE|syscall.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	return (*reaperState)(unsafe.Pointer(&region[0])), nil
}

// prepare fills in the state's description of the command. r.kept keeps the memory alive to which it points.
func (r *reaper) prepare(s *reaperState, l launch) error {
	path, err := syscall.BytePtrFromString(l.path)
	if err != nil {
		return err
	}
	cwd, err := syscall.BytePtrFromString(l.cwd)
	if err != nil {
		return err
	}
	argv, err := syscall.SlicePtrFromStrings(l.argv)
	if err != nil {
		return err
	}
	envv, err := syscall.SlicePtrFromStrings(l.env)
	if err != nil {
		return err
	}
	groups := append([]uint32{}, l.id.groups...)
	groups = append(groups, 0) // for an address even without groups
	r.kept = []any{path, cwd, argv, envv, groups}
	r.state = s
	s.path, s.cwd = uintptr(unsafe.Pointer(path)), uintptr(unsafe.Pointer(cwd))
	s.argv, s.envv = uintptr(unsafe.Pointer(&argv[0])), uintptr(unsafe.Pointer(&envv[0]))
	s.groups, s.groupCount = uintptr(unsafe.Pointer(&groups[0])), uintptr(len(l.id.groups))
	s.uid, s.gid, s.switchUser = uintptr(l.id.uid), uintptr(l.id.gid), !l.id.isAgent()
	s.fds, s.terminal, s.openFiles = l.fds, l.tty, early.OpenFiles
	s.queuedSignals = queuedSignals
	s.limitCount = setLimits(&s.limits, confined.limited(l.limits))
	if confined != nil {
		s.ruleset = confined.ruleset
	}
	s.commandMask = startMask
	s.capHeader.version = capVersion3
	s.lastFD = lastDescriptor()
	return nil
}

var closesRanges = sync.OnceValue(func() bool {
	const none = uintptr(^uint32(0))
	_, _, e := syscall.RawSyscall(sysCloseRange, none, none, 0)
	return e == 0
})

// lastDescriptor returns an upper bound of the open descriptors, or 0 if Linux has close_range (5.9).
// The bound leaves room for descriptors that other goroutines open in the meantime.
func lastDescriptor() uintptr {
	if closesRanges() {
		return 0
	}
	last := 64
	names, _ := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil {
			last = max(last, fd)
		}
	}
	return uintptr(last + 64)
}

// used reports whether any command was started.
func (c *children) used() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last > 0
}

// living returns the reapers that have not ended, by pid.
func (c *children) living() map[int]*reaper {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.byPid)
}

// others returns the main processes of all unfinished commands except one. none reports whether there
// is no such command; a command that has no process yet counts.
func (c *children) others(but *reaper) (mains map[int]bool, none bool) {
	mains, none = map[int]bool{}, true
	for _, all := range []map[int]*reaper{c.byPid, c.orphaned} {
		for _, r := range all {
			if r != but && !r.exited {
				mains[r.main], none = true, false
			}
		}
	}
	return mains, none
}
