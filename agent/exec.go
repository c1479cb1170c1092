// Execution of one command: start, input, output, exit and kill.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	flagStdin  = 1
	flagPty    = 2
	flagPython = 4
	flagSetup  = 8
	flagSeries = 16
)

type execRequest struct {
	argv, env  []string
	cwd, user  string
	stdin, pty bool
	rows, cols uint16
	python     bool
	code       string // Python source, for a job that runs in a fork of the interpreter
	setup
	series *series // nil if the command runs once
}

func parseExec(in *fields) execRequest {
	r := execRequest{argv: insideAll(in.list()), env: in.list(), cwd: inside(in.str()), user: in.str()}
	flags := in.u8()
	r.stdin, r.pty = flags&flagStdin != 0, flags&flagPty != 0
	r.rows, r.cols = in.u16(), in.u16()
	if r.python = flags&flagPython != 0; r.python {
		r.code = in.str()
	}
	if flags&flagSetup != 0 {
		if r.setup = parseSetup(in); in.err == nil && r.python {
			in.err = protocolError("a job has no setup")
		}
	}
	if flags&flagSeries != 0 {
		if r.series = parseSeries(in); in.err == nil && (r.python || r.pty || r.stdin) {
			in.err = protocolError("a series is no job, and has neither a terminal nor an open stdin")
		}
	}
	if in.err == nil && len(r.argv) == 0 {
		in.err = protocolError("empty argv")
	}
	return r
}

type execution struct {
	stream  *stream
	request execRequest
	// output receives the command's output; for the main command it appends to the log.
	output func(k kind, data []byte) error

	mu      sync.Mutex
	tree    commandTree
	began   moment
	killed  bool
	exited  bool
	dead    chan struct{} // closed when a kill has finished
	master  *os.File
	gvisor  bool
	readers sync.WaitGroup
}

// A commandTree is the set of a command's processes, which descend from its reaper or from the interpreter.
type commandTree interface {
	ended() <-chan ending
	kill()    // returns once no process is left
	release() // called last, after the outcome is known
}

// The values of the EXIT frame's ending field.
const (
	howExited      = 0
	howSignal      = 1
	howOutOfMemory = 2
)

// An outcome describes how a command ended and what it used. Unknown numbers are all ones.
type outcome struct {
	ending
	how       byte
	throttled uint64
	oomKills  uint64
}

func (o outcome) payload() []byte {
	out := append(binary.BigEndian.AppendUint32(nil, uint32(o.status)), o.how)
	for _, value := range []uint64{o.processor, o.peak, o.throttled} {
		out = binary.BigEndian.AppendUint64(out, value)
	}
	// The cast maps the 64-bit "unknown" to the 32-bit one, and preserves all other values.
	return binary.BigEndian.AppendUint32(out, uint32(min(o.oomKills, uint64(^uint32(0)))))
}

// killedBeforeItBegan is the outcome of a command that was killed before it started.
var killedBeforeItBegan = outcome{
	ending:    ending{status: 128 + int(syscall.SIGKILL), signal: syscall.SIGKILL, peak: unknown},
	how:       howSignal,
	throttled: unknown,
	oomKills:  uint64(^uint32(0)),
}

// run runs a client's command until it exits, and sends EXIT or FAIL.
func (e *execution) run(box *sandbox) {
	defer e.stream.begun()
	e.output = e.stream.send
	started, err := e.start(box)
	if err == errKilled {
		e.stream.end(kExit, killedBeforeItBegan.payload())
		return
	}
	if err == nil {
		var o outcome
		if o, err = e.finish(started, e.stream.in); err == nil {
			e.stream.end(kExit, o.payload())
			return
		}
	}
	e.stream.fail(err)
}

// finish passes input to a running command, waits for its exit and the rest of its output, and
// returns the outcome.
func (e *execution) finish(files pipes, input io.Reader) (outcome, error) {
	if e.request.stdin {
		go e.feed(files.stdin, input)
	} else if files.stdin != nil {
		files.stdin.Close()
	}
	o := outcome{ending: <-e.tree.ended()}
	defer e.tree.release()
	group := ownGroup()
	o.throttled = group.throttled.since(e.began.throttled, e.began.knowsThrottled)
	o.oomKills = group.oomKills.since(e.began.oomKills, e.began.knowsOOMKills)
	e.mu.Lock()
	e.exited = true
	killed := e.killed
	e.mu.Unlock()
	if o.signal != 0 {
		o.how = howSignal
		if o.signal == syscall.SIGKILL && !killed && o.oomKills != 0 && o.oomKills != unknown {
			o.how = howOutOfMemory
		}
	}
	// A background child may hold the output open for ever: read only the bytes that are buffered now.
	now := time.Now()
	for _, f := range []*os.File{files.stdout, files.stderr} {
		if f != nil {
			_ = f.SetReadDeadline(now)
		}
	}
	if killed {
		<-e.dead
	}
	e.readers.Wait()
	if e.request.stdin {
		e.stream.in.cancel(errCancelled)
	}
	if o.lost != nil {
		return o, o.lost
	}
	if o.failed != 0 {
		return o, explain(o.step, o.failed, e.request.argv[0], e.request.cwd)
	}
	return o, nil
}

