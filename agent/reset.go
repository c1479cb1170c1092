// The reset, which restores the sandbox between two jobs to its state before the first command.
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
	// resetPatience is how long a reset waits for killed processes and dying kernel objects to vanish.
	resetPatience = 5 * time.Second
	// resetLimit bounds the wait on a busy machine, where each check takes longer.
	resetLimit = 30 * time.Second
)

// resettable is set for an agent that is not the first process, if only this sandbox uses the machine.
var resettable bool

// jobs is the state of a sandbox's resets. mu is not held during a reset; under excludes another one.
type jobs struct {
	mu sync.Mutex
	// under is set during a reset, and permanently after a failed one. No request may start then.
	under bool
	// uids are the identities of the next jobs; nil if all jobs share one user.
	uids *identities
	// refused holds the reasons why the sandbox can never be reset again.
	refused []string

	taken   bool
	actor   *actor
	places  []*place
	devices []device
	objects kernelObjects
	sockets socketCounts
	self    ownState
}

// reset resets the sandbox. It returns a list of everything that it could not remove, and the
// sandbox's usage so far.
func (b *sandbox) reset(own *stream) ([]byte, error) {
	left, err := b.clear(own)
	if err != nil {
		return nil, err
	}
	used := stats()[12:] // the fields from the processor time on
	if len(left) == 0 {
		forks.forkAhead()
	}
	answer := binary.BigEndian.AppendUint32(nil, uint32(len(left)))
	for _, each := range left {
		answer = putString(answer, each)
	}
	return append(answer, used...), nil
}

// clear resets the sandbox for the request own, and returns a list of everything that it could not remove.
// The first call removes nothing: it only takes the inventory.
func (b *sandbox) clear(own *stream) ([]string, error) {
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
	j.mu.Lock()
	defer j.mu.Unlock()
	j.taken, j.refused, j.under = true, left, len(left) > 0
	return left, nil
}

// refuse returns an error if no request may start, because a reset is in progress or has failed, or if the
// request names a user, because a reset cannot clean up after that user.
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

// until calls try with growing pauses until nothing is left or resetPatience has passed, and returns the
// last result of try. It adds up the intended length of the pauses, so that a machine that stands still
// for seconds does not use up the time.
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

// othersOpen waits until no request except the reset itself is open, and returns a list of those that
// remain. New requests are refused meanwhile.
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

// clean removes everything that a job has left, and returns a list of what it could not remove.
func (b *sandbox) clean() (left []string) {
	j := &b.jobs
	if left = forks.dropSpare(); len(left) > 0 {
		return left
	}
	if left = b.endProcesses(); len(left) > 0 {
		return left // a running process could undo the rest
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
		debug.FreeOSMemory() // return the memory of the many names, for the next job
	}
	return append(left, renewNull(b.null)...)
}

// verify checks everything that a job could have changed, and returns the differences. It removes
// nothing.
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

// nextJob gives the next job an identity that no earlier job had, and the workdir.
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

// remakeWorkdir creates the workdir again if it was in a place that was emptied.
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

// renewNull reopens /dev/null, the stdin of commands. All commands share its open file description, and
// with it the flags and locks that a job has set.
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
