// The sandbox agent: PID 1 of a sandbox. It runs commands for the client on its stdin and stdout, and
// ends with that client or at its deadline. PROTOCOL.md describes the stream.
package main

import (
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"path"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"
)

// fatal ends an agent that cannot start. It sends the reason to the owner, as every end of the agent does.
func fatal(err error) {
	fmt.Fprintln(os.Stderr, "sandbox agent:", err)
	if self == 1 {
		refuse(os.Stdout, err.Error())
	}
	os.Exit(70)
}

type options struct {
	lifetime, lease        float64
	detach, noNetwork      bool
	user, workdir, dropEnv string
	imageWorkdir           string
	listenFD               int
	listenPath, owner      string
	beside, gvisor, noRoot bool
	landlock, nameUser     bool
	caps                   uint64
	openFiles              uint64
}

func parseOptions() (o options) {
	flag.Float64Var(&o.lifetime, "lifetime", 0, "seconds until the sandbox ends; 0: none")
	flag.Float64Var(&o.lease, "lease", 0, "seconds that the sandbox outlives its last client; 0: for ever")
	flag.BoolVar(&o.detach, "detach", false, "do not end with the stream on stdin")
	flag.StringVar(&o.user, "user", "", "user of commands and file calls: name or uid, :group optional")
	flag.StringVar(&o.workdir, "workdir", "", "where commands start, made if missing; empty: /workspace, or where that cannot be made a folder of the user's")
	flag.StringVar(&o.imageWorkdir, "image-workdir", "", "the workdir without -workdir, if the user may enter it; \".\": where the agent starts")
	flag.IntVar(&o.listenFD, "listen-fd", -1, "inherited listening socket for further clients")
	flag.StringVar(&o.listenPath, "listen-path", "", "unix socket, abstract with @, for clients from outside")
	flag.StringVar(&o.owner, "owner", "stdin", "where the owner comes from: stdin, or socket as others")
	flag.BoolVar(&o.beside, "beside", false, "be no first process, and let others of the machine be")
	flag.BoolVar(&o.gvisor, "gvisor", false, "the kernel is gVisor: run nothing as the agent's user; whoever reaches the socket may connect")
	flag.BoolVar(&o.landlock, "landlock", false, "the supervisor has started it in a Landlock domain")
	flag.BoolVar(&o.noRoot, "no-root", false, "run nothing as uid 0, whatever its name")
	flag.BoolVar(&o.nameUser, "name-user", false, "add the user to /etc/passwd if it has no such uid")
	flag.BoolVar(&resettable, "resettable", false, "though beside others: the machine is the sandbox's own")
	flag.BoolVar(&o.noNetwork, "no-network", false, "remove all network interfaces but the loopback")
	flag.StringVar(&o.dropEnv, "drop-env", "", "prefix of inherited variables that commands do not get")
	flag.Uint64Var(&o.caps, "command-caps", 0, "mask of capabilities for commands of the agent's own user")
	flag.Uint64Var(&o.openFiles, "open-files", 0, "limit of commands' open files; 0: as the agent was started")
	flag.Parse()
	return o
}

func (o options) check() error {
	switch {
	case flag.NArg() > 0, o.beside == (self == 1):
		return fmt.Errorf("it is started as a sandbox's first process, or with: connect PATH, or: link")
	case o.workdir != "" && !path.IsAbs(o.workdir):
		return fmt.Errorf("workdir %q is not absolute", o.workdir)
	case o.owner != "stdin" && o.owner != "socket":
		return fmt.Errorf("owner %q is neither stdin nor socket", o.owner)
	case o.owner == "socket" && o.listenPath == "":
		return fmt.Errorf("an owner that comes by the socket needs one: -listen-path")
	}
	return nil
}

