// Connections to and from the sandbox's loopback ports; one call carries each connection.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	maxConnections = 256
	connectLimit   = 10 * time.Second
	backlogLength  = 128
)

// connections holds one element per carried connection, and so limits their number.
var connections = make(chan struct{}, maxConnections)

// A portListener listens on one port of the loopback for as long as its LISTEN call is open.
type portListener struct {
	accepted chan *net.TCPConn // a waiting connection also has an element in connections
	closed   chan struct{}
}

var listeners = struct {
	sync.Mutex
	byPort map[uint16]*portListener
}{byPort: map[uint16]*portListener{}}

func loopback(port uint16) *syscall.SockaddrInet4 {
	return &syscall.SockaddrInet4{Port: int(port), Addr: [4]byte{127, 0, 0, 1}}
}

func loopback6(port uint16) *syscall.SockaddrInet6 {
	return &syscall.SockaddrInet6{Port: int(port), Addr: [16]byte{15: 1}}
}

// socket returns a TCP socket of an address family that belongs to the sandbox's user, and on which
// prepare was called with that user's rights.
func (b *sandbox) socket(family int, prepare func(fd int) error) (*os.File, error) {
	if err := b.jobs.refuse(""); err != nil {
		return nil, err
	}
	var fd int
	var err error
	if e := filesAs.run(b.as(), func() {
		const kind = syscall.SOCK_STREAM | syscall.SOCK_NONBLOCK | syscall.SOCK_CLOEXEC
		if fd, err = syscall.Socket(family, kind, 0); err != nil {
			return
		}
		if err = prepare(fd); err != nil {
			syscall.Close(fd)
		}
	}); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "socket"), nil
}

// connectPort carries one connection to a port of the loopback.
func (b *sandbox) connectPort(s *stream, port uint16) error {
	select {
	case connections <- struct{}{}:
	default:
		return fmt.Errorf("%d connections are open: %w", maxConnections, syscall.EMFILE)
	}
	defer func() { <-connections }()
	c, err := b.dial(s, port)
	if err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	return carry(s, c, port, func(*net.TCPConn) bool { return true })
}

// dial connects to 127.0.0.1, or to ::1 if nothing listens there. If neither can be reached it returns
// the error of 127.0.0.1.
func (b *sandbox) dial(s *stream, port uint16) (*net.TCPConn, error) {
	c, err := b.dialTo(s, syscall.AF_INET, loopback(port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		if c, e := b.dialTo(s, syscall.AF_INET6, loopback6(port)); e == nil {
			return c, nil
		}
	}
	return c, err
}

func (b *sandbox) dialTo(s *stream, family int, to syscall.Sockaddr) (*net.TCPConn, error) {
	file, err := b.socket(family, func(int) error { return nil })
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := file.SetDeadline(time.Now().Add(connectLimit)); err != nil {
		return nil, err
	}
	release := s.whenStopped(func() { _ = file.SetDeadline(time.Now()) })
	defer release()
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	waited := raw.Write(func(fd uintptr) bool {
		failed = syscall.Connect(int(fd), to)
		return !errors.Is(failed, syscall.EINPROGRESS) && !errors.Is(failed, syscall.EALREADY)
	})
	switch {
	case errors.Is(waited, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("what listens there accepts no connection: %w", syscall.ETIMEDOUT)
	case waited != nil:
		return nil, waited
	case failed != nil && !errors.Is(failed, syscall.EISCONN):
		return nil, failed
	}
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// listenPort listens on a port of the loopback, or on a free one for port 0, until its call is killed.
func (b *sandbox) listenPort(s *stream, port uint16) error {
	file, err := b.socket(syscall.AF_INET, func(fd int) error {
		if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
			return err
		}
		if err := syscall.Bind(fd, loopback(port)); err != nil {
			return err
		}
		return syscall.Listen(fd, backlogLength)
	})
	if err != nil {
		return fmt.Errorf("port %d: %w", port, err)
	}
	l, err := net.FileListener(file)
	file.Close()
	if err != nil {
		return err
	}
	port = uint16(l.Addr().(*net.TCPAddr).Port)
	t := &portListener{make(chan *net.TCPConn), make(chan struct{})}
	listeners.Lock()
	listeners.byPort[port] = t
	listeners.Unlock()
	go t.acceptAll(l)
	err = s.opened(port)
	if err == nil {
		<-s.stopped
		err = errCancelled
	}
	listeners.Lock()
	delete(listeners.byPort, port)
	listeners.Unlock()
	close(t.closed)
	l.Close()
	return err
}

// acceptAll accepts connections and passes each to an ACCEPT call before it accepts the next one. The
// others wait in the kernel's queue.
func (t *portListener) acceptAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(50 * time.Millisecond) // no descriptor or no memory is left: retry
			continue
		}
		select {
		case connections <- struct{}{}:
		case <-t.closed:
			abort(c.(*net.TCPConn))
			return
		}
		select {
		case t.accepted <- c.(*net.TCPConn):
		case <-t.closed:
			<-connections
			abort(c.(*net.TCPConn))
			return
		}
	}
}

