// Precedence of commands that begin over long frames, which would keep processors and link busy.
package main

import (
	"sync"
	"time"
)

// beginPatience is how long a command counts as one that begins, and how long a long frame waits for it.
const beginPatience = 10 * time.Millisecond

// beginners counts the commands that begin.
type beginners struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n becomes 0
}

var beginning beginners

// enter counts a command until leave is called, and for beginPatience at most. Further calls of leave
// do nothing.
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

// gone returns a channel that is closed when no command begins; nil if none does.
func (b *beginners) gone() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n == 0 {
		return nil
	}
	return b.none
}

// A yielder lets long frames wait for the commands that begin. It is used by one goroutine at a time.
type yielder struct{ freeUntil time.Time }

// yield waits while commands begin, for beginPatience at most and at most half of the time.
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
