// The interpreter: a Python that is started before any job, and forked for each. What it is told
// and tells is in PROTOCOL.md; its own half is in_sandbox/interpreter.py.
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
	// The first bytes of a job's file are for why it could not be started.
	answerBytes = 16
)

var (
	memfdCall  = map[string]uintptr{"amd64": 319, "arm64": 279}
	ioprioCall = map[string]uintptr{"amd64": 252, "arm64": 31}
)

// interpreter is the one of the sandbox, which may have none.
type interpreter struct {
	pid      atomic.Int64 // 0: there is none
	starting atomic.Bool
	gone     atomic.Bool // it has ended
	heard    chan string // what it says while no job runs
	socket   *os.File
	facts    map[string]string

	mu    sync.Mutex
	job   *job
	lost  error  // why there can be no job any more
	spare bool   // it was asked to fork ahead of the next job
	asked uint64 // and no such fork started before
}

var forks = interpreter{heard: make(chan string, 4)}

func (f *interpreter) is(pid int) bool { return pid != 0 && f.pid.Load() == int64(pid) }

// pids are the interpreter's processes, which a reset spares.
func (f *interpreter) pids() map[int]bool {
	if pid := int(f.pid.Load()); pid != 0 && !f.gone.Load() {
		return map[int]bool{pid: true}
	}
	return map[int]bool{}
}

// startInterpreter starts `program` on the server `source`, with the modules `preload` imported and
// then the code `setup` run. Once only, and before any command: afterwards what it reads at its
// start could be a command's work.
func (b *sandbox) startInterpreter(program string, preload []string, source, setup string) error {
	if procs.used() || forks.starting.Swap(true) {
		return &startError{"an interpreter is started once, and before any command", syscall.EBUSY}
	}
	id, env, err := b.environment("", nil)
	if err != nil {
		return err
	}
	file, err := findProgram(id, program, b.workdir, env)
	if err != nil {
		forks.starting.Store(false)
		return err
	}
	if !path.IsAbs(file) {
		file = path.Join(b.workdir, file)
	}
	if err := forks.start(b, file, program, source, env, append([]string{setup}, preload...)); err != nil {
		forks.end()
		return err
	}
	return nil
}

func (f *interpreter) start(b *sandbox, file, program, source string, env, modules []string) error {
	has, err := getCaps()
	if err != nil {
		return err
	}
	var keep []uintptr
	for _, c := range []uintptr{capKill, capSetgid, capSetuid} {
		if has&(1<<c) != 0 {
			keep = append(keep, c)
		}
	}
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
	// A user's PATH may lead elsewhere than the agent's rights do: the name is given apart.
	argv := []string{file, "-I", "-c", source, program}
	for _, number := range []uint64{startMask, queuedSignals[0], queuedSignals[1],
		early.OpenFiles[0], early.OpenFiles[1]} {
		argv = append(argv, fmt.Sprint(int64(number)))
	}
	procs.mu.Lock() // so that its end is not taken for an orphan's
	pid, err := syscall.ForkExec(file, argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   env,
		Files: []uintptr{b.null, b.null, errors.Fd(), uintptr(pair[1])},
		Sys:   &syscall.SysProcAttr{Setsid: true, AmbientCaps: keep},
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
		said = "failed it was not ready within " + importPatience.String()
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

// end is for one that could not be started.
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

// memoryFile returns one with texts in it, which no NUL is in, after the room for an answer.
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

// ask returns its answer to a message, while no job runs.
func (f *interpreter) ask(message string) (string, error) {
	for len(f.heard) > 0 {
		<-f.heard
	}
	if err := f.send(message); err != nil {
		return "", fmt.Errorf("the interpreter cannot be asked: %w", err)
	}
	// In pieces: time in which this machine stood still is not counted.
	for range pongPatience / pongPiece {
		select {
		case said := <-f.heard:
			return said, nil
		case <-time.After(pongPiece):
		}
	}
	return "", errors.New("the interpreter does not answer")
}

// forkAhead has a fork made for the next job, where there is an interpreter.
func (f *interpreter) forkAhead() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pid.Load() != 0 && f.lost == nil && !f.spare {
		f.spare, f.asked = true, startTime()
		_ = f.send("spare") // who cannot be told has ended, which the next job is told
	}
}

// dropSpare ends a fork that no job was there for.
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

// listen hears what the interpreter says, until it ends.
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

// bereave ends the job of an interpreter that has ended: how, nobody can say any more.
func (f *interpreter) bereave() {
	for pid := int(f.pid.Load()); pid != 0 && !f.gone.Load(); time.Sleep(time.Millisecond) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		procs.reap()
	}
	f.mu.Lock()
	j := f.job
	f.lost = &startError{"the sandbox's interpreter has ended", syscall.EOWNERDEAD}
	if j != nil {
		f.lost = j.bereft()
	}
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