func main() {
	if !serves {
		if err := lead(os.Args[1], os.Args[2:]); err != nil {
			fatal(err)
		}
		return
	}
	o := parseOptions()
	if err := o.check(); err != nil {
		fatal(err)
	}
	box, err := setUp(o)
	if err != nil {
		fatal(err)
	}
	if o.lifetime > 0 {
		box.renew(seconds(o.lifetime))
	}
	silentBreaks = o.owner == "socket"
	if err := box.listen(o); err != nil {
		fatal(err)
	}
	if o.beside && !o.landlock {
		leaveStarter()
	}
	if o.owner == "stdin" {
		owner, err := ownerStream()
		if err != nil {
			fatal(err)
		}
		if link, done := sessions.open(owner, maxGrace); link != nil {
			box.attach(link, true)
			done()
		} else if !o.detach {
			box.end("its owner went away")
		}
	}
	select {} // the deadline or the lease ends the process
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// listen accepts clients on an inherited socket, on a socket that it makes, or on both. It starts the lease.
func (b *sandbox) listen(o options) error {
	if o.listenFD >= 0 {
		f := os.NewFile(uintptr(o.listenFD), "listener")
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		f.Close()
		go b.accept(l, anybody)
	}
	if o.listenPath != "" {
		l, err := net.Listen("unix", o.listenPath)
		if err != nil {
			return err
		}
		welcome := fromOutside
		if o.beside {
			welcome = ofOwnUser
		} else if o.gvisor {
			welcome = anybody // the folder's mode decides who reaches it
		}
		go b.accept(l, welcome)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renewLease()
	return nil
}

func setUp(o options) (*sandbox, error) {
	runtime.GOMAXPROCS(1) // the agent mostly waits: use fewer threads and wake-ups
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(math.MaxInt64) // an image's variable may say otherwise
	syscall.Umask(0o022)
	if o.landlock {
		var err error
		if confined, err = readConfinement(confinedConfig); err != nil {
			return nil, err
		}
		if err := scoped(); err != nil {
			return nil, err
		}
		syscall.Close(confinedConfig)
	} else if o.beside {
		// On a machine that only this sandbox uses, root's commands keep the vendor's capabilities.
		has, err := getCaps()
		if err != nil {
			return nil, err
		}
		o.caps = has
	}
	if o.noNetwork {
		if err := removeInterfaces(); err != nil {
			return nil, err
		}
	}
	if err := checkGround(o); err != nil {
		return nil, err
	}
	id, err := lookupUser(o.user)
	if err != nil {
		return nil, err
	}
	box := &sandbox{
		user:       id,
		detach:     o.detach,
		ownerCalls: o.owner == "socket",
		lease:      seconds(o.lease),
		drop:       o.dropEnv,
		gvisor:     o.gvisor,
		noRoot:     o.noRoot,
		clients:    map[*conn]bool{},
		identities: sync.OnceValue(func() *identities { return newIdentities(id) }),
	}
	if err := box.refuseRoot(o.user, id); err != nil {
		return nil, err
	}
	places := box.workdirs(o.workdir)
	noWorkdir := box.findWorkdir(places[:1], nil) // needs the privileges that are dropped below
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("/dev/null: %w", err)
	}
	box.null = uintptr(null)
	if err := dropPrivileges(o.caps); err != nil {
		return nil, err
	}
	if err := procs.start(o.caps); err != nil {
		return nil, err
	}
	shieldFromSignals()
	reserveThreads()
	if noWorkdir != nil {
		asUser := func(work func()) error { return filesAs.run(id, work) }
		if err := box.findWorkdir(places, asUser); err != nil {
			return nil, err
		}
	}
	if o.workdir == "" {
		box.startInImage(id, o.imageWorkdir)
	}
	box.user.home = box.homeOf(id)
	if o.nameUser {
		nameUser(box.user)
	}
	queueNoSignals()
	if err := limitCommands(o.openFiles); err != nil {
		return nil, err
	}
	if err := guardLimits(o.beside && os.Getuid() != 0); err != nil {
		return nil, err
	}
	if confined != nil {
		return box, confined.begin(box)
	}
	return box, nil
}

// reservedThreads is one for each file thread, one for the reset, one that the interpreter's start uses up, and 4
// for the Go runtime and for blocking system calls.
// Landlock's are one that starts commands, and two that answer questions.
const reservedThreads = maxFileThreads + 2 + 4 + landlockThreads

// reserveThreads starts threads and leaves them to the Go runtime, which keeps idle threads for ever.
// The runtime ends the process if it cannot start a thread, which a fork bomb could cause.
func reserveThreads() {
	var started, ended sync.WaitGroup
	started.Add(reservedThreads)
	ended.Add(reservedThreads)
	for range reservedThreads {
		go func() {
			runtime.LockOSThread() // a separate thread for each, until all have started
			blockSignals(quiet)
			started.Done()
			started.Wait()
			runtime.UnlockOSThread()
			ended.Done()
		}()
	}
	ended.Wait()
}

// A duplex is the owner's stream: two descriptors, which may be the same socket.
type duplex struct{ in, out *os.File }

func (d duplex) Read(p []byte) (int, error)         { return d.in.Read(p) }
func (d duplex) Write(p []byte) (int, error)        { return d.out.Write(p) }
func (d duplex) SetReadDeadline(t time.Time) error  { return d.in.SetReadDeadline(t) }
func (d duplex) SetWriteDeadline(t time.Time) error { return d.out.SetWriteDeadline(t) }
func (d duplex) Close() error {
	_ = d.out.Close()
	return d.in.Close()
}

// ownerStream moves stdin and stdout to new descriptors and puts /dev/null in their place, so that
// nothing else reads or writes the owner's stream.
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
			time.Sleep(100 * time.Millisecond) // perhaps the process is out of descriptors
			continue
		}
		if u, ok := c.(*net.UnixConn); ok && welcome(u) {
			go b.welcome(u)
		} else {
			c.Close()
		}
	}
}

func (b *sandbox) welcome(c transport) {
	if link, done := sessions.open(c, maxGrace); link != nil {
		b.attach(link, false)
		done()
	}
}
