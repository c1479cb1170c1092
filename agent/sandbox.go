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
	user    identity // with the lock, once there are clients: see as
	workdir string
	detach  bool
	// ownerCalls says that the owner comes as any other client does, by the socket.
	ownerCalls bool
	// lease is how long the sandbox lives without a client; 0: for ever.
	lease time.Duration
	drop  string // prefix of the agent's own variables that commands do not get
	null  uintptr

	main mainCommand
	jobs jobs

	mu         sync.Mutex
	configured bool
	env        []string
	clients    map[*conn]bool
	deadline   *time.Timer
	expiry     *time.Timer // of the lease
	// ended is set before anything is killed, so that no client takes that for an exit.
	ended atomic.Bool
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

// as is whom commands and file calls run as.
func (b *sandbox) as() identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.user
}

func (b *sandbox) become(id identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.user = id
}

// environment is what a command of `user` gets: the agent's own variables, the user's, those
// of the sandbox, its own.
func (b *sandbox) environment(user string, extra []string) (identity, []string, error) {
	if err := b.jobs.refuse(user); err != nil {
		return identity{}, nil, err
	}
	id := b.as()
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
	add(b.inherited())
	if !id.isAgent() {
		add(account)
	}
	b.mu.Lock()
	add(b.env)
	b.mu.Unlock()
	add(extra)
	env := make([]string, 0, len(merged))
	for name, value := range merged {
		env = append(env, name+"="+value)
	}
	return id, env, nil
}

// inherited are the variables that the agent itself was started with.
func (b *sandbox) inherited() []string {
	if b.drop == "" {
		return os.Environ()
	}
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, b.drop)
	})
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

// renewLease is called with the lock whenever a client came or went.
func (b *sandbox) renewLease() {
	if b.expiry != nil {
		b.expiry.Stop()
		b.expiry = nil
	}
	if b.lease > 0 && len(b.clients) == 0 {
		b.expiry = time.AfterFunc(b.lease, func() {
			b.mu.Lock()
			idle := len(b.clients) == 0
			b.mu.Unlock()
			if idle {
				b.end("its owner went away")
			}
		})
	}
}

// attach serves a client until it leaves. The owner's leaving ends the sandbox.
func (b *sandbox) attach(link *session, owner bool) {
	c := &conn{sandbox: b, link: link, streams: map[uint32]*stream{}}
	b.mu.Lock()
	b.clients[c] = true
	b.renewLease()
	b.mu.Unlock()
	c.serve(owner)
	b.mu.Lock()
	delete(b.clients, c)
	b.renewLease()
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
	if !b.ownerCalls {
		killAll()
	} // else what leads to its clients would be killed before it could tell them
	var told sync.WaitGroup
	for _, c := range clients {
		told.Add(1)
		go func() {
			defer told.Done()
			c.bye(reason)
		}()
	}
	told.Wait()
	if b.ownerCalls {
		time.Sleep(100 * time.Millisecond)
	}
	killAll()
	os.Exit(0)
}

// killAll ends whatever the agent has started.
func killAll() {
	if self == 1 {
		_ = syscall.Kill(-1, syscall.SIGKILL)
		return
	}
	for range 100 {
		procs.mu.Lock()
		table := processTable(nil)
		for _, p := range table {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		procs.mu.Unlock()
		procs.reap()
		if len(table) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
