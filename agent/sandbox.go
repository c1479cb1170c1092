// The sandbox as a whole: its user, environment, clients, lifetime and end.
package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// AT_FDCWD, X_OK, W_OK and AT_EACCESS
const here, enterable, writable, effectively = -100, 1, 2, 0x200

type sandbox struct {
	user    identity // guarded by mu once there are clients; use the methods as and become
	workdir string
	detach  bool
	// ownerCalls is set if the owner connects to the socket, like any other client.
	ownerCalls bool
	// lease is how long the sandbox lives without a client; 0 means for ever.
	lease  time.Duration
	gvisor bool
	// noRoot is set if nothing may run as uid 0, as in a strict sandbox.
	noRoot bool
	drop   string // prefix of the agent's own variables that commands do not get
	null   uintptr

	main mainCommand
	jobs jobs

	// identities returns the range of ids of jobs, always the same, or nil if there is none.
	identities func() *identities

	mu         sync.Mutex
	configured bool
	env        []string
	clients    map[*conn]bool
	owner      *session // the session on stdin, if there is one
	beside     int      // further open connections of the owner's process
	hadBeside  bool
	deadline   *time.Timer
	expiry     *time.Timer // the lease's end
	// ended is set before commands are killed, so that no client sees their exits.
	ended atomic.Bool
}

// configure sets the owner's environment and starts the main command. A second call is an error.
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

// as returns the identity of commands and file calls.
func (b *sandbox) as() identity {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.user
}

// refuseRoot returns an error for the uid 0 in a sandbox in which nothing may run as root. An image may give
// that uid any name.
func (b *sandbox) refuseRoot(asked string, id identity) error {
	if !(b.noRoot && id.uid == 0 || b.gvisor && id.isAgent()) {
		return nil
	}
	return fmt.Errorf("user %q is uid 0 in this image: nothing runs as the agent's user here, because with "+
		"profile=\"strict\" or gVisor nothing runs as root; name another with user=: %w", asked, syscall.EPERM)
}

func (b *sandbox) become(id identity) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.user = id
}

// environment returns a command's identity and variables. It merges the agent's variables, the user's,
// the sandbox's and the command's own; later ones win. As the agent's own user, the agent's variables
// override the user's, but for HOME: see homeOf. A PATH that neither the sandbox nor the command sets ends with the
// programs of the user's own home.
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
		if err := b.refuseRoot(user, id); err != nil {
			return id, nil, err
		}
		id.home = b.homeOf(id)
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
	} else if killsAll() {
		add(account[:1])
	}
	search := merged["PATH"]
	b.mu.Lock()
	add(b.env)
	b.mu.Unlock()
	add(extra)
	if home := merged["HOME"]; search != "" && merged["PATH"] == search && path.IsAbs(home) {
		// Where pip puts programs. Last: none of them replaces one of the system.
		merged["PATH"] = search + ":" + path.Join(home, ".local/bin")
	}
	env := make([]string, 0, len(merged))
	for name, value := range merged {
		env = append(env, name+"="+value)
	}
	return id, env, nil
}

// homeOf returns a user's HOME: the image's, or else the first folder that the user can write to of the user's
// own, the workdir, /workspace and /tmp. Container runtimes set the HOME of the agent's user if the image sets none.
func (b *sandbox) homeOf(id identity) string {
	if confined != nil {
		return b.workdir
	}
	home, given := id.home, os.Getenv("HOME")
	if own, err := lookupUser(""); self == 1 && err == nil && given != "" && given != own.home {
		return given
	}
	_ = filesAs.run(id, func() {
		for _, each := range []string{id.home, b.workdir, defaultWorkdir, "/tmp"} {
			if syscall.Faccessat(here, each, writable, effectively) == nil {
				home = each
				return
			}
		}
	})
	return home
}

// inherited returns the agent's own environment variables, without those to drop.
func (b *sandbox) inherited() []string {
	if b.drop == "" {
		return os.Environ()
	}
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, b.drop)
	})
}

// defaultWorkdir is where commands start by default.
const defaultWorkdir = "/workspace"