var errKilled = errors.New("killed before it began")

type pipes struct{ stdin, stdout, stderr *os.File }

func (e *execution) start(box *sandbox) (p pipes, err error) {
	e.dead = make(chan struct{})
	if procs.isPaused() {
		return p, errPaused
	}
	e.gvisor = box.gvisor
	id, env, err := box.environment(e.request.user, e.request.env)
	if err != nil {
		return p, &startError{err.Error(), 0}
	}
	if e.request.cwd == "" {
		e.request.cwd = box.workdir
	}
	cwd := e.request.cwd
	l := launch{argv: e.request.argv, env: env, cwd: cwd, id: id, tty: e.request.pty}
	if !e.request.python {
		if l.path, err = findProgram(id, e.request.argv[0], cwd, env, e.request.files); err != nil {
			return p, err
		}
	}
	l.limits = e.request.limits
	var theirs []int
	defer func() {
		for _, fd := range theirs {
			syscall.Close(fd)
		}
		if err != nil {
			for _, f := range []*os.File{p.stdin, p.stdout, p.stderr} {
				if f != nil {
					f.Close()
				}
			}
		}
	}()
	if e.request.pty {
		var master, slave int
		asUser := filesAs.run(id, func() {
			master, slave, err = openPty(e.request.rows, e.request.cols)
		})
		if err = errors.Join(asUser, err); err != nil {
			return p, err
		}
		e.master = os.NewFile(uintptr(master), "terminal")
		theirs = append(theirs, slave)
		l.fds = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
		p.stdout = e.master
		if p.stdin, err = dupFile(master); err != nil {
			return p, err
		}
	} else {
		l.fds[0] = box.null
		if e.request.stdin {
			var fd int
			if p.stdin, fd, err = newStream(false, id); err != nil {
				return p, err
			}
			theirs = append(theirs, fd)
			l.fds[0] = uintptr(fd)
		}
		for i, f := range []**os.File{&p.stdout, &p.stderr} {
			var fd int
			if *f, fd, err = newStream(true, id); err != nil {
				return p, err
			}
			theirs = append(theirs, fd)
			l.fds[i+1] = uintptr(fd)
		}
	}
	if err = e.spawn(l); err != nil {
		return p, err
	}
	for k, f := range map[kind]*os.File{kStdout: p.stdout, kStderr: p.stderr} {
		if f != nil {
			e.readers.Add(1)
			go e.pump(k, f)
		}
	}
	return p, nil
}

// spawn starts the command and waits until it runs or has failed. e.tree is set before the wait, so
// that kill works while the start hangs.
func (e *execution) spawn(l launch) error {
	reaper, err := e.fork(l)
	if err != nil || reaper == nil {
		return err
	}
	return reaper.begins(l)
}

func (e *execution) fork(l launch) (*reaper, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.killed {
		return nil, errKilled
	}
	before := startTime()
	e.began = ownGroup().now()
	if e.request.python {
		j, err := forks.begin(l, e.request.code, before, e.began)
		if err != nil {
			return nil, err
		}
		e.tree = j
		return nil, nil
	}
	reaper, err := procs.spawn(l)
	if err != nil {
		return nil, err
	}
	e.tree = &tree{reaper: reaper, start: before, uid: l.id.uid, uidOf: uidOf}
	return reaper, nil
}

// newStream returns a pipe like newPipe, but a command of another user can reopen it, as /dev/stdin for
// example, although a pipe belongs to its creator. Only processes that may trace the command can do so.
// gVisor has no modes of pipes: there the command's user makes the pipe.
func newStream(weRead bool, id identity) (ours *os.File, theirs int, err error) {
	if ours, theirs, err = newPipe(weRead); err != nil {
		return nil, 0, err
	}
	if err = syscall.Fchmod(theirs, 0o666); err == nil || err == syscall.EPERM && id.isAgent() {
		return ours, theirs, nil
	}
	ours.Close()
	syscall.Close(theirs)
	if err == syscall.EPERM {
		asUser := filesAs.run(id, func() { ours, theirs, err = newPipe(weRead) })
		err = errors.Join(asUser, err)
	}
	return ours, theirs, err
}

