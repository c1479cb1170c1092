// The interpreter: a Python process that starts before any job and forks for each job. PROTOCOL.md
// describes its messages; providers/_agent/interpreter.py is the Python side.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sandboxkit/agent/early"
)

const (
	importPatience = 120 * time.Second
	pongPatience   = 5 * time.Second
	pongPiece      = 100 * time.Millisecond
	// endPatience is how long the interpreter may take to exit after it has closed its socket.
	endPatience = time.Second
	// answerBytes is the space at the start of a job's file for the fork's start error.
	answerBytes = 16
)

var (
	memfdCall  = map[string]uintptr{"amd64": 319, "arm64": 279}
	ioprioCall = map[string]uintptr{"amd64": 252, "arm64": 31}
)

// interpreter is the state of the sandbox's interpreter, which may not exist.
type interpreter struct {
	pid      atomic.Int64 // 0: there is none
	starting atomic.Bool
	gone     atomic.Bool // it has ended
	killed   atomic.Bool // by SIGKILL; it blocks all other signals
	uid      uint32
	exposed  bool        // commands run as its user by default, so they can kill it
	heard    chan string // messages received while no job runs
	socket   *os.File
	facts    map[string]string

	mu    sync.Mutex
	job   *job
	lost  error  // why no more jobs can run
	spare bool   // a spare fork for the next job was requested
	asked uint64 // when the spare fork was requested: it cannot have started earlier
}

var forks = interpreter{heard: make(chan string, 4)}

func (f *interpreter) is(pid int) bool { return pid != 0 && f.pid.Load() == int64(pid) }

// pids returns the interpreter's processes, which a reset must not kill.
func (f *interpreter) pids() map[int]bool {
	if pid := int(f.pid.Load()); pid != 0 && !f.gone.Load() {
		return map[int]bool{pid: true}
	}
	return map[int]bool{}
}

// startInterpreter starts program with the server code source, which imports the modules in preload
// and then runs the code setup. It may be called only once, and before any command, because a command
// could change the files that the interpreter reads at its start.
func (b *sandbox) startInterpreter(program string, preload []string, source, setup string) error {
	if procs.used() || forks.starting.Swap(true) {
		return &startError{"an interpreter is started once, and before any command", syscall.EBUSY}
	}
	id, env, err := b.environment("", nil)
	if err != nil {
		return err
	}
	file, err := findProgram(id, program, b.workdir, env, nil)
	if err != nil {
		forks.starting.Store(false)
		return err
	}
	if !path.IsAbs(file) {
		file = path.Join(b.workdir, file)
	}
	if err := forks.start(b, id, file, program, source, env, append([]string{setup}, preload...)); err != nil {
		forks.end()
		return err
	}
	return nil
}

func (f *interpreter) start(b *sandbox, id identity, file, program, source string, env, modules []string) error {
	errors, err := memoryFile(nil)
	if err != nil {
		return err
	}
	defer errors.Close()
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = syscall.SetNonblock(pair[0], true)
	f.socket = os.NewFile(uintptr(pair[0]), "interpreter")
	// Pass the program's name, too, because the user's PATH may resolve it to a different file.
	argv := []string{file, "-I", "-c", source, program}
	for _, number := range []uint64{startMask, queuedSignals[0], queuedSignals[1],
		early.OpenFiles[0], early.OpenFiles[1]} {
		argv = append(argv, fmt.Sprint(int64(number)))
	}
	procs.mu.Lock() // so that reap does not mistake its exit for an orphan's
	pid, err := f.fork(b, id, file, argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   env,
		Files: []uintptr{b.null, b.null, errors.Fd(), uintptr(pair[1])},
	})
	if err == nil {
		f.pid.Store(int64(pid))
	}
	procs.mu.Unlock()
	syscall.Close(pair[1])
	if err != nil {
		return cannotExecute(program, err)
	}
	go f.listen()
	list, err := memoryFile(modules)
	if err != nil {
		return err
	}
	defer list.Close()
	_ = f.send("modules", int(list.Fd()))
	said := ""
	select {
	case said = <-f.heard:
	case <-time.After(importPatience):
		return &startError{program + " was not ready within " + importPatience.String(), syscall.ETIMEDOUT}
	}
	what, rest, _ := strings.Cut(said, " ")
	switch what {
	case "ready":
		f.facts = factsOf(pid)
		if findings := f.ping(); len(findings) > 0 {
			return &startError{findings[0], syscall.EIO}
		}
		return nil
	case "failed":
		return &startError{program + ": " + rest, 0}
	case "old":
		return &startError{fmt.Sprintf("%s is Python %s; 3.8 is the first that jobs can be forked from",
			program, rest), syscall.EINVAL}
	}
	return &startError{fmt.Sprintf("%s is no Python that jobs can be forked from%s", program,
		lastLine(errors)), syscall.EINVAL}
}

// end kills and reaps an interpreter that failed to start.
func (f *interpreter) end() {
	if pid := int(f.pid.Load()); pid != 0 {
		for !f.gone.Load() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			time.Sleep(time.Millisecond)
			procs.reap()
		}
		f.pid.Store(0)
	}
}

func lastLine(f *os.File) string {
	info, err := f.Stat()
	if err != nil || info.Size() <= answerBytes {
		return ""
	}
	from := max(answerBytes, info.Size()-500)
	data := make([]byte, info.Size()-from)
	n, _ := f.ReadAt(data, from)
	lines := strings.Split(strings.TrimSpace(string(data[:n])), "\n")
	return ": " + strings.ToValidUTF8(lines[len(lines)-1], "?")
}

