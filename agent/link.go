// The link below the frames: a byte stream that can outlive the connections that carry it. Every record
// has its offset in the stream, so bytes that a broken connection lost are sent again.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

const (
	linkMagic   = "SBXL"
	openingSize = len(linkMagic) + 1 + 16 + 1 + 4 + 8
	recordSize  = 13

	recordData  = 0
	recordAck   = 1
	recordPing  = 2
	recordClose = 3

	linkOpened  = 0
	linkResumed = 1
	linkUnknown = 2

	// keepBytes is how much unacknowledged data is kept; above this a writer waits.
	keepBytes = 4 << 20
	ackEvery  = 1 << 20
	maxRecord = maxPayload + headerSize
	maxGrace  = 10 * time.Minute
	// deadAfter is how long a connection may be silent if silentBreaks is set. Clients ping more often.
	deadAfter = 60 * time.Second

	// shortFrame is the size of the largest frame that overtakes longer ones.
	shortFrame = 4 << 10

	openingPatience = 10 * time.Second
)

// silentBreaks is set if a connection may break without an error, because it crosses a vendor's network.
var silentBreaks bool

// bootID distinguishes this agent from a restarted one.
var bootID = func() (id [16]byte) {
	_, _ = rand.Read(id[:])
	return id
}()

type transport interface {
	io.Reader
	io.Writer
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
	Close() error
}

// A carrier is one connection of a session, and the reader's position in its current record.
type carrier struct {
	transport
	in   *bufio.Reader
	left int // unread bytes of the current record
	old  int // how many of these, from the first, are duplicates; a proxy may send bytes twice
}

func newCarrier(t transport) *carrier {
	return &carrier{transport: t, in: bufio.NewReaderSize(t, chunkSize)}
}

// A session carries a client's frames. With a grace it survives the loss of its connection for that
// time. Without a grace it ends with its connection and keeps no data.
type session struct {
	opening [openingSize]byte
	grace   time.Duration
	// left reports whether the client has certainly ended, so that no grace applies; nil: never.
	left func() bool
	// settled is set once the owner's start is complete. Before that, no grace applies.
	settled bool

	// bulk is held while a long frame is sent or waits, so that senders of long frames take turns. It
	// guards yielder. Lock it before writing.
	bulk    sync.Mutex
	yielder yielder
	// writing is held while a record is written, so that records stay in order and none is lost
	// between two connections. Lock it before mu.
	writing writeLock

	mu       sync.Mutex
	cond     *sync.Cond
	over     *carrier // nil while there is no connection
	received uint64   // how many bytes of the client were read
	acked    uint64   // how many of these were acknowledged
	sent     uint64   // bytes written so far
	kept     backlog  // the newest of these, which the client may not have received
	closed   bool
	owing    bool // a goroutine is about to send an acknowledgement
	expiry   *time.Timer
}

func newSession(t transport, o opening, grace time.Duration) *session {
	s := &session{opening: o.raw, grace: grace, over: newCarrier(t)}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// resume continues a session over a new connection, and resends the data that the client has not
// received. It returns false if the session is closed or no longer has these data.
func (s *session) resume(t transport, o opening) bool {
	s.drop(nil) // a writer that is blocked on the old connection holds the lock
	s.writing.lock(false)
	defer s.writing.unlock()
	s.mu.Lock()
	first := s.sent - uint64(s.kept.size)
	if s.closed || o.received < first || o.received > s.sent {
		s.mu.Unlock()
		return false
	}
	s.kept.forget(int(o.received - first))
	again := slices.Clone(s.kept.pieces)
	s.acked = s.received
	buf := answer(linkResumed, s.received)
	if s.expiry != nil {
		s.expiry.Stop()
	}
	c := newCarrier(t)
	s.over = c
	s.cond.Broadcast()
	s.mu.Unlock()
	at := o.received
	for _, piece := range again {
		buf = append(record(buf, recordData, at, len(piece)), piece...)
		at += uint64(len(piece))
	}
	if _, err := t.Write(buf); err != nil {
		s.drop(c)
	}
	return true
}

// drop closes a broken connection: of, or the current one if of is nil. Without a grace this closes
// the session.
func (s *session) drop(of *carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil || (of != nil && s.over != of) {
		return
	}
	_ = s.over.Close()
	s.over = nil
	if s.grace == 0 || (s.left != nil && (!s.settled || s.left())) {
		s.closed = true
	} else if !s.closed {
		s.expiry = time.AfterFunc(s.grace, func() { _ = s.Close() })
	}
	s.cond.Broadcast()
}

func (s *session) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settled = true
}

