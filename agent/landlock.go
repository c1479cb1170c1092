// Landlock: a sandbox without namespaces. Each process is in one of three domains, each within the one before: the
// supervisor's scopes signals, the agent's has the sandbox's files and no network, and each command has one of its
// own, from which no signal reaches the agent, a reaper or another command.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

const (
	landlockCreate, landlockAdd, landlockRestrict = 444, 445, 446

	// The rights of Landlock's fifth version, the last that has new ones.
	rightsAll     = 1<<16 - 1
	rightsRead    = 1 | 1<<2 | 1<<3                    // execute, read files and folders
	rightsWrite   = rightsAll &^ (1<<6 | 1<<9 | 1<<11) // make no devices and no sockets
	rightsDevice  = 1<<1 | 1<<2 | 1<<14 | 1<<15
	rightsOfFiles = 1 | 1<<1 | 1<<2 | 1<<14 | 1<<15

	netAll, scopeAll = 3, 3 // TCP; abstract sockets and signals

	landlockThreads = 3

	superviseVerb = "supervise"
	// The agent's descriptors, besides the first three and the listener.
	confinedConfig, confinedLife = 4, 5
)

// A confinement says what a sandbox's processes may do. The owner sends it as JSON.
type confinement struct {
	CommandLimits [][2]uint64 // resource and value
	Read, Write   []string    // files and folders; all that may be written is the sandbox's own
	Devices       []string
	AgentDevices  []string // those that the agent alone may open
	Filters       [][]byte // of system calls
	Asks          bool     // the last filter asks the agent about changes of modes and times
	Workdir       string
	Memory        uint64 // bytes of all processes together; 0: not watched
	Processes     int    // 0: not watched

	ruleset uintptr
	starter *thread
}

// confined is nil unless the sandbox has Landlock for its namespaces.
var confined *confinement

// killsAll reports whether kill(-1) reaches the processes of the sandbox and no others.
func killsAll() bool { return self == 1 || confined != nil }

func init() {
	if len(os.Args) > 1 && os.Args[1] == superviseVerb {
		runtime.LockOSThread() // to the first thread, whose domain decides who may signal the process
	}
}

// scoped proves that the process is in a domain which its parent is not in. Without one, a kill(-1) would end every
// process that the user may signal.
func scoped() error {
	if err := syscall.Kill(os.Getppid(), 0); err != syscall.EPERM {
		return fmt.Errorf("landlock does not scope signals: kill says %v", err)
	}
	return nil
}

//go:uintptrescapes
func landlock(call, a, b, c, d uintptr) (uintptr, error) {
	n, _, e := syscall.RawSyscall6(call, a, b, c, d, 0, 0)
	if e != 0 {
		return 0, fmt.Errorf("landlock: %w", e)
	}
	return n, nil
}

// ruleset returns a descriptor of the rules of a domain that has no rights yet.
func ruleset(files, network, scope uint64) (uintptr, error) {
	attributes := [3]uint64{files, network, scope}
	return landlock(landlockCreate, uintptr(unsafe.Pointer(&attributes)), unsafe.Sizeof(attributes), 0, 0)
}

// newRuleset returns a descriptor of the rules of commands and of what more may be read and opened. They also refuse
// TCP, and scope signals and abstract sockets.
func (c *confinement) newRuleset(read, devices []string) (uintptr, error) {
	rules, err := ruleset(rightsAll, netAll, scopeAll)
	for rights, paths := range map[uint64][]string{rightsRead: append(read, c.Read...), rightsWrite: c.Write,
		rightsDevice: append(devices, c.Devices...)} {
		for _, name := range paths {
			if err == nil {
				err = allow(rules, name, rights)
			}
		}
	}
	return rules, err
}