// memoryFile returns a memory file with space for a start error, then the texts, separated by NUL bytes.
// It returns an error if a text contains a NUL byte.
func memoryFile(texts []string) (*os.File, error) {
	size := answerBytes
	for _, text := range texts {
		if strings.IndexByte(text, 0) >= 0 {
			return nil, &startError{"a text with a NUL byte: " + syscall.EINVAL.Error(), syscall.EINVAL}
		}
		size += len(text) + 1
	}
	content := make([]byte, answerBytes, size)
	content = append(content, strings.Join(texts, "\x00")...)
	name := [1]byte{}
	const closeOnExec = 1
	fd, _, e := syscall.Syscall(memfdCall[runtime.GOARCH],
		uintptr(addressOf(&name[0])), closeOnExec, 0)
	if e != 0 {
		return nil, fmt.Errorf("memfd_create: %w", e)
	}
	f := os.NewFile(fd, "memory")
	if _, err := f.Write(content); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ask sends the interpreter a message and returns its reply. Call it only while no job runs.
func (f *interpreter) ask(message string) (string, error) {
	for len(f.heard) > 0 {
		<-f.heard
	}
	if err := f.send(message); err != nil {
		return "", fmt.Errorf("the interpreter cannot be asked: %w", err)
	}
	// Wait in short intervals, so that a pause of the machine does not use up the time limit.
	for range pongPatience / pongPiece {
		select {
		case said := <-f.heard:
			return said, nil
		case <-time.After(pongPiece):
		}
	}
	return "", errors.New("the interpreter does not answer")
}

// forkAhead requests a spare fork for the next job, if there is an interpreter.
func (f *interpreter) forkAhead() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pid.Load() != 0 && f.lost == nil && !f.spare {
		f.spare, f.asked = true, startTime()
		_ = f.send("spare") // if this fails, the interpreter has ended, and the next job reports it
	}
}

// dropSpare ends a spare fork that no job has used.
func (f *interpreter) dropSpare() []string {
	f.mu.Lock()
	had := f.spare && !f.gone.Load()
	f.spare = false
	f.mu.Unlock()
	if had {
		if said, err := f.ask("drop"); err != nil {
			return []string{err.Error()}
		} else if said != "dropped" {
			return []string{fmt.Sprintf("the interpreter answers %q", said)}
		}
	}
	return nil
}

func (f *interpreter) send(message string, files ...int) error {
	var rights []byte
	if len(files) > 0 {
		rights = syscall.UnixRights(files...)
	}
	raw, err := f.socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Write(func(fd uintptr) bool {
		failed = syscall.Sendmsg(int(fd), []byte(message), rights, nil, syscall.MSG_NOSIGNAL)
		return failed != syscall.EAGAIN
	})
	return errors.Join(failed, err)
}

// listen reads the interpreter's messages until the interpreter ends.
func (f *interpreter) listen() {
	var buf [4096]byte
	for {
		n, err := f.socket.Read(buf[:])
		if n == 0 || (err != nil && err != io.EOF) {
			break
		}
		f.hear(string(buf[:n]))
	}
	f.bereave()
}

func (f *interpreter) hear(message string) {
	f.mu.Lock()
	j := f.job
	f.mu.Unlock()
	if j != nil && !j.over.Load() {
		j.hear(message)
		return
	}
	select {
	case f.heard <- message:
	default:
	}
}

// bereave handles the end of the interpreter. It kills the current job and reports the job's exit as unknown.
func (f *interpreter) bereave() {
	struck := false
	for until := time.Now().Add(endPatience); f.pid.Load() != 0 && !f.gone.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			struck = true
			_ = syscall.Kill(int(f.pid.Load()), syscall.SIGKILL)
		}
		procs.reap()
	}
	f.mu.Lock()
	j := f.job
	f.lost = f.whyEnded(j, struck)
	lost := f.lost
	f.mu.Unlock()
	select {
	case f.heard <- "":
	default:
	}
	if j != nil && !j.over.Swap(true) {
		j.kill()
		j.exit <- ending{lost: lost, peak: unknown}
	}
}

// whyEnded returns the reason why the interpreter ended, with or without a job. EOWNERDEAD means that
// code in the sandbox caused the end. That is certain only if the interpreter was killed: by a process of
// its own user, or by the kernel when the sandbox ran out of memory. An interpreter that exits by itself
// may have reached a limit that it shares with other sandboxes.
func (f *interpreter) whyEnded(j *job, struck bool) error {
	var kills uint64
	if j != nil {
		kills = ownGroup().oomKills.since(j.began.oomKills, j.began.knowsOOMKills)
	}
	switch {
	case struck || !f.killed.Load():
		return &startError{"the sandbox's interpreter has ended by itself", syscall.ENOTRECOVERABLE}
	case kills != 0 && kills != unknown:
		return &startError{"the sandbox's interpreter was killed: out of memory", syscall.EOWNERDEAD}
	case j != nil && j.launch.id.uid == f.uid, j == nil && f.exposed:
		return &startError{"the sandbox's interpreter was killed by what ran in the sandbox",
			syscall.EOWNERDEAD}
	}
	return &startError{"the sandbox's interpreter was killed", syscall.ENOTRECOVERABLE}
}
