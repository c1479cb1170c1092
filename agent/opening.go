// The opening of a link: the first bytes that a client sends on a connection, and the agent's reply.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// packedMagic begins the agent's compressed program, which precedes the opening on a starter's stdin.
	packedMagic = "\x1f\x8b"
	// maxCopy is more than that program and its padding.
	maxCopy = 8 << 20
)

// An opening is the first message of a client on a connection.
type opening struct {
	raw      [openingSize]byte
	id       [16]byte
	resume   bool
	grace    time.Duration
	received uint64
}

func readOpening(t transport) (opening, error) {
	var o opening
	if _, err := io.ReadFull(t, o.raw[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return o, protocolError("the connection ended inside its opening")
		}
		return o, err
	}
	in := fields{rest: o.raw[:]}
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

// skipCopy skips a duplicate of a start's first write, which a proxy sent again: the agent's program and
// the opening. The data after it are duplicates, too, and have the same offsets as the originals.
func (c *carrier) skipCopy(opening [openingSize]byte) error {
	for range maxCopy {
		next, err := c.in.Peek(openingSize)
		if err != nil {
			return err
		}
		if bytes.Equal(next, opening[:]) {
			_, err := c.in.Discard(openingSize)
			return err
		}
		_, _ = c.in.Discard(1)
	}
	return protocolError("a copy of the agent's program without the opening behind it")
}
