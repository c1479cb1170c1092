// The link under the frames: a byte stream that may outlive the connections which carry it. Every
// record says where in the stream it belongs, so what a broken connection lost is sent again.
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

	// keepBytes is what is kept of unacknowledged data; above it a writer waits.
	keepBytes = 4 << 20
	ackEvery  = 1 << 20
	maxRecord = maxPayload + headerSize
	maxGrace  = 10 * time.Minute
	// deadAfter is how long a connection may be silent whose client may come back: it pings.
	deadAfter = 60 * time.Second

	openingPatience = 10 * time.Second
)

// bootID tells this agent from another one that was started in its place.
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

// An opening is the first thing a client sends on a connection.
type opening struct {
	id       [16]byte
	resume   bool
	grace    time.Duration
	received uint64
}

func readOpening(t transport) (opening, error) {
	var o opening
	var raw [openingSize]byte
	if _, err := io.ReadFull(t, raw[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return o, protocolError("the connection ended inside its opening")
		}
		return o, err
	}
	in := fields{rest: raw[:]}
	if string(in.take(len(linkMagic))) != linkMagic {
		return o, protocolError("the first bytes are not a link's")
	}
	if in.u8() != protocolVersion {
		return o, protocolError(fmt.Sprintf("the agent speaks version %d of its protocol only", protocolVersion))
	}
	copy(o.id[:], in.take(16))
	o.resume = in.u8() == 1
	o.grace = min(time.Duration(in.u32())*time.Millisecond, maxGrace)
	o.received = in.u64()
	return o, in.err
}

func answer(verdict byte, received uint64) []byte {
	out := append([]byte(linkMagic), protocolVersion, verdict)
	return binary.BigEndian.AppendUint64(out, received)
}

// A carrier is one connection under a session, and the reader's place in it.
type carrier struct {
	transport
	in   *bufio.Reader
	left int // bytes of the record that is being read
}

func newCarrier(t transport) *carrier {
	return &carrier{transport: t, in: bufio.NewReaderSize(t, chunkSize)}
}

// A session is what a client's frames travel over. With a grace it survives its connection for
// that long; without one it ends with it, and nothing is kept.
type session struct {
	grace time.Duration

	// writing is held while a record is written: records follow each other, and none is lost
	// between two connections.
	writing sync.Mutex

	mu       sync.Mutex
	cond     *sync.Cond
	over     *carrier // nil while there is no connection
	received uint64   // of the client's bytes, by the reader
	acked    uint64   // of these, told to the client
	sent     uint64   // bytes written so far
	kept     backlog  // the newest of them, which the client may not have
	closed   bool
	owing    bool // an acknowledgement is on its way
	expiry   *time.Timer
}

func newSession(t transport, grace time.Duration) *session {
	s := &session{grace: grace, over: newCarrier(t)}
	s.cond = sync.NewCond(&s.mu)
	return s
}

// resume goes on over a new connection, with what the client has not received.
func (s *session) resume(t transport, o opening) bool {
	s.drop(nil) // whoever writes to the old one holds the lock
	s.writing.Lock()
	defer s.writing.Unlock()
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

// drop lets a broken connection go: `of`, or whichever there is. Without a grace that is the end.
func (s *session) drop(of *carrier) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over == nil || (of != nil && s.over != of) {
		return
	}
	_ = s.over.Close()
	s.over = nil
	if s.grace == 0 {
		s.closed = true
	} else if !s.closed {
		s.expiry = time.AfterFunc(s.grace, func() { _ = s.Close() })
	}
	s.cond.Broadcast()
}

// current waits for a connection; nil when the session is over.
func (s *session) current() *carrier {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.over == nil && !s.closed {
		s.cond.Wait()
	}
	return s.over
}

// Read gives the client's bytes, each once and in order. There is one reader.
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
			return 0, err // it may still be written to
		}
		if err != nil {
			s.drop(c)
		}
	}
}

// readFrom reads on in the record that has begun, or the beginning of the next one. It returns 0
// and no error where that carried no data.
func (s *session) readFrom(c *carrier, p []byte) (int, error) {
	if s.grace > 0 {
		_ = c.SetReadDeadline(time.Now().Add(deadAfter))
	}
	if c.left == 0 {
		if err := s.nextRecord(c); err != nil || c.left == 0 {
			return 0, err
		}
	}
	n, err := c.in.Read(p[:min(len(p), c.left)])
	s.mu.Lock()
	if s.over != c {
		s.mu.Unlock()
		return 0, nil // given up meanwhile: these bytes come again over the next one
	}
	c.left -= n
	s.received += uint64(n)
	owed := s.grace > 0 && s.received-s.acked >= ackEvery
	s.mu.Unlock()
	if owed {
		s.owe(c)
	}
	if n > 0 {
		return n, nil // an error comes again
	}
	return 0, err
}

func (s *session) nextRecord(c *carrier) error {
	var head [recordSize]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return err
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
		case offset != s.received:
			return protocolError(fmt.Sprintf("byte %d came where %d is due", offset, s.received))
		}
		c.left = int(size)
		return nil
	case recordAck:
		return s.acknowledged(offset)
	case recordPing:
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

// owe acknowledges what was received, soon. The reader never waits for a writer: the client's
// might, and then nobody would read any more.
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
	s.writing.Lock()
	defer s.writing.Unlock()
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

// send writes a buffer that begins with room for a record's head, and is the session's from now on.
// While there is no connection the bytes are only kept; when too many are, it waits.
func (s *session) send(buf []byte) error {
	data := buf[recordSize:]
	s.writing.Lock()
	defer s.writing.Unlock()
	s.mu.Lock()
	for s.kept.size > keepBytes && !s.closed {
		s.writing.Unlock() // for whoever resumes, and for acknowledgements
		s.cond.Wait()
		s.mu.Unlock()
		s.writing.Lock()
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
	return nil
}

// bye writes last words, as far as the client still listens, and closes the session.
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

// open begins a session on a new connection, with at most this grace, or carries on one that lost
// its own. It returns nil where there is nothing more to do.
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
		s = newSession(c, min(o.grace, most))
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

// refuse says on a connection without a session why there will be none.
func refuse(w io.Writer, why string) {
	frame := seal(putString(newFrame(64), why), kBye, 0)
	record(frame[:0], recordData, 0, len(frame)-recordSize)
	_, _ = w.Write(append(answer(linkOpened, 0), frame...))
}
