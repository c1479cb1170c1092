// One job: code that runs in a fork of the interpreter, and the processes that it starts.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

func addressOf(b *byte) unsafe.Pointer { return unsafe.Pointer(b) }

type job struct {
	launch launch
	start  uint64 // no process of the job started before this time
	began  moment
	file   *os.File
	over   atomic.Bool // the main process has ended, or its end can no longer be observed
	exit   chan ending
}

// begin makes the interpreter fork for a job, with the launch's stdin, stdout and stderr.
func (f *interpreter) begin(l launch, code string, start uint64, began moment) (*job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.pid.Load() == 0:
		return nil, &startError{"the sandbox has no interpreter", 0}
	case f.lost != nil:
		return nil, f.lost
	case f.job != nil:
		return nil, &startError{"another job runs in the sandbox's interpreter", syscall.EBUSY}
	}
	texts := append([]string{l.cwd}, l.argv...)
	file, err := memoryFile(append(append(texts, l.env...), code))
	if err != nil {
		return nil, err
	}
	switches, caps := 0, uint64(0)
	if l.id.uid != f.uid {
		switches = 1
	} else if l.id.isAgent() {
		caps = procs.caps
	}
	terminal := 0
	if l.tty {
		terminal = 1
	}
	if f.spare {
		f.spare, start = false, f.asked
	}
	message := fmt.Sprint(l.id.uid, l.id.gid, switches, terminal, uint32(caps), uint32(caps>>32),
		len(l.argv), len(l.env))
	for _, group := range l.id.groups {
		message += fmt.Sprint(" ", group)
	}
	j := &job{launch: l, start: start, began: began, file: file, exit: make(chan ending, 1)}
	f.job = j
	if err := f.send(message, int(file.Fd()), int(l.fds[0]), int(l.fds[1]), int(l.fds[2])); err != nil {
		f.job = nil
		file.Close()
		return nil, f.unreachable(err)
	}
	return j, nil
}

// unreachable returns the reason why a job could not be passed to the interpreter. Hold the lock. After
// a broken connection it waits until the interpreter is reaped. No job can cause any other error, such
// as too many descriptors in flight, because jobs have lower limits than the agent.
func (f *interpreter) unreachable(err error) error {
	if f.lost != nil {
		return f.lost
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		for range endPatience / time.Millisecond {
			if procs.reap(); f.gone.Load() {
				break
			}
			time.Sleep(time.Millisecond)
		}
		f.lost = f.whyEnded(nil, false)
		return f.lost
	}
	return &startError{"the sandbox's interpreter cannot be given a job: " + err.Error(),
		syscall.ENOTRECOVERABLE}
}

func (j *job) ended() <-chan ending { return j.exit }

// release frees the interpreter for the next job.
func (j *job) release() {
	forks.mu.Lock()
	defer forks.mu.Unlock()
	if forks.job == j {
		forks.job = nil
		j.file.Close()
	}
}

func (j *job) hear(message string) {
	e := ending{peak: unknown}
	if words := strings.Fields(message); len(words) > 1 && words[0] == "fork" {
		e.lost = explain(stepFork, syscall.Errno(number(words[1])), "", "")
	} else if len(words) == 5 && words[0] == "end" {
		status := syscall.WaitStatus(number(words[1]))
		if e.status = status.ExitStatus(); status.Signaled() {
			e.signal = status.Signal()
			e.status = 128 + int(e.signal)
		}
		e.processor = uint64(number(words[2])+number(words[3])) * 1000
		e.peak = uint64(number(words[4])) << 10
		e.lost = j.notStarted()
	} else {
		return
	}
	j.over.Store(true)
	j.exit <- e
}

func number(text string) (n int64) {
	_, _ = fmt.Sscan(text, &n)
	return n
}

// notStarted returns the error that the fork wrote to its file when it could not start the job, or nil.
func (j *job) notStarted() error {
	var answer [answerBytes]byte
	n, _ := j.file.ReadAt(answer[:], 0)
	if n == 0 || answer[0] == 0 {
		return nil
	}
	words := strings.Fields(strings.TrimRight(string(answer[:n]), "\x00"))
	if len(words) != 2 {
		return nil
	}
	return explain(int32(number(words[0])), syscall.Errno(number(words[1])), j.launch.argv[0],
		j.launch.cwd)
}

func (j *job) kill() { strikeUntil(j.strike) }

func (j *job) strike(known map[int]uint64) (gone bool) {
	procs.mu.Lock()
	defer procs.mu.Unlock()
	for {
		over := j.over.Load()
		mains, _ := procs.others(nil)
		members := j.members(processTable(procs.byPid), known, mains)
		if len(members) == 0 {
			return over
		}
		if !stopNew(members, known) {
			killEach(members)
			return false
		}
	}
}

// members picks the job's processes from the table: the interpreter's children that are not older than
// the job, and their descendants. If the interpreter was killed, they are the agent's children.
func (j *job) members(table []processStat, known map[int]uint64, mains map[int]bool) []processStat {
	return pick(table, func(p, above *processStat, mine func(*processStat) bool) bool {
		switch {
		case known[p.pid] == p.start && p.start != 0:
			return true
		case forks.is(p.pid), mains[p.pid]:
			return false
		case forks.is(p.ppid):
			return p.start >= j.start
		case above != nil:
			return mine(above)
		}
		return p.ppid == self && forks.gone.Load() && p.start >= j.start && uidOf(p.pid) == j.launch.id.uid
	})
}
