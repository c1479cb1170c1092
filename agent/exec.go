// One command: started, fed, listened to, and ended.
package main

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	flagStdin = 1
	flagPty   = 2
)

type execRequest struct {
	argv, env  []string
	cwd, user  string
	stdin, pty bool
	rows, cols uint16
}

func parseExec(in *fields) execRequest {
	r := execRequest{argv: in.list(), env: in.list(), cwd: in.str(), user: in.str()}
	flags := in.u8()
	r.stdin, r.pty = flags&flagStdin != 0, flags&flagPty != 0
	r.rows, r.cols = in.u16(), in.u16()
	if in.err == nil && len(r.argv) == 0 {
		in.err = protocolError("empty argv")
	}
	return r
}

func newMarker() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

type execution struct {
	stream  *stream
	request execRequest
	marker  string
	// output gets what the command writes; for the main command it is the log.
	output func(k kind, data []byte) error

	mu      sync.Mutex
	tree    *tree
	killed  bool
	exited  bool
	dead    chan struct{} // closed when a kill has finished
	master  *os.File
	readers sync.WaitGroup
}

// run runs a client's command to its end and reports it.
func (e *execution) run(box *sandbox) {
	e.output = e.stream.send
	status := e.execute(box, e.stream.in)
	if status < 0 {
		return // it failed already
	}
	e.stream.end(kExit, binary.BigEndian.AppendUint32(nil, uint32(status)))
}

// A refusal is a command that could not be started, as a shell would report it.
type refusal struct {
	status int
	text   string
}

func (e *execution) execute(box *sandbox, input io.Reader) int {
	e.dead = make(chan struct{})
	files, exit, err := e.start(box)
	if err != nil {
		r := refusal{126, err.Error()}
		if errors.Is(err, errBadUser) && e.stream != nil {
			e.stream.fail(err)
			return -1
		}
		var no *refusedError
		if errors.As(err, &no) {
			r = no.refusal
		}
		_ = e.output(kStderr, []byte("sandboxkit: "+r.text+"\n"))
		return r.status
	}
	defer box.commands.remove(e)
	if e.request.stdin {
		go e.feed(files.stdin, input)
	} else if files.stdin != nil {
		files.stdin.Close()
	}
	status := <-exit
	e.mu.Lock()
	e.exited = true
	killed := e.killed
	e.mu.Unlock()
	// A background child may hold the output open for ever: what is there now is read, no more.
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
	return status
}

// errBadUser marks a request that asks for a user the sandbox does not have.
var errBadUser = errors.New("give a user that the sandbox has")

type refusedError struct{ refusal }

func (e *refusedError) Error() string { return e.text }

type pipes struct{ stdin, stdout, stderr *os.File }

