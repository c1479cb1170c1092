// Dispatch of CALL frames: requests with one response, and file transfers.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"
)

type op uint8

const (
	opRead       op = 1
	opWrite      op = 2
	opStat       op = 3
	opList       op = 4
	opRemove     op = 5
	opPutArchive op = 6
	opGetArchive op = 7
	opRenew      op = 8
	opLogs       op = 9
	opWait       op = 10
	opStats      op = 11
	opReset      op = 12
	opPython     op = 13
	opConnect    op = 14
	opListen     op = 15
	opAccept     op = 16
	opPause      op = 18

	// canSetUp is no operation. Its presence in WELCOME says that EXEC may have a setup.
	canSetUp = 17
	// canKeep is no operation either. It says that the files of a setup may be kept.
	canKeep = 19
	// canRunSeries is no operation either. It says that EXEC may have a series.
	canRunSeries = 20
)

// knownCalls lists every operation, for WELCOME.
func knownCalls() (known []byte) {
	for o := opRead; o <= opAccept; o++ {
		known = append(known, byte(o))
	}
	return append(known, canSetUp, byte(opPause), canKeep, canRunSeries)
}

func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	if errors.Is(err, errCancelled) {
		return syscall.ECANCELED
	}
	return syscall.EIO
}

// parseCall reads a call's arguments and returns the function that performs the call. That function
// also sends the stream's last frame.
func parseCall(in *fields, b *sandbox) (func(*stream), error) {
	var work func(s *stream) ([]byte, error)
	asUser, whilePaused := true, false
	switch o := op(in.u8()); o {
	case opRead:
		path, limit := inside(in.str()), in.u64()
		work = func(s *stream) ([]byte, error) { return nil, readFile(s, path, limit) }
	case opWrite:
		path, mode, more, data := inside(in.str()), in.u32(), in.u8() == 1, in.bytes()
		work = func(s *stream) ([]byte, error) {
			if !more {
				s.in.finish()
			}
			return nil, writeFile(path, mode, data, s.in)
		}
	case opStat:
		path := in.str()
		work = func(*stream) ([]byte, error) { return statPath(path) }
	case opList:
		path := in.str()
		work = func(s *stream) ([]byte, error) { return nil, listDir(s, path) }
	case opRemove:
		path, recursive := inside(in.str()), in.u8() == 1
		work = func(*stream) ([]byte, error) { return nil, removePath(path, recursive) }
	case opPutArchive:
		path := inside(in.str())
		work = func(s *stream) ([]byte, error) { return nil, putArchive(path, s.in) }
	case opGetArchive:
		path := inside(in.str())
		work = func(s *stream) ([]byte, error) { return nil, getArchive(s, path) }
	case opRenew:
		seconds := math.Float64frombits(in.u64())
		asUser, whilePaused = false, true
		work = func(*stream) ([]byte, error) {
			if !(seconds > 0 && seconds < 1e9) {
				return nil, fmt.Errorf("lifetime of %v seconds: %w", seconds, syscall.EINVAL)
			}
			b.renew(time.Duration(seconds * float64(time.Second)))
			return nil, nil
		}
	case opLogs:
		asUser, whilePaused = false, true
		work = func(s *stream) ([]byte, error) { return nil, s.send(kStdout, b.main.logs()) }
	case opWait:
		asUser, whilePaused = false, true
		work = func(s *stream) ([]byte, error) { return waitMain(s, b) }
	case opStats:
		asUser, whilePaused = false, true
		work = func(*stream) ([]byte, error) { return stats(), nil }
	case opReset:
		asUser = false
		work = func(s *stream) ([]byte, error) { return b.reset(s) }
	case opPython:
		program, preload, source, setup := in.str(), in.list(), in.str(), in.str()
		asUser = false
		work = func(*stream) ([]byte, error) {
			return nil, b.startInterpreter(program, preload, source, setup)
		}
	case opConnect:
		port := in.u16()
		asUser = false
		work = func(s *stream) ([]byte, error) { return nil, b.connectPort(s, port) }
	case opListen:
		port := in.u16()
		asUser = false
		work = func(s *stream) ([]byte, error) { return nil, b.listenPort(s, port) }
	case opAccept:
		port := in.u16()
		asUser, whilePaused = false, true
		work = func(s *stream) ([]byte, error) { return nil, acceptPort(s, port) }
	case opPause:
		how := in.u8()
		asUser, whilePaused = false, true
		work = func(s *stream) ([]byte, error) {
			return nil, s.conn.pause(how)
		}
	default:
		if in.err == nil {
			in.rest = nil // the arguments have an unknown form
		}
		asUser = false
		work = func(*stream) ([]byte, error) {
			return nil, fmt.Errorf("unknown call %d: %w", o, syscall.ENOSYS)
		}
	}
	if err := in.end(); err != nil {
		return nil, err
	}
	return func(s *stream) {
		var answer []byte
		var err error
		if !whilePaused && procs.isPaused() {
			err = errPaused
		} else if asUser {
			if err = b.jobs.refuse(""); err == nil {
				if e := filesAs.run(b.as(), func() { answer, err = work(s) }); e != nil {
					err = e
				}
			}
		} else {
			answer, err = work(s)
		}
		if err != nil {
			s.fail(err)
			return
		}
		s.end(kDone, answer)
	}, nil
}

func waitMain(s *stream, b *sandbox) ([]byte, error) {
	cancelled := make(chan struct{})
	go func() {
		// The read returns when the stream ends, either by a KILL frame or with its connection.
		_, _ = s.in.Read(make([]byte, 1))
		close(cancelled)
	}()
	status, ok, err := b.main.wait(cancelled)
	s.in.cancel(errCancelled)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("the sandbox has no main command: %w", syscall.EINVAL)
	}
	return binary.BigEndian.AppendUint32(nil, uint32(status)), nil
}
