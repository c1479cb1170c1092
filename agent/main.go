// The sandbox agent: PID 1 of a sandbox, which runs its commands for the client on its stdin
// and stdout, and ends with that client or at its deadline. PROTOCOL.md describes the stream.
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fatal ends an agent that cannot start; its owner hears why, like at any other end.
func fatal(err error) {
	fmt.Fprintln(os.Stderr, "sandbox agent:", err)
	if os.Getpid() == 1 {
		_, _ = os.Stdout.Write(seal(putString(newFrame(64), err.Error()), kBye, 0))
	}
	os.Exit(70)
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == "connect" {
		if err := bridge(os.Args[2]); err != nil {
			fatal(err)
		}
		return
	}
	lifetime := flag.Float64("lifetime", 0, "seconds until the sandbox ends; 0: none")
	detach := flag.Bool("detach", false, "do not end with the stream on stdin")
	user := flag.String("user", "", "user of commands and file calls: name or uid, :group optional")
	workdir := flag.String("workdir", "/workspace", "where commands start; created if missing")
	listenFD := flag.Int("listen-fd", -1, "inherited listening socket for further clients")
	listenPath := flag.String("listen-path", "", "unix socket, abstract with @, for clients from outside")
	caps := flag.Uint64("command-caps", 0, "mask of capabilities for commands of the agent's own user")
	flag.Parse()
	if os.Getpid() != 1 || flag.NArg() > 0 {
		fatal(fmt.Errorf("it is started as a sandbox's first process, or with: connect PATH"))
	}
	if !path.IsAbs(*workdir) {
		fatal(fmt.Errorf("workdir %q is not absolute", *workdir))
	}
	box, err := setUp(*user, *workdir, *detach, *caps)
	if err != nil {
		fatal(err)
	}
	if *lifetime > 0 {
		box.renew(time.Duration(*lifetime * float64(time.Second)))
	}
	if *listenFD >= 0 {
		f := os.NewFile(uintptr(*listenFD), "listener")
		l, err := net.FileListener(f)
		if err != nil {
			fatal(err)
		}
		f.Close()
		go box.accept(l, func(*net.UnixConn) bool { return true })
	}
	if *listenPath != "" {
		l, err := net.Listen("unix", *listenPath)
		if err != nil {
			fatal(err)
		}
		go box.accept(l, fromOutside)
	}
	owner, err := ownerStream()
	if err != nil {
		fatal(err)
	}
	box.attach(owner, true)
	select {} // detached: the deadline ends it
}

func setUp(user, workdir string, detach bool, caps uint64) (*sandbox, error) {
	runtime.GOMAXPROCS(1) // it waits for others nearly always: fewer threads, fewer wake-ups
	debug.SetGCPercent(50)
	syscall.Umask(0o022)
	id, err := lookupUser(user)
	if err != nil {
		return nil, err
	}
	box := &sandbox{
		user:    id,
		workdir: path.Clean(workdir),
		detach:  detach,
		env:     nil,
		clients: map[*conn]bool{},
	}
	if err := box.makeWorkdir(); err != nil {
		return nil, err
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/null: %w", err)
	}
	box.null = uintptr(null)
	if err := dropPrivileges(caps); err != nil {
		return nil, err
	}
	if err := procs.start(caps); err != nil {
		return nil, err
	}
	shieldFromSignals()
	reserveThreads()
	return box, nil
}

const reservedThreads = 16

// reserveThreads starts threads and leaves them to the runtime, which keeps idle ones for ever: it
// ends the process if it cannot start one, which a fork bomb at the limit of processes would cause.
func reserveThreads() {
	var started, ended sync.WaitGroup
	started.Add(reservedThreads)
	ended.Add(reservedThreads)
	for range reservedThreads {
		go func() {
			runtime.LockOSThread() // a thread of its own, until all are there
			started.Done()
			started.Wait()
			runtime.UnlockOSThread()
			ended.Done()
		}()
	}
	ended.Wait()
}

// A duplex is the owner's stream: two descriptors, or one socket twice.
type duplex struct{ in, out *os.File }

func (d duplex) Read(p []byte) (int, error)         { return d.in.Read(p) }
func (d duplex) Write(p []byte) (int, error)        { return d.out.Write(p) }
func (d duplex) SetWriteDeadline(t time.Time) error { return d.out.SetWriteDeadline(t) }
func (d duplex) Close() error {
	_ = d.out.Close()
	return d.in.Close()
}

// ownerStream takes stdin and stdout away, so that nothing else reads or writes them.
func ownerStream() (duplex, error) {
	var d duplex
	for fd, f := range []**os.File{&d.in, &d.out} {
		n, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), syscall.F_DUPFD_CLOEXEC, 10)
		if errno != 0 {
			return d, fmt.Errorf("stdin and stdout: %w", errno)
		}
		if err := syscall.SetNonblock(int(n), true); err != nil {
			return d, err
		}
		*f = os.NewFile(n, "owner")
	}
	null, err := syscall.Open("/dev/null", syscall.O_RDWR, 0)
	if err != nil {
		return d, err
	}
	for fd := range 2 {
		if err := syscall.Dup3(null, fd, 0); err != nil {
			return d, err
		}
	}
	return d, syscall.Close(null)
}

func (b *sandbox) accept(l net.Listener, welcome func(*net.UnixConn) bool) {
	for {
		c, err := l.Accept()
		if err != nil {
			time.Sleep(100 * time.Millisecond) // out of descriptors, perhaps
			continue
		}
		if u, ok := c.(*net.UnixConn); ok && welcome(u) {
			go b.attach(u, false)
		} else {
			c.Close()
		}
	}
}

// fromOutside tells whether the peer is no process of the sandbox: the host's root, whom this pid
// namespace does not show, or one that entered from outside, whose parent it does not show. A
// process that started inside has the agent for a last resort.
func fromOutside(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var peer *syscall.Ucred
	err2 := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || err2 != nil || peer.Pid == 1 {
		return false
	}
	if peer.Pid == 0 {
		return peer.Uid == 0
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(int(peer.Pid)) + "/status")
	return err == nil && strings.Contains(string(status), "\nPPid:\t0\n")
}

// bridge joins stdin and stdout to the agent's socket.
func bridge(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	u := c.(*net.UnixConn)
	go func() {
		buf := make([]byte, chunkSize)
		for {
			n, err := os.Stdin.Read(buf)
			if n > 0 {
				if _, e := u.Write(buf[:n]); e != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		_ = u.CloseWrite()
	}()
	buf := make([]byte, chunkSize)
	for {
		n, err := u.Read(buf)
		if n > 0 {
			if _, e := os.Stdout.Write(buf[:n]); e != nil {
				return nil
			}
		}
		if err != nil {
			return nil
		}
	}
}