// forsake closes a session without a connection, because no client will resume it.
func (s *session) forsake() {
	s.mu.Lock()
	over := s.over
	s.mu.Unlock()
	if over == nil {
		_ = s.Close()
	}
}

// current waits for a connection and returns it, or nil when the session is closed.
func (s *session) current() *carrier {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.over == nil && !s.closed {
		s.cond.Wait()
	}
	return s.over
}

// Read returns the client's bytes, each once and in order. Only one goroutine may call it.
func (s *session) Read(p []byte) (int, error) {
	for {
		c := s.current()
		if c == nil {
			return 0, io.EOF
		}
		n, err := s.readFrom(c, p)
		var broken protocolError
		if n > 0 || errors.As(err, &broken) {
			return n, err
		}
		if err != nil && s.grace == 0 {
			return 0, err // the other direction may still work
		}
		if err != nil {
			s.drop(c)
		}
	}
}

// readFrom continues the current record, or begins the next one. It returns 0 and no error if the
// record carried no new data.
func (s *session) readFrom(c *carrier, p []byte) (int, error) {
	if s.grace > 0 && silentBreaks {
		_ = c.SetReadDeadline(time.Now().Add(deadAfter))
	}
	if c.left == 0 {
		if err := s.nextRecord(c); err != nil || c.left == 0 {
			return 0, err
		}
	}
	if c.old > 0 {
		n, err := c.in.Discard(c.old)
		c.old -= n
		c.left -= n
		return 0, err
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	s.mu.Lock()
	if s.over != c {
		s.mu.Unlock()
		return 0, nil // dropped in the meantime: the client sends these bytes again
	}
	c.left -= n
	s.received += uint64(n)
	owed := s.grace > 0 && s.received-s.acked >= ackEvery
	s.mu.Unlock()
	if owed {
		s.owe(c)
	}
	if n > 0 {
		return n, nil // the next read returns the error again
	}
	return 0, err
}

func (s *session) nextRecord(c *carrier) error {
	var head [recordSize]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return err
	}
	if string(head[:len(linkMagic)]) == linkMagic {
		_, err := c.in.Discard(openingSize - recordSize) // a duplicate of the opening, from a proxy
		return err
	}
	if string(head[:len(packedMagic)]) == packedMagic {
		return c.skipCopy(s.opening)
	}
	offset, size := binary.BigEndian.Uint64(head[1:]), binary.BigEndian.Uint32(head[9:])
	switch head[0] {
	case recordData:
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.over != c:
			return nil
		case size > maxRecord:
			return protocolError(fmt.Sprintf("a record of %d bytes, the limit is %d", size, maxRecord))
		case offset > s.received:
			return protocolError(fmt.Sprintf("byte %d came where %d is due", offset, s.received))
		}
		c.left = int(size)
		c.old = int(min(uint64(size), s.received-offset))
		return nil
	case recordAck:
		return s.acknowledged(offset)
	case recordPing:
		s.settle()
		s.owe(c)
		return nil
	case recordClose:
		_ = s.Close()
		return io.EOF
	}
	return protocolError(fmt.Sprintf("unknown record type %d", head[0]))
}

func (s *session) acknowledged(offset uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset > s.sent {
		return protocolError("an acknowledgement of what was not sent")
	}
	if missing := s.sent - offset; missing < uint64(s.kept.size) {
		s.kept.forget(s.kept.size - int(missing))
		s.cond.Broadcast()
	}
	return nil
}

// owe starts a goroutine that acknowledges received data. The reader must never wait for a writer,
// because if the client did so too, neither side would read any more.
func (s *session) owe(c *carrier) {
	s.mu.Lock()
	already := s.owing
	s.owing = true
	s.mu.Unlock()
	if !already {
		go s.acknowledge(c)
	}
}

func (s *session) acknowledge(c *carrier) {
	s.writing.lock(false)
	defer s.writing.unlock()
	s.mu.Lock()
	buf := record(nil, recordAck, s.received, 0)
	s.acked, s.owing = s.received, false
	gone := s.over != c
	s.mu.Unlock()
	if gone {
		return
	}
	if _, err := c.Write(buf); err != nil {
		s.drop(c)
	}
}

