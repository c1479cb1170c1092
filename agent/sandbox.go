// The sandbox as a whole: its user and environment, its commands, its clients and its end.
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

type sandbox struct {
	user    identity
	workdir string
	detach  bool
	null    uintptr

	commands commandTable
	main     mainCommand

	mu         sync.Mutex
	configured bool
	env        []string
	clients    map[*conn]bool
	deadline   *time.Timer
	// ended is set before anything is killed, so that no client takes that for an exit.
	ended atomic.Bool
}

// commandTable holds the commands that run, to tell one's processes from another's.
type commandTable struct {
	mu      sync.Mutex
	running []*execution
}

func (t *commandTable) add(e *execution) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = append(t.running, e)
}

func (t *commandTable) remove(e *execution) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running = slices.DeleteFunc(t.running, func(other *execution) bool { return other == e })
}

func (t *commandTable) hasSession(session int, except *execution) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.running, func(e *execution) bool {
		return e != except && e.tree.root == session
	})
}

// configure takes the owner's environment and main command; the first time is the only one.
func (b *sandbox) configure(env, command []string) error {
	b.mu.Lock()
	again := b.configured
	b.configured = true
	if !again {
		b.env = env
	}
	b.mu.Unlock()
	if again {
		return protocolError("the sandbox was configured before")
	}
	if len(command) > 0 {
		return b.main.start(b, command)
	}
	return nil
}

// environment is what a command of `user` gets: the agent's own variables, the user's, those
// of the sandbox, its own.
func (b *sandbox) environment(user string, extra []string) (identity, []string, error) {
	id := b.user
	if user != "" {
		var err error
		if id, err = lookupUser(user); err != nil {
			return id, nil, err
		}
	}
	merged := map[string]string{"PATH": defaultPath}
	add := func(entries []string) {
		for _, entry := range entries {
			if name, value, ok := strings.Cut(entry, "="); ok {
				merged[name] = value
			}
		}
	}
	account := []string{"HOME=" + id.home, "USER=" + id.name, "LOGNAME=" + id.name}
	if id.isAgent() {
		add(account)
	}
	add(os.Environ())
	if !id.isAgent() {
		add(account)
	}
	b.mu.Lock()
	add(b.env)
	b.mu.Unlock()
	add(extra)
	delete(merged, markerName)
	env := make([]string, 0, len(merged)+1)
	for name, value := range merged {
		env = append(env, name+"="+value)
	}
	return id, env, nil
}

// makeWorkdir creates the folder where commands start, owned by the user that they run as.
func (b *sandbox) makeWorkdir() error {
	if _, err := os.Stat(b.workdir); err == nil {
		return nil
	}
	if err := os.MkdirAll(b.workdir, 0o755); err != nil {
		return fmt.Errorf("workdir: %w", err)
	}
	if b.user.isAgent() {
		return nil
	}
	return os.Chown(b.workdir, int(b.user.uid), int(b.user.gid))
}

func (b *sandbox) renew(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deadline != nil {
		b.deadline.Stop()
	}
	b.deadline = time.AfterFunc(after, func() { b.end("lifetime") })
}

// attach serves a client until it leaves. The owner's leaving ends the sandbox.
func (b *sandbox) attach(t transport, owner bool) {
	c := &conn{sandbox: b, t: t, streams: map[uint32]*stream{}}
	b.mu.Lock()
	b.clients[c] = true
	b.mu.Unlock()
	c.serve(owner)
	b.mu.Lock()
	delete(b.clients, c)
	b.mu.Unlock()
	if owner && !b.detach {
		b.end("its owner went away")
	}
}

// end tells every client why, and takes the whole sandbox down with it. It does not return.
func (b *sandbox) end(reason string) {
	b.mu.Lock()
	if b.ended.Swap(true) {
		b.mu.Unlock()
		select {}
	}
	clients := make([]*conn, 0, len(b.clients))
	for c := range b.clients {
		clients = append(clients, c)
	}
	b.mu.Unlock()
	time.AfterFunc(2*time.Second, func() { os.Exit(0) })
	_ = syscall.Kill(-1, syscall.SIGKILL)
	var told sync.WaitGroup
	for _, c := range clients {
		told.Add(1)
		go func() {
			defer told.Done()
			c.bye(reason)
		}()
	}
	told.Wait()
	_ = syscall.Kill(-1, syscall.SIGKILL)
	os.Exit(0)
}
