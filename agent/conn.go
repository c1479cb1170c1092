// One client's connection: its handshake, its streams, and the frames in both directions.
package main

import (
	"encoding/binary"
	"errors"
	"sync"
)

// A stream is one request in progress on a connection.
type stream struct {
	conn   *conn
	id     uint32
	out    *credit
	in     *inbox
	cancel func()            // stops the work; called once, on its own goroutine
	resize func(r, c uint16) // nil except for a command on a terminal
	begun  func()            // ends the precedence of a command; nil for a call

	once    sync.Once
	stopped chan struct{} // closed by stop
}

func (s *stream) stop() {
	s.once.Do(func() {
		close(s.stopped)
		s.out.close()
		s.in.cancel(errCancelled)
		if s.cancel != nil {
			go s.cancel()
		}
	})
}

// whenStopped makes the stream call do when the client kills the request or its connection ends, unless
// release was called before.
func (s *stream) whenStopped(do func()) (release func()) {
	released := make(chan struct{})
	go func() {
		select {
		case <-s.stopped:
			do()
		case <-released:
		}
	}()
	return func() { close(released) }
}

// send sends data in chunks, and blocks while the client's window is full.
func (s *stream) send(k kind, data []byte) error {
	for len(data) > 0 {
		n, err := s.out.take(min(len(data), chunkSize))
		if err != nil {
			return err
		}
		if n > shortFrame && s.begun != nil {
			s.begun() // otherwise the frame would wait for its own command
		}
		if err := s.conn.write(seal(append(s.conn.link.frame(n), data[:n]...), k, s.id)); err != nil {
			return err
		}
		data = data[n:]
	}
	return nil
}

// end sends a stream's last frame. The client may reuse the stream id once it has received that frame.
func (s *stream) end(k kind, payload []byte) {
	s.conn.mu.Lock()
	delete(s.conn.streams, s.id)
	s.conn.mu.Unlock()
	_ = s.conn.write(seal(append(newFrame(len(payload)), payload...), k, s.id))
}

func (s *stream) fail(err error) {
	payload := putString(binary.BigEndian.AppendUint32(nil, uint32(errnoOf(err))), err.Error())
	if ofFile := (setupError{}); errors.As(err, &ofFile) {
		payload = putString(payload, ofFile.path)
	}
	s.end(kFail, payload)
}

// The roles that a client declares in its HELLO; 0 is an ordinary client. roleOwner brings the sandbox's
// configuration. roleBesideOwner is a further connection of the owner's process, which ends with it.
const (
	roleOwner       = 1
	roleBesideOwner = 2
)

type conn struct {
	sandbox *sandbox
	link    *session
	windows windows
	mu      sync.Mutex
	streams map[uint32]*stream
	closed  bool
	pauses  bool         // its end ends the pause
	kept    keptContents // used by the reading goroutine only
}

func (c *conn) write(buf []byte) error {
	if c.sandbox.ended.Load() {
		return errCancelled // the sandbox is ending and kills its commands: only BYE reports that
	}
	return c.link.send(buf)
}

// bye sends the reason for the connection's end, if the client still reads, and closes the connection.
func (c *conn) bye(reason string) {
	c.link.bye(seal(putString(newFrame(64), reason), kBye, 0))
}

// serve handles a connection until it ends, and then stops all of its streams.
func (c *conn) serve(owner bool) {
	err := c.loop(owner)
	c.mu.Lock()
	c.closed = true
	pauses := c.pauses
	streams := make([]*stream, 0, len(c.streams))
	for _, s := range c.streams {
		streams = append(streams, s)
	}
	c.mu.Unlock()
	for _, s := range streams {
		s.stop()
	}
	if pauses {
		procs.continueAll()
	}
	var broken protocolError
	if errors.As(err, &broken) {
		c.bye(broken.Error())
	}
	_ = c.link.Close()
}

func (c *conn) loop(owner bool) error {
	f, err := readFrame(c.link)
	if err != nil {
		return err
	}
	if f.kind != kHello || f.stream != 0 {
		return protocolError("the first frame must be a hello")
	}
	in := fields{rest: f.payload}
	if string(in.take(len(magic))) != magic {
		return protocolError("bad magic in the hello")
	}
	if version := in.u32(); in.err == nil && version != protocolVersion {
		return protocolError("the client and the agent speak different protocol versions")
	}
	role := in.u8()
	windows := windowsFor(in.u32(), in.u32())
	env, command := in.list(), in.list()
	if err := in.end(); err != nil {
		return err
	}
	c.windows = windows
	if role == roleBesideOwner {
		defer c.sandbox.besideOwner()()
	}
	if role == roleOwner && (owner || c.sandbox.ownerCalls) {
		if err := c.sandbox.configure(env, command); err != nil {
			c.bye(err.Error())
			return err
		}
	}
	welcome := append(binary.BigEndian.AppendUint32(newFrame(64), protocolVersion), bootID[:]...)
	welcome = putString(welcome, c.sandbox.workdir)
	welcome = putString(welcome, string(knownCalls()))
	if err := c.write(seal(welcome, kWelcome, 0)); err != nil {
		return err
	}
	for {
		f, err := readFrame(c.link)
		if err != nil {
			return err
		}
		if err := c.handle(f); err != nil {
			return err
		}
	}
}

func (c *conn) open(id uint32) (*stream, error) {
	if id == 0 {
		return nil, protocolError("stream 0 is the connection's own")
	}
	s := &stream{conn: c, id: id, out: newCredit(c.windows.out), stopped: make(chan struct{})}
	s.in = newInbox(c.windows.in, func(n int) {
		_ = c.write(seal(binary.BigEndian.AppendUint32(newFrame(4), uint32(n)), kCredit, id))
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, used := c.streams[id]; used {
		return nil, protocolError("stream id in use")
	}
	c.streams[id] = s
	return s, nil
}

// handle acts on one frame. It never blocks for long: goroutines do the work.
func (c *conn) handle(f frame) error {
	in := fields{rest: f.payload}
	switch f.kind {
	case kExec:
		request := parseExec(&in)
		if err := in.end(); err != nil {
			return err
		}
		c.kept.complete(request.files)
		s, err := c.open(f.stream)
		if err != nil {
			return err
		}
		s.begun = beginning.enter()
		if request.series != nil {
			e := &seriesExecution{stream: s, request: request}
			s.cancel = e.kill
			go e.run(c.sandbox)
			return nil
		}
		e := &execution{stream: s, request: request}
		s.cancel, s.resize = e.kill, e.resize
		go e.run(c.sandbox)
		return nil
	case kCall:
		work, err := parseCall(&in, c.sandbox)
		if err != nil {
			return err
		}
		s, err := c.open(f.stream)
		if err != nil {
			return err
		}
		go work(s)
		return nil
	}
	c.mu.Lock()
	s := c.streams[f.stream]
	c.mu.Unlock()
	if s == nil {
		return nil // the stream ended while this frame was in transit
	}
	switch f.kind {
	case kData:
		return s.in.put(f.payload)
	case kEOF:
		s.in.finish()
	case kCredit:
		n := in.u32()
		if err := in.end(); err != nil {
			return err
		}
		return s.out.grant(int(n))
	case kResize:
		rows, cols := in.u16(), in.u16()
		if err := in.end(); err != nil {
			return err
		}
		if s.resize != nil {
			s.resize(rows, cols)
		}
	case kKill:
		s.stop()
	default:
		return protocolError("a second hello")
	}
	return nil
}