// record appends a record's head.
func record(buf []byte, kind byte, offset uint64, size int) []byte {
	buf = binary.BigEndian.AppendUint64(append(buf, kind), offset)
	return binary.BigEndian.AppendUint32(buf, uint32(size))
}

// longFrames holds buffers for frames of at most chunkSize bytes, because zeroing and collecting a new
// buffer for each takes as long as its copy.
var longFrames = sync.Pool{New: func() any { return new([frameRoom + chunkSize]byte) }}

// frame returns a buffer as newFrame does; send reuses it if the session keeps no data.
func (s *session) frame(capacity int) []byte {
	if s.grace > 0 || capacity <= shortFrame || capacity > chunkSize {
		return newFrame(capacity)
	}
	return longFrames.Get().(*[frameRoom + chunkSize]byte)[:frameRoom]
}

// send writes a buffer that begins with room for a record's head, and takes ownership of the buffer.
// Without a connection it only keeps the bytes. It blocks while more than keepBytes are unacknowledged. A
// frame of at most shortFrame bytes overtakes longer ones that wait.
func (s *session) send(buf []byte) error {
	data := buf[recordSize:]
	long := len(data) > shortFrame
	if long {
		s.bulk.Lock()
		defer s.bulk.Unlock()
		s.yielder.yield(&beginning)
	}
	s.writing.lock(long)
	defer s.writing.unlock()
	s.mu.Lock()
	for s.kept.size > keepBytes && !s.closed {
		s.writing.unlock() // resume and acknowledge need it
		s.cond.Wait()
		s.mu.Unlock()
		s.writing.lock(long)
		s.mu.Lock()
	}
	if s.closed {
		s.mu.Unlock()
		return errCancelled
	}
	record(buf[:0], recordData, s.sent, len(data))
	s.sent += uint64(len(data))
	if s.grace > 0 {
		s.kept.add(data)
	}
	c := s.over
	s.mu.Unlock()
	if c == nil {
		return nil
	}
	if _, err := c.Write(buf); err != nil {
		s.drop(c)
	}
	if s.grace == 0 && cap(buf) == frameRoom+chunkSize {
		longFrames.Put((*[frameRoom + chunkSize]byte)(buf[:cap(buf)]))
	}
	return nil
}

// bye sends a last frame if the client still reads, and closes the session.
func (s *session) bye(buf []byte) {
	s.mu.Lock()
	if s.over != nil {
		_ = s.over.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	}
	s.mu.Unlock()
	_ = s.send(buf)
	_ = s.Close()
}

func (s *session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	if s.expiry != nil {
		s.expiry.Stop()
	}
	if s.over != nil {
		_ = s.over.Close()
		s.over = nil
	}
	s.kept = backlog{}
	s.cond.Broadcast()
	return nil
}

// sessionTable holds the sessions that may be resumed.
type sessionTable struct {
	mu sync.Mutex
	by map[[16]byte]*session
}

var sessions = sessionTable{by: map[[16]byte]*session{}}

// open reads a new connection's opening. It either begins a session, with at most this grace, and
// returns it, or resumes the session that the opening names and returns nil. It also returns nil if it
// refuses the connection.
func (t *sessionTable) open(c transport, most time.Duration) (s *session, done func()) {
	_ = c.SetReadDeadline(time.Now().Add(openingPatience))
	o, err := readOpening(c)
	_ = c.SetReadDeadline(time.Time{})
	var broken protocolError
	if errors.As(err, &broken) {
		refuse(c, broken.Error())
	}
	if err != nil {
		_ = c.Close()
		return nil, nil
	}
	t.mu.Lock()
	known := t.by[o.id]
	if known == nil && !o.resume {
		s = newSession(c, o, min(o.grace, most))
		if s.grace > 0 {
			t.by[o.id] = s
		}
	}
	t.mu.Unlock()
	if s == nil {
		if known == nil || !o.resume || !known.resume(c, o) {
			_, _ = c.Write(answer(linkUnknown, 0))
			_ = c.Close()
		}
		return nil, nil
	}
	_, _ = c.Write(answer(linkOpened, 0)) // if it fails, so does the first read
	return s, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.by, o.id)
	}
}

// refuse sends a BYE with the reason on a connection that gets no session.
func refuse(w io.Writer, why string) {
	frame := seal(putString(newFrame(64), why), kBye, 0)
	record(frame[:0], recordData, 0, len(frame)-recordSize)
	_, _ = w.Write(append(answer(linkOpened, 0), frame...))
}
