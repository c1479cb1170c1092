// Checks of clients that connect to the agent's socket, and the programs that join stdin and stdout to it.
package main

import (
	"bytes"
	"encoding/base64"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func peerOf(c *net.UnixConn) (*syscall.Ucred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *syscall.Ucred
	if e := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); e != nil {
		return nil, e
	}
	return peer, err
}

// fromOutside reports whether the peer comes from outside the sandbox. Such a peer is the host's root,
// which has pid 0 in this pid namespace, or entered the namespace from outside, and so has the parent
// pid 0. A process that started inside never has the parent 0, because the agent adopts orphans.
func fromOutside(c *net.UnixConn) bool {
	peer, err := peerOf(c)
	if err != nil || peer.Pid == 1 {
		return false
	}
	if peer.Pid == 0 {
		return peer.Uid == 0
	}
	status, err := os.ReadFile("/proc/" + strconv.Itoa(int(peer.Pid)) + "/status")
	return err == nil && strings.Contains(string(status), "\nPPid:\t0\n")
}

// anybody accepts every peer.
func anybody(*net.UnixConn) bool { return true }

// ofOwnUser reports whether the peer runs as the agent's own user. Commands of that user may connect,
// too, which gives them no additional rights.
func ofOwnUser(c *net.UnixConn) bool {
	peer, err := peerOf(c)
	return err == nil && int(peer.Uid) == os.Getuid()
}