func (e *execution) start(box *sandbox) (p pipes, exit chan int, err error) {
	id, env, err := box.environment(e.request.user, e.request.env)
	if err != nil {
		return p, nil, errors.Join(err, errBadUser)
	}
	env = append(env, markerName+"="+e.marker)
	cwd := e.request.cwd
	if cwd == "" {
		cwd = box.workdir
	}
	path, err := findProgram(id, e.request.argv[0], cwd, env)
	if err != nil {
		return p, nil, err
	}
	l := launch{path: path, argv: e.request.argv, env: env, cwd: cwd, id: id, tty: e.request.pty}
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
			return p, nil, err
		}
		e.master = os.NewFile(uintptr(master), "terminal")
		theirs = append(theirs, slave)
		l.fds = [3]uintptr{uintptr(slave), uintptr(slave), uintptr(slave)}
		p.stdout = e.master
		if p.stdin, err = dupFile(master); err != nil {
			return p, nil, err
		}
	} else {
		l.fds[0] = box.null
		if e.request.stdin {
			var fd int
			if p.stdin, fd, err = newPipe(false); err != nil {
				return p, nil, err
			}
			theirs = append(theirs, fd)
			l.fds[0] = uintptr(fd)
		}
		for i, f := range []**os.File{&p.stdout, &p.stderr} {
			var fd int
			if *f, fd, err = newPipe(true); err != nil {
				return p, nil, err
			}
			theirs = append(theirs, fd)
			l.fds[i+1] = uintptr(fd)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.killed {
		return p, nil, &refusedError{refusal{128 + int(syscall.SIGKILL), "killed"}}
	}
	before := startTime()
	pid, exit, err := procs.spawn(l)
	if err != nil {
		return p, nil, explain(id, err, e.request.argv[0], cwd)
	}
	e.tree = &tree{root: pid, start: before, marker: e.marker, id: id}
	e.tree.others = func(session int) bool { return box.commands.hasSession(session, e) }
	box.commands.add(e)
	for k, f := range map[kind]*os.File{kStdout: p.stdout, kStderr: p.stderr} {
		if f != nil {
			e.readers.Add(1)
			go e.pump(k, f)
		}
	}
	return p, exit, nil
}

// newPipe returns our non-blocking end and the descriptor of theirs.
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

const pumpBytes = 32 << 10

var buffers = sync.Pool{New: func() any { return new([pumpBytes]byte) }}

// pump sends one stream of output until its end, or what was left when the command exited.
func (e *execution) pump(k kind, f *os.File) {
	defer e.readers.Done()
	defer f.Close()
	kept := buffers.Get().(*[pumpBytes]byte)
	defer buffers.Put(kept)
	buf := kept[:]
	for {
		n, err := f.Read(buf)
		if n > 0 && e.output(k, buf[:n]) != nil {
			e.discard(f, buf)
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			e.drain(k, f, buf)
			return
		}
		if err != nil {
			return // end of file, or EIO: a terminal that nobody has open any more
		}
	}
}

// discard reads on for a command that is being killed, so that it is not stuck in a write.
func (e *execution) discard(f *os.File, buf []byte) {
	for {
		if _, err := f.Read(buf); err != nil {
			return
		}
	}
}

func (e *execution) drain(k kind, f *os.File, buf []byte) {
	_ = f.SetReadDeadline(time.Time{})
	if e.request.pty {
		// A terminal's output reaches us a little after it was written.
		_ = f.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		for total := 0; total < 1<<20; {
			n, err := f.Read(buf)
			if n > 0 && e.output(k, buf[:n]) != nil || err != nil {
				return
			}
			total += n
		}
		return
	}
	for left := readable(f); left > 0; {
		n, err := f.Read(buf[:min(left, len(buf))])
		if n > 0 && e.output(k, buf[:n]) != nil || err != nil {
			return
		}
		left -= n
	}
}

func (e *execution) feed(to *os.File, from io.Reader) {
	defer to.Close()
	if _, err := io.Copy(to, from); err == nil && e.request.pty {
		_, _ = to.Write([]byte{4}) // what a terminal's user types to end the input
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
	}
}

// kill ends the whole tree; a command that has exited keeps its background children.
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

// explain turns a failed start into what a shell would say.
func explain(id identity, err error, program, cwd string) error {
	var dir error
	_ = filesAs.run(id, func() {
		var fd int
		if fd, dir = syscall.Open(cwd+"/.", syscall.O_RDONLY|0x200000|syscall.O_CLOEXEC, 0); dir == nil {
			syscall.Close(fd)
		}
	})
	if dir != nil {
		return &refusedError{refusal{126, fmt.Sprintf("cannot enter %s: %v", cwd, dir)}}
	}
	return &refusedError{refusal{126, fmt.Sprintf("cannot execute %s: %v", program, err)}}
}

// findProgram looks argv[0] up as execvp does, as the command's user, in the command's PATH.
func findProgram(id identity, name, cwd string, env []string) (path string, err error) {
	err = &refusedError{refusal{127, name + ": command not found"}}
	as := filesAs.run
	if id.isAgent() {
		// What is only looked at needs no other thread: two switches less for a command.
		as = func(_ identity, job func()) error { job(); return nil }
	}
	_ = as(id, func() {
		if fd, e := syscall.Open(cwd+"/.", syscall.O_RDONLY|0x200000|syscall.O_CLOEXEC, 0); e != nil {
			err = &refusedError{refusal{126, fmt.Sprintf("cannot enter %s: %v", cwd, e)}}
			return
		} else {
			syscall.Close(fd)
		}
		if name == "" {
			return
		}
		candidates := []string{name}
		if !strings.Contains(name, "/") {
			candidates = candidates[:0]
			for _, dir := range strings.Split(lookupEnv(env, "PATH"), ":") {
				candidates = append(candidates, dir+"/"+name)
			}
		}
		for _, candidate := range candidates {
			full := candidate
			if !strings.HasPrefix(candidate, "/") {
				full = cwd + "/" + candidate
			}
			var st syscall.Stat_t
			if e := syscall.Stat(full, &st); e != nil {
				if e != syscall.ENOENT && e != syscall.ENOTDIR {
					err = &refusedError{refusal{126, fmt.Sprintf("cannot execute %s: %v", name, e)}}
				}
				continue
			}
			if st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Mode&0o111 == 0 {
				err = &refusedError{refusal{126, fmt.Sprintf("cannot execute %s: %v", name, syscall.EACCES)}}
				continue
			}
			path, err = candidate, nil
			return
		}
	})
	return path, err
}

func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}
