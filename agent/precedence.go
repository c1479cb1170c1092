// Precedence of starting commands over long frames, which would keep the CPUs and the link busy.
package main

import (
	"sync"
	"time"
)

// beginPatience is how long a command counts as starting, and how long a long frame waits for it.
const beginPatience = 10 * time.Millisecond

// beginners counts the starting commands.
type beginners struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0
}

var beginning beginners

// enter counts a command as starting until leave is called, and at most for beginPatience. Further calls
// of leave do nothing.
func (b *beginners) enter() (leave func()) {
	b.mu.Lock()
	if b.n == 0 {
		b.none = make(chan struct{})
	}
	b.n++
	b.mu.Unlock()
	once := sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.n--; b.n == 0 {
			close(b.none)
		}
	})
	timer := time.AfterFunc(beginPatience, once)
	return func() {
		timer.Stop()
		once()
	}
}

// gone returns a channel that is closed once no command is starting; nil if none is starting now.
func (b *beginners) gone() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 {
		return nil
	}
	return b.none
}

// A yielder makes long frames wait for starting commands. One goroutine at a time may use it.
type yielder struct{ freeUntil time.Time }

// yield waits while commands are starting, at most for beginPatience, and at most half of all time.
func (y *yielder) yield(b *beginners) {
	gone := b.gone()
	if gone == nil {
		return
	}
	began := time.Now()
	if began.Before(y.freeUntil) {
		return
	}
	timer := time.NewTimer(beginPatience)
	defer timer.Stop()
	select {
	case <-gone:
	case <-timer.C:
	}
	now := time.Now()
	y.freeUntil = now.Add(now.Sub(began))
}