// lead runs one of the agent's client verbs. `connect PATH` joins stdin and stdout to an agent that is
// a sandbox's first process. `link [-start] -socket=PATH [-- FLAGS]` joins them to an agent that runs
// beside other processes, and starts that agent on request. `keep` and `restore` are a snapshot of files, `pack`
// and `unpack` one of folders in memory.
func lead(verb string, args []string) error {
	// The client's traffic passes through this process: prevent other processes of the user from tracing it.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	switch verb {
	case "connect":
		if len(args) != 1 {
			return fmt.Errorf("give one path: connect PATH")
		}
		c, err := net.Dial("unix", args[0])
		if err != nil {
			return err
		}
		return bridge(c.(*net.UnixConn))
	case "launch":
		// Let the parent exit at once: a vendor that kills a call's children must not find the agent
		// among them.
		process, err := os.StartProcess("/proc/self/exe", append([]string{"sandboxkit-agent"}, args...), &os.ProcAttr{
			Dir:   "/",
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
		if err != nil {
			return err
		}
		return process.Release()
	case "link":
		set := flag.NewFlagSet("link", flag.ExitOnError)
		socket := set.String("socket", "", "the agent's socket, abstract with @")
		start := set.Bool("start", false, "start the agent unless it runs, with the flags after --")
		_ = set.Parse(args)
		return link(*socket, *start, set.Args())
	case "keep", "restore", "unstage", "pack", "unpack":
		runtime.LockOSThread() // they change the user of their thread
		verbs := map[string]func([]string) error{"keep": keep, "restore": restore, "unstage": unstage,
			"pack": packFolders, "unpack": unpackFolders}
		return verbs[verb](args)
	case "confine":
		return confine(args)
	case superviseVerb:
		return supervise(args)
	case "stage":
		return stage(args)
	}
	return fmt.Errorf("%q is none of confine, connect, link, launch, keep, restore, stage, unstage, pack and unpack", verb)
}

// firstVariable is the environment variable with the client's first bytes in base64, if the command that
// starts the agent carries them. It is no argument, because every process may read a command line.
const firstVariable = "SANDBOXKIT_FIRST"

func link(socket string, start bool, flags []string) error {
	given, err := base64.StdEncoding.DecodeString(os.Getenv(firstVariable))
	if err != nil {
		return say("fails", fmt.Errorf("the client's first bytes are not base64: %w", err))
	}
	_ = os.Unsetenv(firstVariable) // the agent and its commands do not inherit it
	c, err := net.Dial("unix", socket)
	if err != nil && start {
		flags = append([]string{"-beside", "-owner=socket", "-listen-path=" + socket}, flags...)
		if err := startBeside(flags); err != nil {
			return say("fails", err)
		}
		c, err = net.Dial("unix", socket)
	}
	if err != nil {
		return say("none", err)
	}
	u := c.(*net.UnixConn)
	// Any user may bind the abstract name once the agent is gone.
	if !ofOwnUser(u) {
		return say("none", fmt.Errorf("what listens at %s is not of this user", socket))
	}
	if err := wake(u); err != nil {
		return say("none", err)
	}
	if err := say("agent", nil); err != nil {
		return err
	}
	if start {
		first := given
		if len(first) == 0 {
			if first, err = afterPadding(os.Stdin); err != nil {
				return err
			}
		}
		if _, err := u.Write(first); err != nil {
			return err
		}
	}
	return bridge(u)
}

// afterPadding skips leading zero bytes and returns the first bytes after them. The client sends zeros
// after the agent's program, because the shell command that unpacks it may read beyond its end.
func afterPadding(in io.Reader) ([]byte, error) {
	buf := make([]byte, chunkSize)
	for {
		n, err := in.Read(buf)
		if rest := bytes.TrimLeft(buf[:n], "\x00"); len(rest) > 0 {
			return rest, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// wake continues an agent that a command of the same user has stopped. It returns an error if the
// agent stays stopped. Only a signal or a tracer causes this state: a paused machine or container
// is not visible from inside.
func wake(agent *net.UnixConn) error {
	peer, err := peerOf(agent)
	if err != nil {
		return err
	}
	for range 50 {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(int(peer.Pid)) + "/stat")
		if err != nil {
			return nil // the connection will fail and report it
		}
		state := data[bytes.LastIndexByte(data, ')')+1:]
		if len(state) < 2 || (state[1] != 'T' && state[1] != 't') {
			return nil
		}
		_ = syscall.Kill(int(peer.Pid), syscall.SIGCONT)
		time.Sleep(2 * time.Millisecond)
	}
	return fmt.Errorf("what runs beside it keeps it stopped")
}

// say writes a status word and the reason to stdout, between marks that no other output contains.
// It returns why.
func say(word string, why error) error {
	text := "\x1esandboxkit " + word
	if why != nil {
		text += " " + why.Error()
	}
	if _, err := os.Stdout.WriteString(text + "\x1e"); err != nil {
		return err
	}
	return why
}

// startBeside starts an agent that is detached from this process. It returns when the agent listens,
// or with an error that holds the agent's message.
func startBeside(flags []string) error {
	said, saying, err := os.Pipe()
	if err != nil {
		return err
	}
	defer said.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	launch := append([]string{"sandboxkit-agent", "launch"}, flags...)
	files := []*os.File{null, null, saying}
	process, err := os.StartProcess("/proc/self/exe", launch, &os.ProcAttr{Files: files})
	saying.Close()
	if err != nil {
		return err
	}
	if _, err := process.Wait(); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(said, 4096))
	if err != nil {
		return err
	}
	if len(text) > 0 {
		return fmt.Errorf("it did not start: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// leaveStarter completes the start of an agent beside other processes. The agent becomes a subreaper,
// so it adopts its commands' orphans. It closes its stderr, which tells startBeside that it listens.
func leaveStarter() {
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	_ = syscall.Dup3(0, 2, 0)
}

const (
	setPipeSize  = 1031 // fcntl's F_SETPIPE_SZ
	largestPipe  = 1 << 20
	bridgeBuffer = 256 << 10
)

// bridge copies stdin to the agent and the agent's output to stdout, until the agent closes its side.
func bridge(agent *net.UnixConn) error {
	// A larger pipe means larger reads, and a vendor sends one message for each read. This may fail:
	// stdout may be no pipe, or the size may exceed the limit.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, os.Stdout.Fd(), setPipeSize, largestPipe)
	go func() {
		_, _ = io.CopyBuffer(onlyWriter{agent}, onlyReader{os.Stdin}, make([]byte, chunkSize))
		_ = agent.CloseWrite()
	}()
	_, _ = io.CopyBuffer(onlyWriter{os.Stdout}, onlyReader{agent}, make([]byte, bridgeBuffer))
	return nil
}

// onlyReader and onlyWriter hide the other methods, so that io.Copy does not try to splice.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