// newPipe returns the agent's end, which is non-blocking, and the descriptor of the command's end.
func newPipe(weRead bool) (ours *os.File, theirs int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, 0, fmt.Errorf("pipe: %w", err)
	}
	mine, other := fds[0], fds[1]
	if !weRead {
		mine, other = other, mine
	}
	if err := syscall.SetNonblock(mine, true); err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(mine), "pipe"), other, nil
}

func dupFile(fd int) (*os.File, error) {
	n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 0)
	if errno != 0 {
		return nil, errno
	}
	return os.NewFile(n, "terminal"), nil
}

// pumpBytes is the payload of a 32 KiB record, which sockets and pipes transfer in one piece.
const pumpBytes = 32<<10 - frameRoom

var buffers = sync.Pool{New: func() any { return new([pumpBytes]byte) }}

// pump sends one output stream until end of file. After the command's exit it sends only the bytes that
// are buffered at that moment; what the command left running may go on writing.
func (e *execution) pump(k kind, f *os.File) {
	if e.send(k, f) {
		go e.abandon(f)
	} else {
		f.Close()
	}
	e.readers.Done()
}

// send sends a stream's output, and reports whether a process may still write to it.
func (e *execution) send(k kind, f *os.File) bool {
	kept := buffers.Get().(*[pumpBytes]byte)
	defer buffers.Put(kept)
	buf := kept[:]
	for {
		n, err := f.Read(buf)
		if n > 0 && e.output(k, buf[:n]) != nil {
			e.discard(f, buf)
			return false
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return e.drain(k, f, buf)
		}
		if err != nil {
			return false // end of file, or EIO from a terminal that no process has open
		}
	}
}

// abandonedStreams bounds the streams that are read for processes that their commands left running. Each has a
// descriptor; a process with one too many gets SIGPIPE at its next write.
var abandonedStreams = make(chan struct{}, 512)

// abandon reads and drops a stream until no process has it open. No buffer is held while nobody writes.
func (e *execution) abandon(f *os.File) {
	defer f.Close()
	select {
	case abandonedStreams <- struct{}{}:
		defer func() { <-abandonedStreams }()
	default:
		return
	}
	stream, err := f.SyscallConn()
	for open := true; open && err == nil; {
		err = stream.Read(func(fd uintptr) bool {
			buf := buffers.Get().(*[pumpBytes]byte)
			defer buffers.Put(buf)
			n, err := syscall.Read(int(fd), buf[:])
			open = n > 0 || err == syscall.EINTR || err == syscall.EAGAIN
			return err != syscall.EAGAIN
		})
	}
}

// discard reads and drops output, so that a command that is being killed does not block in a write.
func (e *execution) discard(f *os.File, buf []byte) {
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}

// drain sends what is buffered after the command's exit, and reports whether a process may still write to the stream.
// The end of a terminal hangs it up for all.
func (e *execution) drain(k kind, f *os.File, buf []byte) bool {
	_ = f.SetReadDeadline(time.Time{})
	if e.request.pty {
		// A terminal delivers output a little after the command wrote it.
		_ = f.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for total := 0; total < 1<<20; {
			n, err := f.Read(buf)
			if n > 0 && e.output(k, buf[:n]) != nil || err != nil {
				return false
			}
			total += n
		}
		return false
	}
	for left := readable(f); left > 0; {
		n, err := f.Read(buf[:min(left, len(buf))])
		if err != nil {
			return false
		}
		if e.output(k, buf[:n]) != nil {
			return true
		}
		left -= n
	}
	return true
}

func (e *execution) feed(to *os.File, from io.Reader) {
	defer to.Close()
	if _, err := io.Copy(to, from); err == nil && e.request.pty {
		_, _ = to.Write([]byte{4}) // Ctrl-D, the terminal's end of input
	}
	_, _ = io.Copy(io.Discard, from)
}

func (e *execution) resize(rows, cols uint16) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tree != nil && !e.exited && e.request.pty {
		if raw, err := e.master.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = resize(int(fd), rows, cols) })
		}
		// gVisor does not tell anybody that a terminal has a new size.
		if t, ok := e.tree.(*tree); ok && e.gvisor && t.reaper.state.main > 0 {
			_ = syscall.Kill(-int(t.reaper.state.main), syscall.SIGWINCH)
		}
	}
}

// kill ends the command's whole process tree. It does nothing after the command has exited, so
// background children keep running.
func (e *execution) kill() {
	e.mu.Lock()
	t := e.tree
	already := e.killed || e.exited
	e.killed = true
	e.mu.Unlock()
	if already || t == nil {
		return
	}
	t.kill()
	close(e.dead)
}
