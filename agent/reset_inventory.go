// The inventory of everything that a job will be able to change, taken before the first job.
package main

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	maxWalked    = 500_000
	walkPatience = 20 * time.Second
	atNoFollow   = 0x100
)

// kernelMounts are file systems of kernel interfaces. Only owners can store data there, and no job is one.
var kernelMounts = strings.Fields(`proc sysfs cgroup cgroup2 devpts debugfs tracefs securityfs bpf
	pstore configfs fusectl binfmt_misc nsfs rpc_pipefs efivarfs selinuxfs autofs`)

type mount struct {
	id       int
	path     string
	kind     string
	readOnly bool
}

// mounts parses /proc/self/mountinfo.
func mounts(data string) (found []mount) {
	for _, line := range strings.Split(data, "\n") {
		f := strings.Fields(line)
		dash := slices.Index(f, "-")
		if dash < 6 || len(f) < dash+4 {
			continue
		}
		id, _ := strconv.Atoi(f[0])
		options := strings.Split(f[5], ",")
		super := strings.Split(f[dash+3], ",")
		found = append(found, mount{id: id, path: unescaped(f[4]), kind: f[dash+1],
			readOnly: slices.Contains(options, "ro") || slices.Contains(super, "ro")})
	}
	return found
}

// unescaped decodes the octal escapes that mountinfo uses for spaces and similar characters.
func unescaped(name string) string {
	var out []byte
	for i := 0; i < len(name); i++ {
		if name[i] == '\\' && i+3 < len(name) {
			if n, err := strconv.ParseUint(name[i+1:i+4], 8, 8); err == nil {
				out = append(out, byte(n))
				i += 3
				continue
			}
		}
		out = append(out, name[i])
	}
	return string(out)
}

// A survey finds everything that one user, or any user of a range, may change.
type survey struct {
	id      identity
	uids    *identities
	workdir string
	mounts  []mount
	places  []*place
	devices []device
	refused []string
	walked  int
	end     time.Time
}

func (s *survey) isJob(uid uint32) bool { return uid == s.id.uid || s.uids.has(uid) }

func (s *survey) mayWrite(st *syscall.Stat_t) bool {
	if st.Mode&syscall.S_IFMT == syscall.S_IFLNK {
		return false
	}
	switch {
	case s.isJob(st.Uid):
		return true // the owner may change the mode
	case st.Gid == s.id.gid || slices.Contains(s.id.groups, st.Gid):
		return st.Mode&0o020 != 0
	}
	return st.Mode&0o002 != 0
}

func (s *survey) refuse(format string, args ...any) {
	if len(s.refused) < maxFindings {
		s.refused = append(s.refused, fmt.Sprintf(format, args...))
	}
}

// takeInventory records the sandbox's state, and returns the reasons why it cannot be reset, if any.
func (b *sandbox) takeInventory() []string {
	j := &b.jobs
	var err error
	if j.actor, err = newActor(); err != nil {
		return []string{err.Error()}
	}
	id := b.as()
	if j.uids = b.identities(); j.uids != nil {
		if id, err = j.uids.next(b.workdir); err != nil {
			return []string{err.Error()}
		}
		if why := j.actor.as(id, func() []string { return nil }); len(why) > 0 {
			return why
		}
		if err := b.ownWorkdir(); err != nil {
			return []string{err.Error()}
		}
		b.become(id)
	} else if !id.isAgent() {
		return []string{fmt.Sprintf("its jobs run as user %d, and the agent can have no other for "+
			"the next", id.uid)}
	}
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	s := survey{id: id, uids: j.uids, workdir: b.workdir, mounts: mounts(string(data)),
		end: time.Now().Add(walkPatience)}
	s.all()
	j.places, j.devices = s.places, s.devices
	var more []string
	if j.objects, more = findKernelObjects(s.mounts, j, id); len(more) > 0 {
		s.refused = append(s.refused, more...)
	}
	j.sockets = countSockets()
	j.self = ownStateNow()
	return s.refused
}

func (s *survey) all() {
	seen := map[string]bool{}
	for _, m := range slices.Backward(s.mounts) { // the last mount at a path is the visible one
		if seen[m.path] {
			continue
		}
		seen[m.path] = true
		var st syscall.Stat_t
		if syscall.Lstat(m.path, &st) != nil || s.covered(m) {
			continue
		}
		switch {
		case m.kind == "proc":
			s.proc(m)
		case m.kind == "devpts":
			s.terminals(m, &st)
		case m.readOnly, slices.Contains(kernelMounts, m.kind):
		default:
			s.walk(m.path, &st, false)
		}
	}
}

