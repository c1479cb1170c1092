// The reset: between two jobs the sandbox becomes what it was before its first command.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

const (
	// For how long what was killed, or is on its way out of the kernel, is waited for.
	resetPatience = 5 * time.Second
	// And at most, where a machine that has others to serve makes each look take longer.
	resetLimit = 30 * time.Second
)

// resettable is said of an agent beside others on a machine that is the sandbox's own.
var resettable bool

// jobs is what a reset knows of the sandbox. Its lock is not held while a reset works.
type jobs struct {
	mu sync.Mutex
	// under says that a reset is at work, or has left something: nothing may start meanwhile.
	under bool
	// uids are those of jobs to come; nil where the sandbox has one for all.
	uids *identities
	// refused is why the sandbox cannot be reset, for good.
	refused []string

	taken   bool
	actor   *actor
	places  []*place
	devices []device
	objects kernelObjects
	sockets socketCounts
	self    ownState
}

// reset answers with a list of what is left that it could not remove, and what the sandbox has used
// so far; the first call only takes down what there is.
func (b *sandbox) reset(own *stream) ([]byte, error) {
	if self != 1 && !resettable {
		return nil, fmt.Errorf("not the sandbox's first process, so what is on its machine is "+
			"not its own to remove: %w", syscall.EPERM)
	}
	j := &b.jobs
	j.mu.Lock()
	if j.under && len(j.refused) == 0 {
		j.mu.Unlock()
		return nil, fmt.Errorf("another reset is under way: %w", syscall.EBUSY)
	}
	j.under = true
	left := j.refused
	j.mu.Unlock()
	if len(left) == 0 {
		left = b.othersOpen(own)
	}
	if len(left) == 0 {
		if j.taken {
			left = b.clean()
		} else {
			left = b.takeInventory()
		}
	}
	if len(left) == 0 {
		if left = b.verify(); len(left) == 0 {
			left = b.nextJob()
		}
	}
	if len(left) == 0 {
		left = b.othersOpen(own)
	}
	used := stats()[12:] // from the processor time on
	j.mu.Lock()
	j.taken, j.refused, j.under = true, left, len(left) > 0
	j.mu.Unlock()
	if len(left) == 0 {
		forks.forkAhead()
	}
	answer := binary.BigEndian.AppendUint32(nil, uint32(len(left)))
	for _, each := range left {
		answer = putString(answer, each)
	}
	return append(answer, used...), nil
}

// refuse says why nothing may start: a reset is at work, or has found what it cannot remove, or it
// is to run as a user that no reset knows of.
func (j *jobs) refuse(user string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.under && len(j.refused) > 0:
		return errors.New("the sandbox could not be reset")
	case j.under:
		return errors.New("the sandbox is being reset")
	case j.taken && user != "" && j.uids != nil:
		return fmt.Errorf("user %q: in a sandbox that is reset each job has a user of its own", user)
	}
	return nil
}

// until tries again, ever less often, until nothing is left or patience ends. Pauses count for as
// long as they were meant to be: a machine that stands still for seconds does not take them away.
func until(try func() []string) []string {
	begun, waited := time.Now(), time.Duration(0)
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		left := try()
		if len(left) == 0 || waited >= resetPatience || time.Since(begun) > resetLimit {
			return left
		}
		time.Sleep(pause)
		waited += pause
	}
}

// othersOpen waits for the requests of all clients but the reset itself to have ended. New ones
// are refused.
func (b *sandbox) othersOpen(own *stream) []string {
	return until(func() (left []string) {
		b.mu.Lock()
		clients := make([]*conn, 0, len(b.clients))
		for c := range b.clients {
			clients = append(clients, c)
		}
		b.mu.Unlock()
		for _, c := range clients {
			c.mu.Lock()
			for _, s := range c.streams {
				if s != own {
					left = append(left, fmt.Sprintf("request %d is under way", s.id))
				}
			}
			c.mu.Unlock()
		}
		return left
	})
}

// clean removes what a job has left, and says what would not go.
func (b *sandbox) clean() (left []string) {
	j := &b.jobs
	if left = forks.dropSpare(); len(left) > 0 {
		return left
	}
	if left = b.endProcesses(); len(left) > 0 {
		return left // what runs on could undo all else
	}
	if left = j.sockets.inFlight(); len(left) > 0 {
		return left
	}
	work := removal{end: time.Now().Add(removalPatience), entries: maxRemovals}
	for _, p := range j.places {
		left = append(left, p.restore()...)
	}
	left = append(left, j.actor.as(b.as(), func() (left []string) {
		for _, p := range j.places {
			left = append(left, p.empty(&work)...)
		}
		return append(left, j.objects.remove()...)
	})...)
	if len(left) == 0 {
		left = b.remakeWorkdir()
	}
	for _, p := range j.places {
		p.restoreTimes()
	}
	for _, d := range j.devices {
		d.restore()
	}
	if work.entries < maxRemovals-manyRemovals || j.objects.shrink() {
		debug.FreeOSMemory() // the next job has what the names of so much took
	}
	return append(left, renewNull(b.null)...)
}

// verify looks at everything that a job could have changed, and removes nothing.
func (b *sandbox) verify() (left []string) {
	j := &b.jobs
	left = append(left, b.processesLeft()...)
	for _, p := range j.places {
		left = append(left, p.left()...)
	}
	for _, d := range j.devices {
		left = append(left, d.left()...)
	}
	left = append(left, j.objects.left()...)
	left = append(left, j.sockets.left()...)
	left = append(left, j.ownChanged()...)
	return append(left, forks.changed()...)
}

// nextJob gives what comes next an identity that nothing before it had, and the workdir.
func (b *sandbox) nextJob() []string {
	j := &b.jobs
	if j.uids == nil {
		return nil
	}
	id, err := j.uids.next(b.workdir)
	if err == nil {
		err = b.giveWorkdir(id)
	}
	if err != nil {
		return []string{err.Error()}
	}
	b.become(id)
	return nil
}

// remakeWorkdir makes the workdir again where it is in a place that was emptied.
func (b *sandbox) remakeWorkdir() []string {
	var st syscall.Stat_t
	if err := syscall.Lstat(b.workdir, &st); err == nil {
		return nil
	}
	if err := b.makeWorkdir(); err != nil {
		return []string{err.Error()}
	}
	return nil
}

// renewNull replaces the open file that is every command's stdin: flags and locks of an open file
// are shared by all who have it.
func renewNull(fd uintptr) []string {
	fresh, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err == nil {
		err = syscall.Dup3(fresh, int(fd), syscall.O_CLOEXEC)
		syscall.Close(fresh)
	}
	if err != nil {
		return []string{"/dev/null: " + err.Error()}
	}
	return nil
}
