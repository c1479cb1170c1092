// The wire format: length-prefixed frames and the fields inside them. See PROTOCOL.md.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	protocolVersion = 3
	magic           = "SBXK"
	headerSize      = 9
	maxPayload      = 4 << 20
	chunkSize       = 64 << 10
	minWindow       = 64 << 10
	maxWindow       = 8 << 20
)

// windows are the initial credits of a stream in bytes: out for the agent, in for the client. The client
// chooses both to suit the connection.
type windows struct{ out, in int }

func windowsFor(out, in uint32) windows {
	bounded := func(n uint32) int { return int(min(max(n, minWindow), maxWindow)) }
	return windows{bounded(out), bounded(in)}
}

type kind uint8

const (
	kHello   kind = 1
	kExec    kind = 2
	kData    kind = 3
	kEOF     kind = 4
	kCredit  kind = 5
	kResize  kind = 6
	kKill    kind = 7
	kCall    kind = 8
	kWelcome kind = 16
	kStdout  kind = 17
	kStderr  kind = 18
	kExit    kind = 19
	kDone    kind = 20
	kFail    kind = 21
	kBye     kind = 22
	kOpened  kind = 23
)

type frame struct {
	kind    kind
	stream  uint32
	payload []byte
}

// A protocolError ends the connection. The peer gets its text in a BYE frame.
type protocolError string

func (e protocolError) Error() string { return "protocol error: " + string(e) }

func readFrame(r io.Reader) (frame, error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return frame{}, protocolError("stream ended inside a frame header")
		}
		return frame{}, err
	}
	size := binary.BigEndian.Uint32(head[0:])
	if size > maxPayload {
		return frame{}, protocolError(fmt.Sprintf("frame of %d bytes, the limit is %d", size, maxPayload))
	}
	f := frame{kind: kind(head[4]), stream: binary.BigEndian.Uint32(head[5:])}
	if f.kind < kHello || f.kind > kCall {
		return frame{}, protocolError(fmt.Sprintf("unknown frame type %d", head[4]))
	}
	f.payload = make([]byte, size)
	if _, err := io.ReadFull(r, f.payload); err != nil {
		return frame{}, protocolError("stream ended inside a frame")
	}
	return f, nil
}

// frameRoom is the number of bytes before a frame's payload, for the heads of the record and the frame.
const frameRoom = recordSize + headerSize

// newFrame returns a buffer that begins with frameRoom bytes. seal fills in the frame's header, and
// session.send the record's.
func newFrame(capacity int) []byte { return make([]byte, frameRoom, frameRoom+capacity) }

func seal(buf []byte, k kind, stream uint32) []byte {
	binary.BigEndian.PutUint32(buf[recordSize:], uint32(len(buf)-frameRoom))
	buf[recordSize+4] = byte(k)
	binary.BigEndian.PutUint32(buf[recordSize+5:], stream)
	return buf
}

func putString(buf []byte, s string) []byte {
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(s)))
	return append(buf, s...)
}

// fields reads the fields of a payload. It keeps the first error; later reads return zero values.
type fields struct {
	rest []byte
	err  error
}

func (f *fields) take(n int) []byte {
	if f.err == nil && n > len(f.rest) {
		f.err = protocolError("payload too short")
	}
	if f.err != nil {
		return nil
	}
	out := f.rest[:n]
	f.rest = f.rest[n:]
	return out
}

func (f *fields) u8() uint8 {
	if b := f.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (f *fields) u16() uint16 {
	if b := f.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (f *fields) u32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) u64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (f *fields) bytes() []byte {
	n := f.u32()
	if f.err == nil && uint64(n) > uint64(len(f.rest)) {
		f.err = protocolError("payload too short")
	}
	return f.take(int(n))
}

func (f *fields) str() string { return string(f.bytes()) }

func (f *fields) list() []string {
	n := int(f.u32())
	if f.err == nil && n > len(f.rest)/4 {
		f.err = protocolError("payload too short")
	}
	if f.err != nil {
		return nil
	}
	out := make([]string, 0, n)
	for range n {
		out = append(out, f.str())
	}
	return out
}

// end returns the first error, or an error if bytes are left over.
func (f *fields) end() error {
	if f.err == nil && len(f.rest) > 0 {
		f.err = protocolError(fmt.Sprintf("%d bytes too many in a payload", len(f.rest)))
	}
	return f.err
}