// startInImage makes the image's WORKDIR the workdir, if the user may enter it. "." is the folder in which a container's
// runtime has started the agent.
func (b *sandbox) startInImage(id identity, name string) {
	if name == "." {
		name, _ = syscall.Getwd()
		_ = syscall.Chdir("/")
	}
	name = path.Clean(name)
	if name == "/" || !path.IsAbs(name) {
		return
	}
	_ = filesAs.run(id, func() {
		entered := makeFolder(name) == nil && syscall.Faccessat(here, name, enterable, effectively) == nil
		if entered && guard(name) == nil {
			b.workdir = name
		}
	})
}

// workdirs returns candidates for the workdir, the best first: only the requested folder, or the default
// and its replacements for users who cannot create it.
func (b *sandbox) workdirs(asked string) []string {
	if asked != "" {
		return []string{path.Clean(asked)}
	}
	home := b.user.home
	if own := os.Getenv("HOME"); b.user.isAgent() && own != "" {
		home = own
	}
	places := []string{defaultWorkdir}
	if path.IsAbs(home) {
		places = append(places, path.Join(home, "workspace"))
	}
	return append(places, "/tmp/workspace")
}

// findWorkdir sets b.workdir to the first of the places that it can create. It tries as the agent, and then
// gives the folder to the sandbox's user, or through asUser as that user.
func (b *sandbox) findWorkdir(places []string, asUser func(func()) error) error {
	var first error
	for _, b.workdir = range places {
		err := b.makeWorkdir()
		if err != nil && asUser != nil {
			if failed := asUser(func() { err = makeFolder(b.workdir) }); failed != nil {
				return failed
			}
		}
		if err == nil {
			return nil
		}
		if first == nil {
			first = fmt.Errorf("workdir %s cannot be made for user %s: %w", b.workdir, b.user.name, err)
		}
	}
	return first
}

// makeWorkdir creates the workdir if it is missing, owned by the sandbox's user.
func (b *sandbox) makeWorkdir() error {
	if _, err := os.Stat(b.workdir); err != nil {
		if err := makeFolder(b.workdir); err != nil || b.user.isAgent() {
			return err
		}
		err := os.Chown(b.workdir, int(b.user.uid), int(b.user.gid))
		if err != nil {
			os.Remove(b.workdir) // the user makes it, or takes another place
		}
		return err
	}
	return makeFolder(b.workdir)
}

// makeFolder creates a folder and its parents. It leaves existing folders as they are.
func makeFolder(name string) error {
	return os.MkdirAll(name, 0o755)
}

func (b *sandbox) renew(after time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deadline != nil {
		b.deadline.Stop()
	}
	b.deadline = time.AfterFunc(after, func() { b.end("lifetime") })
}

// renewLease restarts the lease. Call it with the lock held whenever a client connects or disconnects.
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

// attach serves a client until it leaves. When the owner leaves, the sandbox ends, unless it is detached.
func (b *sandbox) attach(link *session, owner bool) {
	c := &conn{sandbox: b, link: link, streams: map[uint32]*stream{}}
	b.mu.Lock()
	b.clients[c] = true
	if owner {
		b.owner, link.left = link, b.ownerLeft
	}
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

// besideOwner counts a connection that ends with the owner's process. Call the returned function when
// the connection ends. When the last such connection has ended, the owner's process is gone: if its
// stream is broken, too, the session is closed without a grace.
func (b *sandbox) besideOwner() func() {
	b.mu.Lock()
	b.beside++
	b.hadBeside = true
	owner := b.owner
	b.mu.Unlock()
	if owner != nil {
		owner.settle()
	}
	return func() {
		b.mu.Lock()
		b.beside--
		b.mu.Unlock()
		if owner != nil && b.ownerLeft() {
			owner.forsake()
		}
	}
}

func (b *sandbox) ownerLeft() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.hadBeside && b.beside == 0
}

// end ends the sandbox: it kills all commands, sends every client the reason and exits. It does not
// return.
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
	} // else the programs that lead to its clients would be killed before the BYE
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

// killAll kills every process that the agent has started.
func killAll() {
	if killsAll() {
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