func allow(rules uintptr, name string, rights uint64) error {
	fd, err := syscall.Open(name, oPath|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT || err == syscall.EACCES {
		return nil // it is not on this machine, or not for its user
	} else if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer syscall.Close(fd)
	var st syscall.Stat_t
	if err := syscall.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		rights &= rightsOfFiles
	}
	rule := struct {
		rights uint64
		fd     int32
	}{rights, int32(fd)}
	_, err = landlock(landlockAdd, rules, 1, uintptr(unsafe.Pointer(&rule)), 0)
	return err
}

// restrict puts the calling thread into a new domain.
func restrict(rules uintptr) error {
	_, err := landlock(landlockRestrict, rules, 0, 0, 0)
	return err
}

func readConfinement(fd int) (*confinement, error) {
	data, err := os.ReadFile("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return nil, err
	}
	c := &confinement{}
	return c, json.Unmarshal(data, c)
}

// confine becomes the supervisor, in a domain that scopes signals: OWNER CONFIG LISTENER INFO AGENT-FLAGS... The program
// begins anew, so that all its threads are in the domain.
func confine(args []string) error {
	runtime.LockOSThread()
	if err := syscall.Kill(os.Getppid(), 0); err != nil {
		return fmt.Errorf("its owner: %w", err)
	}
	rules, err := ruleset(0, 0, scopeAll)
	if err != nil {
		return err
	}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		return e
	}
	if err := errors.Join(restrict(rules), scoped()); err != nil {
		return err
	}
	owner, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if n, err := syscall.Read(owner, make([]byte, 1)); n <= 0 { // until the owner has limited this process
		return fmt.Errorf("its owner went away: %v", err)
	}
	argv := append([]string{"sandboxkit-supervisor", superviseVerb}, args[1:]...)
	return syscall.Exec("/proc/self/exe", argv, os.Environ())
}

// supervise starts the agent in a domain of its own, and kills whatever is left of the sandbox when it has ended.
func supervise(args []string) error {
	if err := scoped(); err != nil {
		return err
	}
	const closeOnExec, most = 4, ^uint32(0)
	syscall.RawSyscall(sysCloseRange, 3, uintptr(most), closeOnExec)
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	signal.Notify(make(chan os.Signal, 1)) // none ends it
	var fds [3]int
	for i := range fds {
		var err error
		if fds[i], err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	c, err := readConfinement(fds[0])
	if err != nil {
		return err
	}
	agent, err := c.startAgent(fds[0], fds[1], args[3:])
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(os.NewFile(uintptr(fds[2]), "info"), "{\"child-pid\": %d}\n", agent); err != nil {
		return err
	}
	if _, err := supervisorLives.Write([]byte{1}); err != nil {
		return err
	}
	var status, ended syscall.WaitStatus
	for pid := 0; pid != agent; {
		if pid, err = syscall.Wait4(-1, &ended, wallOption, nil); err == syscall.ECHILD {
			break
		}
	}
	for status = ended; err != syscall.ECHILD; _, err = syscall.Wait4(-1, &ended, wallOption, nil) {
		_ = syscall.Kill(-1, syscall.SIGKILL)
	}
	os.Exit(status.ExitStatus() & 0x7f)
	return nil
}

// startAgent starts the agent, which holds the sandbox's connections alone.
func (c *confinement) startAgent(config, listener int, flags []string) (pid int, err error) {
	life, alive, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer life.Close()
	rules, err := c.newRuleset([]string{"/proc/self/exe"}, c.AgentDevices)
	if err != nil {
		return 0, err
	}
	argv := append([]string{"sandboxkit-agent", "-beside", "-landlock"}, flags...)
	how := &syscall.ProcAttr{Dir: "/", Env: os.Environ(), Sys: &syscall.SysProcAttr{Setsid: true},
		Files: []uintptr{0, 1, 2, uintptr(listener), uintptr(config), life.Fd()}}
	starter, err := newThread(func() (failed error) {
		if failed = restrict(rules); failed == nil {
			pid, failed = syscall.ForkExec("/proc/self/exe", argv, how)
		}
		return failed
	})
	if err != nil {
		return 0, err
	}
	starter.stop()
	null, err := syscall.Open("/dev/null", syscall.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	for fd := range 2 {
		if err := syscall.Dup3(null, fd, 0); err != nil {
			return 0, err
		}
	}
	syscall.Close(listener)
	runtime.KeepAlive(alive)
	supervisorLives = alive
	return pid, nil
}

// supervisorLives is open as long as the supervisor runs.
var supervisorLives *os.File

// begin prepares the start of commands, and watches the supervisor and the sandbox's memory.
func (c *confinement) begin(b *sandbox) (err error) {
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	if c.ruleset, err = c.newRuleset(nil, nil); err != nil {
		return err
	}
	syscall.CloseOnExec(int(c.ruleset))
	if c.starter, err = newThread(c.filter); err != nil {
		return err
	}
	life := os.NewFile(confinedLife, "supervisor")
	syscall.CloseOnExec(confinedLife)
	if _, err := life.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("its supervisor: %w", err) // it has told the owner who the agent is
	}
	go func() {
		_, _ = life.Read(make([]byte, 1))
		b.end("its supervisor was killed")
	}()
	if c.Memory > 0 || c.Processes > 0 {
		if _, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", self)); err != nil {
			return err
		}
		go c.watch(b)
	}
	return nil
}

