// Flow control: send credit, the backlog of unacknowledged data, and the queue of received data.
package main

import (
	"errors"
	"io"
	"sync"
)

var errCancelled = errors.New("cancelled by the client")

// A credit is the number of bytes that may still be sent. take blocks while it is 0.
type credit struct {
	mu     sync.Mutex
	cond   *sync.Cond
	n      int
	window int
	closed bool
}

func newCredit(window int) *credit {
	c := &credit{n: window, window: window}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func (c *credit) take(want int) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.n == 0 && !c.closed {
		c.cond.Wait()
	}
	if c.closed {
		return 0, errCancelled
	}
	got := min(want, c.n)
	c.n -= got
	return got, nil
}

func (c *credit) grant(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n < 0 || n > c.window || c.n+n > c.window {
		return protocolError("credit above the window")
	}
	c.n += n
	c.cond.Broadcast()
	return nil
}

func (c *credit) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.cond.Broadcast()
}

// A backlog holds the newest bytes that were sent. It owns the pieces that are added: it keeps large
// pieces and joins small ones, because a small piece takes more memory than its bytes.
type backlog struct {
	pieces [][]byte
	size   int
}

const smallPiece = 1 << 10

func (b *backlog) add(piece []byte) {
	b.size += len(piece)
	if len(piece) < smallPiece {
		if last := len(b.pieces) - 1; last >= 0 && cap(b.pieces[last])-len(b.pieces[last]) >= len(piece) {
			b.pieces[last] = append(b.pieces[last], piece...)
			return
		}
		piece = append(make([]byte, 0, 8*smallPiece), piece...)
	}
	b.pieces = append(b.pieces, piece)
}

// forget drops the n oldest bytes.
func (b *backlog) forget(n int) {
	b.size -= n
	for n > 0 && n >= len(b.pieces[0]) {
		n -= len(b.pieces[0])
		b.pieces[0] = nil
		b.pieces = b.pieces[1:]
	}
	if n > 0 {
		b.pieces[0] = b.pieces[0][n:]
	}
}

// An inbox queues the data that a client sent on a stream. A read grants the client more credit.
type inbox struct {
	mu       sync.Mutex
	cond     *sync.Cond
	chunks   [][]byte
	queued   int
	consumed int
	eof      bool
	err      error
	window   int
	grant    func(n int)
}

func newInbox(window int, grant func(n int)) *inbox {
	b := &inbox{window: window, grant: grant}
	b.cond = sync.NewCond(&b.mu)
	return b
}

func (b *inbox) put(chunk []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.eof {
		return protocolError("data after end of data")
	}
	if b.queued+b.consumed+len(chunk) > b.window {
		return protocolError("more data than the window allows")
	}
	if len(chunk) > 0 {
		b.chunks = append(b.chunks, chunk)
		b.queued += len(chunk)
		b.cond.Broadcast()
	}
	return nil
}

func (b *inbox) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.eof = true
	b.cond.Broadcast()
}

func (b *inbox) cancel(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	b.cond.Broadcast()
}

func (b *inbox) Read(p []byte) (int, error) {
	b.mu.Lock()
	for len(b.chunks) == 0 && !b.eof && b.err == nil {
		b.cond.Wait()
	}
	if b.err != nil {
		b.mu.Unlock()
		return 0, b.err
	}
	if len(b.chunks) == 0 {
		b.mu.Unlock()
		return 0, io.EOF
	}
	n := copy(p, b.chunks[0])
	if n == len(b.chunks[0]) {
		b.chunks[0] = nil
		b.chunks = b.chunks[1:]
	} else {
		b.chunks[0] = b.chunks[0][n:]
	}
	b.queued -= n
	b.consumed += n
	granted := 0
	if b.consumed >= b.window/4 {
		granted, b.consumed = b.consumed, 0
	}
	b.mu.Unlock()
	if granted > 0 {
		b.grant(granted)
	}
	return n, nil
}