// acceptPort carries the next connection to a port on which a LISTEN call listens.
func acceptPort(s *stream, port uint16) error {
	listeners.Lock()
	t := listeners.byPort[port]
	listeners.Unlock()
	if t == nil {
		return fmt.Errorf("no call listens on port %d: %w", port, syscall.ENOENT)
	}
	select {
	case c := <-t.accepted:
		defer func() { <-connections }()
		return carry(s, c, port, isHeld)
	case <-s.stopped:
		return errCancelled
	case <-t.closed:
		return fmt.Errorf("port %d is no longer listened on: %w", port, syscall.ECANCELED)
	}
}

// opened sends OPENED, which precedes all data of a connection, or reports that a listener is ready.
func (s *stream) opened(port uint16) error {
	return s.conn.write(seal(binary.BigEndian.AppendUint16(newFrame(2), port), kOpened, s.id))
}

// carry joins a connection to its stream until both directions have ended, or the program has ended its own
// and is not there any more. It closes the connection. A killed call resets it.
func carry(s *stream, c *net.TCPConn, port uint16, there func(*net.TCPConn) bool) error {
	defer c.Close()
	release := s.whenStopped(func() { abort(c) })
	defer release()
	if err := s.opened(port); err != nil {
		return err
	}
	inbound := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(onlyWriter{c}, onlyReader{s.in}, make([]byte, chunkSize))
		if err == nil {
			err = c.CloseWrite()
		}
		inbound <- err // after a failed write there may still be data to read
	}()
	err := carryOut(s, c)
	for err == nil {
		select {
		case err = <-inbound:
			if err != nil {
				abort(c)
			}
			return err
		case <-time.After(time.Second):
			if !there(c) {
				err = fmt.Errorf("the program has closed the connection: %w", syscall.ECONNRESET)
			}
		}
	}
	abort(c)
	s.in.cancel(err)
	<-inbound
	return err
}

// held is what /proc/net says of all connections; it is read at most twice a second.
var held struct {
	sync.Mutex
	read  time.Time
	lines [][]byte
}

// isHeld reports whether a program has the other end of a connection open. The kernel lists an end without
// an inode once nobody has it.
func isHeld(c *net.TCPConn) bool {
	held.Lock()
	defer held.Unlock()
	if time.Since(held.read) > time.Second/2 {
		v4, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			return true
		}
		v6, _ := os.ReadFile("/proc/net/tcp6") // a socket of IPv6 may be connected to 127.0.0.1
		held.lines, held.read = bytes.Split(append(v4, v6...), []byte{'\n'}), time.Now()
	}
	theirs := fmt.Appendf(nil, ":%04X", c.RemoteAddr().(*net.TCPAddr).Port)
	ours := fmt.Appendf(nil, ":%04X", c.LocalAddr().(*net.TCPAddr).Port)
	for _, line := range held.lines {
		f := bytes.Fields(line)
		if len(f) > 9 && bytes.HasSuffix(f[1], theirs) && bytes.HasSuffix(f[2], ours) {
			return string(f[9]) != "0"
		}
	}
	return false
}

const bulkBytes = 4 * pumpBytes

// bulkBuffers are for connections whose data fill a buffer of pumpBytes: larger reads cost less per byte.
var bulkBuffers = sync.Pool{New: func() any { return new([bulkBytes]byte) }}

// carryOut sends the data that arrive on a connection to the client, and EOF at their end.
func carryOut(s *stream, c *net.TCPConn) error {
	small := buffers.Get().(*[pumpBytes]byte)
	defer buffers.Put(small)
	for buf := small[:]; ; {
		n, err := c.Read(buf)
		if e := s.send(kStdout, buf[:n]); e != nil {
			return e
		}
		switch isBulk := len(buf) > pumpBytes; {
		case isBulk && n < pumpBytes:
			bulkBuffers.Put((*[bulkBytes]byte)(buf))
			buf = small[:]
		case !isBulk && n == pumpBytes:
			buf = bulkBuffers.Get().(*[bulkBytes]byte)[:]
		}
		if errors.Is(err, io.EOF) {
			return s.conn.write(seal(newFrame(0), kEOF, s.id))
		}
		if err != nil {
			return err
		}
	}
}

// abort closes a connection with a reset, which leaves nothing in TIME_WAIT.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}
