package main

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestCreditIsTakenUpToWhatIsThere(t *testing.T) {
	c := newCredit(10)
	for _, step := range []struct{ want, got int }{{4, 4}, {10, 6}} {
		if got, err := c.take(step.want); got != step.got || err != nil {
			t.Fatalf("take(%d) = %d, %v", step.want, got, err)
		}
	}
	taken := make(chan int)
	go func() { n, _ := c.take(5); taken <- n }()
	if err := c.grant(3); err != nil {
		t.Fatal(err)
	}
	if n := <-taken; n != 3 {
		t.Fatalf("took %d of 3", n)
	}
	go func() { _, err := c.take(5); taken <- map[bool]int{true: 1}[errors.Is(err, errCancelled)] }()
	c.close()
	if <-taken != 1 {
		t.Fatal("a closed credit was not an error")
	}
}

func TestCreditAboveTheWindowIsAProtocolError(t *testing.T) {
	var broken protocolError
	if err := newCredit(1 << 20).grant(1); !errors.As(err, &broken) {
		t.Fatalf("got %v", err)
	}
	if err := newCredit(0).grant(-1 << 31); err == nil {
		t.Fatal("a negative credit was accepted")
	}
}

func TestInboxGivesBackWhatWasPutAndGrantsIt(t *testing.T) {
	const window = 256 << 10
	granted := 0
	b := newInbox(window, func(n int) { granted += n })
	chunk := bytes.Repeat([]byte("x"), window)
	if err := b.put(chunk); err != nil {
		t.Fatal(err)
	}
	if b.put([]byte("y")) == nil {
		t.Fatal("more than the window was accepted")
	}
	b = newInbox(window, func(n int) { granted += n })
	_ = b.put(chunk)
	b.finish()
	got, err := io.ReadAll(b)
	if err != nil || !bytes.Equal(got, chunk) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if granted < window*3/4 {
		t.Fatalf("only %d granted", granted)
	}
	if b.put([]byte("y")) == nil {
		t.Fatal("data after the end was accepted")
	}
}

func TestInboxIsCancelled(t *testing.T) {
	b := newInbox(1, func(int) {})
	done := make(chan error)
	go func() { _, err := b.Read(make([]byte, 1)); done <- err }()
	b.cancel(errCancelled)
	if err := <-done; !errors.Is(err, errCancelled) {
		t.Fatal(err)
	}
}

func TestABacklogKeepsWhatWasNotForgotten(t *testing.T) {
	var b backlog
	var all []byte
	for i := range 200 {
		piece := bytes.Repeat([]byte{byte(i)}, 1+i*i%3000)
		all = append(all, piece...)
		b.add(piece)
		if i%3 == 0 {
			n := b.size * i / 300
			b.forget(n)
			all = all[n:]
		}
		if kept := bytes.Join(b.pieces, nil); !bytes.Equal(kept, all) || b.size != len(all) {
			t.Fatalf("after %d pieces: %d bytes in %d, want %d", i+1, b.size, len(kept), len(all))
		}
	}
	b.forget(b.size)
	if len(b.pieces) > 1 || b.size != 0 {
		t.Fatalf("%d bytes left in %d pieces", b.size, len(b.pieces))
	}
}

func TestABacklogGathersSmallPieces(t *testing.T) {
	var b backlog
	for range 10_000 {
		b.add([]byte("0123456789"))
	}
	if len(b.pieces) > 20 {
		t.Fatalf("%d pieces for 100000 bytes", len(b.pieces))
	}
}
