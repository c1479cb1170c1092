// Who may speak to the agent by its socket, and the programs that lead there from outside.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
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

// fromOutside tells whether the peer is no process of the sandbox: the host's root, whom this pid
// namespace does not show, or one that entered from outside, whose parent it does not show. A
// process that started inside has the agent for a last resort.
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

// ofOwnUser tells whether the peer is of the agent's own user. Where commands run as that user they
// may connect, and can do no more so than they can without.
func ofOwnUser(c *net.UnixConn) bool {
	peer, err := peerOf(c)
	return err == nil && int(peer.Uid) == os.Getuid()
}

// lead joins stdin and stdout to an agent: `connect PATH` to the first process of a sandbox,
// `link [-start] -socket=PATH [-- FLAGS]` to one that runs beside others, which it starts.
func lead(verb string, args []string) error {
	// What a client sends and hears goes through here: nobody of the same user may look into it.
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
		// Its parent is gone at once: a vendor that ends a call with all of its children must not
		// find the agent among them.
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
	}
	return fmt.Errorf("%q is neither connect nor link nor launch", verb)
}

func link(socket string, start bool, flags []string) error {
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
	// Once the agent is gone, anybody may have taken its name.
	if !ofOwnUser(u) {
		return say("none", fmt.Errorf("what listens at %s is not of this user", socket))
	}
	if err := wake(u); err != nil {
		return say("none", err)
	}
	if err := say("agent", nil); err != nil {
		return err
	}
	return bridge(u)
}

// wake lets an agent go on that a command of its user has stopped, or says that one keeps it so.
// Nothing else stops it like that: a paused machine or container is not seen from inside.
func wake(agent *net.UnixConn) error {
	peer, err := peerOf(agent)
	if err != nil {
		return err
	}
	for range 50 {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(int(peer.Pid)) + "/stat")
		if err != nil {
			return nil // its socket will say so
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

// say tells the other end of stdout what follows, between marks that nothing else has.
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

// startBeside leaves an agent behind that is nobody's child and says nothing here any more. It
// returns when that one listens, or has said why it does not.
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

// leaveStarter is the started agent's part: what falls out of its commands' trees falls to it, and
// the end of its stderr says that it listens.
func leaveStarter() {
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	_ = syscall.Dup3(0, 2, 0)
}

const (
	setPipeSize  = 1031 // fcntl's F_SETPIPE_SZ
	largestPipe  = 1 << 20
	bridgeBuffer = 256 << 10
)

// bridge carries stdin to the agent and what it says to stdout, until it has said all.
func bridge(agent *net.UnixConn) error {
	// Whoever reads a large pipe finds much in it, and each piece costs a vendor a message. One that
	// may not be so large, or is no pipe, stays as it is.
	_, _, _ = syscall.Syscall(syscall.SYS_FCNTL, os.Stdout.Fd(), setPipeSize, largestPipe)
	go func() {
		_, _ = io.CopyBuffer(onlyWriter{agent}, onlyReader{os.Stdin}, make([]byte, chunkSize))
		_ = agent.CloseWrite()
	}()
	_, _ = io.CopyBuffer(onlyWriter{os.Stdout}, onlyReader{agent}, make([]byte, bridgeBuffer))
	return nil
}

// Without the other methods, by which a copy would try to splice what cannot be.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)