// filter applies the filters of system calls to the calling thread and to what it starts.
func (c *confinement) filter() error {
	const asks = 8 // SECCOMP_FILTER_FLAG_NEW_LISTENER
	for i, code := range c.Filters {
		program := struct {
			length uint16
			at     unsafe.Pointer
		}{uint16(len(code) / 8), unsafe.Pointer(&code[0])}
		flags := uintptr(0)
		if c.Asks && i == len(c.Filters)-1 {
			flags = asks
		}
		fd, _, e := syscall.RawSyscall(seccompCall[runtime.GOARCH], setModeFilter, flags, uintptr(unsafe.Pointer(&program)))
		if e != 0 {
			return fmt.Errorf("seccomp: %w", e)
		}
		if flags != 0 {
			go c.answer(int(fd))
		}
	}
	return nil
}

// start calls fork on the thread whose children have the filters.
func (c *confinement) start(fork func()) {
	if c == nil {
		fork()
	} else {
		c.starter.do(fork)
	}
}

// confineThread puts the calling thread, which starts one program and ends, where commands are.
func (c *confinement) confineThread() error {
	if c == nil {
		return nil
	}
	return errors.Join(c.filter(), restrict(c.ruleset))
}

// limited adds the limits of every command to those that one asks for.
func (c *confinement) limited(asked []resourceLimit) []resourceLimit {
	if c == nil {
		return asked
	}
	for _, own := range c.CommandLimits {
		for i := range asked {
			if asked[i].resource == uintptr(own[0]) {
				asked[i].value = [2]uint64{min(asked[i].value[0], own[1]), min(asked[i].value[1], own[1])}
				own[1] = unknown
			}
		}
		if own[1] != unknown {
			asked = append(asked, resourceLimit{uintptr(own[0]), [2]uint64{own[1], own[1]}})
		}
	}
	return asked
}

// inside returns where a path of the default workdir or of /tmp is: the sandbox has folders of its own for both, which
// nothing can mount there.
func inside(name string) string {
	if confined == nil || strings.HasPrefix(name, path.Dir(confined.Workdir)+"/") {
		return name
	}
	for from, to := range map[string]string{defaultWorkdir: "workspace", "/tmp": "tmp"} {
		if rest, below := strings.CutPrefix(name, from); below && (rest == "" || rest[0] == '/') {
			return path.Dir(confined.Workdir) + "/" + to + rest
		}
	}
	return name
}

// insideAll does the same for each word of a command line that is such a path.
func insideAll(words []string) []string {
	for i := range words {
		words[i] = inside(words[i])
	}
	return words
}
