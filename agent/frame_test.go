package main

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

func encoded(k kind, stream uint32, payload []byte) []byte {
	return seal(append(newFrame(len(payload)), payload...), k, stream)[recordSize:]
}

func TestFramesAreReadAsWritten(t *testing.T) {
	var wire []byte
	for i := range 5 {
		wire = append(wire, encoded(kData, uint32(i), bytes.Repeat([]byte{1}, i*1000))...)
	}
	r := bytes.NewReader(wire)
	for i := range 5 {
		f, err := readFrame(r)
		if err != nil || f.kind != kData || f.stream != uint32(i) || len(f.payload) != i*1000 {
			t.Fatalf("frame %d: %v %v", i, f.kind, err)
		}
	}
	if _, err := readFrame(r); err != io.EOF {
		t.Fatalf("a clean end gave %v", err)
	}
}

func TestMalformedFramesAreProtocolErrors(t *testing.T) {
	for name, wire := range map[string][]byte{
		"half a header":  {0, 0},
		"half a payload": encoded(kData, 1, []byte("abc"))[:10],
		"too large":      {0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 1},
		"unknown type":   {0, 0, 0, 0, 99, 0, 0, 0, 1},
	} {
		var broken protocolError
		if _, err := readFrame(bytes.NewReader(wire)); !errors.As(err, &broken) {
			t.Errorf("%s gave %v", name, err)
		}
	}
}

func TestFieldsRefuseWhatIsShortOrLong(t *testing.T) {
	payload := putString(putString([]byte{0, 0, 0, 2}, "a"), "bc")
	in := fields{rest: payload}
	if got := in.list(); !slices.Equal(got, []string{"a", "bc"}) || in.end() != nil {
		t.Fatalf("%q %v", got, in.err)
	}
	for cut := range len(payload) {
		in := fields{rest: payload[:cut]}
		if in.list(); in.end() == nil {
			t.Errorf("%d of %d bytes were enough", cut, len(payload))
		}
	}
	in = fields{rest: append(payload, 0)}
	if in.list(); in.end() == nil {
		t.Error("a byte too many was accepted")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add(encoded(kHello, 0, []byte(magic)))
	f.Add(encoded(kExec, 7, putString([]byte{0, 0, 0, 1}, "true")))
	f.Add([]byte{0, 0, 0, 0, 99, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, wire []byte) {
		r := bytes.NewReader(wire)
		for {
			at := len(wire) - r.Len()
			got, err := readFrame(r)
			if err != nil {
				return
			}
			end := len(wire) - r.Len()
			if !bytes.Equal(encoded(got.kind, got.stream, got.payload), wire[at:end]) {
				t.Fatal("a frame that is read is not the one that was sent")
			}
			in := fields{rest: got.payload}
			parseExec(&in)
			if in.end() == nil && len(got.payload) < 21 {
				t.Fatal("an exec from too few bytes")
			}
			in = fields{rest: got.payload}
			_, _ = parseCall(&in, &sandbox{})
		}
	})
}

// memory is a connection that keeps what is written.
type memory struct {
	transport
	written []byte
}

func (m *memory) Write(p []byte) (int, error) {
	m.written = append(m.written[:0], p...)
	return len(p), nil
}

func TestBuffersOfLongFramesAreReusedUnlessTheSessionKeepsThem(t *testing.T) {
	payload := bytes.Repeat([]byte{1}, chunkSize)
	for _, grace := range []time.Duration{0, time.Minute} {
		m := &memory{written: make([]byte, 0, 2*chunkSize)}
		s := newSession(m, opening{}, grace)
		send := func() { _ = s.send(seal(append(s.frame(chunkSize), payload...), kStdout, 1)) }
		if allocated := testing.AllocsPerRun(20, send); (allocated < 1) != (grace == 0) {
			t.Errorf("with a grace of %v a frame allocates %v buffers", grace, allocated)
		}
		if !bytes.Equal(m.written, append(record(nil, recordData, s.sent-uint64(len(payload)+headerSize),
			len(payload)+headerSize), encoded(kStdout, 1, payload)...)) {
			t.Error("the frame was not written as it is")
		}
	}
}
