package main

import (
	"bufio"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestALongFrameWaitsUntilNoCommandBegins(t *testing.T) {
	var commands beginners
	one, two := commands.enter(), commands.enter()
	var y yielder
	passed := make(chan struct{})
	go func() {
		y.yield(&commands)
		close(passed)
	}()
	one()
	one() // a further call does nothing
	two()
	<-passed
	if commands.gone() != nil {
		t.Fatal("a command begins although both were released")
	}
}

func TestACommandThatRunsOnNoLongerBegins(t *testing.T) {
	var commands beginners
	leave := commands.enter()
	<-commands.gone()
	leave()
	if commands.gone() != nil {
		t.Fatal("its end was counted twice")
	}
}

func TestALongFrameIsFreeForAsLongAsItWaited(t *testing.T) {
	var commands beginners
	var y yielder
	commands.enter()
	began := time.Now()
	y.yield(&commands)
	if waited := y.freeUntil.Sub(began); waited <= 0 {
		t.Fatalf("it may pass for %v after it waited", waited)
	}
	y.freeUntil = time.Now().Add(time.Hour)
	defer commands.enter()()
	y.yield(&commands)
	if until := time.Until(y.freeUntil); until < 30*time.Minute {
		t.Fatal("it waited again at once")
	}
}

// sendShort is a function of its own, which the test finds in the goroutines' stacks.
//
//go:noinline
func sendShort(s *session, done chan<- struct{}) {
	_ = s.send(seal(newFrame(1), kDone, 99))
	close(done)
}

// isBlocked tells whether a function waits for a lock, or for the reader of what it writes.
func isBlocked(function string) bool {
	stacks := make([]byte, 1<<20)
	for _, each := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(each, function) {
			return strings.Contains(each, "[sync.Cond.Wait") || strings.Contains(each, "[select")
		}
	}
	return false
}

func TestAShortFrameOvertakesLongOnes(t *testing.T) {
	ours, theirs := net.Pipe() // a write ends when all of it was read
	s := newSession(ours, opening{}, 0)
	const senders, each = 8, 4
	for id := range senders {
		go func() {
			for range each {
				_ = s.send(seal(append(newFrame(chunkSize), make([]byte, chunkSize)...), kStdout, uint32(id)))
			}
		}()
	}
	in := bufio.NewReader(theirs)
	head := make([]byte, recordSize+headerSize)
	next := func() (stream uint32) {
		var f fields
		if _, err := in.Read(head[:1]); err != nil {
			t.Fatal(err)
		}
		for at := 1; at < len(head); {
			n, err := in.Read(head[at:])
			if err != nil {
				t.Fatal(err)
			}
			at += n
		}
		f.rest = head[recordSize:]
		size := f.u32()
		f.u8()
		stream = f.u32()
		if _, err := in.Discard(int(size)); err != nil {
			t.Fatal(err)
		}
		return stream
	}
	next()
	done := make(chan struct{})
	go sendShort(s, done)
	for !isBlocked("sendShort(") {
		runtime.Gosched()
	}
	for before := range senders * each {
		if next() == 99 {
			if before > 1 { // the one that was being written when it came
				t.Fatalf("%d long frames were sent before the short one", before)
			}
			<-done
			_ = s.Close()
			return
		}
	}
	t.Fatal("the short frame did not come")
}

func TestShortFramesThatDoNotEndLetALongOnePass(t *testing.T) {
	var l writeLock
	l.lock(false)
	locked := make(chan struct{})
	go func() {
		l.lock(true)
		close(locked)
		l.unlock()
	}()
	shorts := make(chan struct{}, 1000)
	for range 4 {
		go func() {
			for {
				l.lock(false)
				l.unlock()
				select {
				case <-locked:
					shorts <- struct{}{}
					return
				default:
				}
			}
		}()
	}
	l.unlock()
	for range 4 {
		<-shorts
	}
}