// covered reports whether a mount cannot be reached, because another mount hides a parent folder.
func (s *survey) covered(m mount) bool {
	fd, err := syscall.Open(m.path, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	data, _ := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	for _, line := range strings.Split(string(data), "\n") {
		if after, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			id, err := strconv.Atoi(strings.TrimSpace(after))
			return err == nil && id != m.id
		}
	}
	return false
}

// proc checks /proc. It belongs to the kernel, except where a job's user owns the namespaces it shows.
func (s *survey) proc(m mount) {
	var st syscall.Stat_t
	if m.readOnly || m.path != "/proc" {
		return
	}
	for _, name := range []string{"/proc/net/unix", "/proc/sys/kernel/shmmax"} {
		if syscall.Stat(name, &st) == nil && s.isJob(st.Uid) {
			s.refuse("%s belongs to the user of its jobs: the sandbox was not made for being reset", name)
		}
	}
}

func (s *survey) terminals(m mount, st *syscall.Stat_t) {
	p := s.place(m.path, st)
	if p == nil {
		return
	}
	p.watched = true
	names, err := p.names(p.fd, p.buffer)
	if err != nil {
		s.refuse("%s: %v", p.path, err)
	}
	for _, name := range names {
		p.kept[name] = true
		var node syscall.Stat_t
		full := path.Join(m.path, name)
		if syscall.Lstat(full, &node) == nil && s.isJob(node.Uid) {
			s.devices = append(s.devices, device{full, node})
		}
	}
}

func (s *survey) place(name string, st *syscall.Stat_t) *place {
	p, err := newPlace(name, st.Mode&syscall.S_IFMT == syscall.S_IFREG)
	if err != nil {
		s.refuse("%s: its jobs could write there, and the agent not read: %v", quoted(name), err)
		return nil
	}
	s.places = append(s.places, p)
	return p
}

// walk inspects a folder or file and everything below it on the same mount. loose means that a job can
// remove it.
func (s *survey) walk(name string, st *syscall.Stat_t, loose bool) {
	if s.walked++; s.walked > maxWalked || time.Now().After(s.end) {
		if s.walked <= maxWalked+1 || len(s.refused) == 0 {
			s.refuse("more than can be looked at before its first job: %s", quoted(name))
		}
		return
	}
	if loose {
		if !leadsTo(name, s.workdir) {
			s.refuse("%s is there before its first job, and a job could remove it", quoted(name))
		}
		return // the workdir is made again
	}
	may := s.mayWrite(st)
	switch kind := st.Mode & syscall.S_IFMT; {
	case kind == syscall.S_IFDIR:
	case kind == syscall.S_IFLNK, kind == syscall.S_IFSOCK && !s.isJob(st.Uid),
		kind == syscall.S_IFCHR && !s.isJob(st.Uid):
		return // links store nothing; the sandbox's creator is responsible for devices and servers
	case kind == syscall.S_IFREG && may && st.Size <= placeBuffer:
		s.place(name, st)
		return
	case may:
		s.refuse("%s can be changed by its jobs", quoted(name))
		return
	default:
		return
	}
	var p *place
	if may {
		if p = s.place(name, st); p == nil {
			return
		}
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		if st.Mode&0o001 != 0 && !os.IsNotExist(err) {
			s.refuse("%s cannot be looked at: %v", quoted(name), err)
		}
		return
	}
	for _, entry := range entries {
		full := path.Join(name, entry.Name())
		var child syscall.Stat_t
		if syscall.Lstat(full, &child) != nil {
			continue
		}
		mounted := slices.ContainsFunc(s.mounts, func(m mount) bool { return m.path == full })
		free := p != nil && !mounted &&
			(st.Mode&syscall.S_ISVTX == 0 || s.isJob(st.Uid) || s.isJob(child.Uid))
		switch {
		case p == nil:
		case !free:
			p.kept[entry.Name()] = true
		case leadsTo(full, s.workdir):
			p.remade = entry.Name()
		}
		if !mounted {
			s.walk(full, &child, free)
		}
	}
}

// leadsTo reports whether name is the path to, or a folder above it.
func leadsTo(name, to string) bool { return name == to || strings.HasPrefix(to, name+"/") }
