// The lock for writing frames; writers of short frames get it before those of long frames.
package main

import "sync"

// shortsInARow is how many short frames may overtake a long one; then the long one is next.
const shortsInARow = 16

// A writeLock is held by one writer at a time. The zero value is unlocked.
type writeLock struct {
	mu            sync.Mutex
	freed         sync.Cond
	busy          bool
	shorts, longs int // the numbers of waiting writers
	passed        int // the number of short frames since the last long one
}

func (l *writeLock) lock(long bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.freed.L = &l.mu
	if long {
		l.longs++
		for l.busy || l.shorts > 0 && l.passed < shortsInARow {
			l.freed.Wait()
		}
		l.longs--
		l.passed = 0
	} else {
		l.shorts++
		for l.busy || l.longs > 0 && l.passed >= shortsInARow {
			l.freed.Wait()
		}
		l.shorts--
		l.passed++
	}
	l.busy = true
}

func (l *writeLock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
	if l.shorts+l.longs > 0 {
		l.freed.Broadcast()
	}
}
