// The users of jobs: each job gets its own identity.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"
)

// identities is the range of uids and gids of jobs, which nothing else in the sandbox uses.
type identities struct {
	first, last uint32 // the range of uids, both ends included
	own         uint32 // the interpreter's, beside the range
	at          uint32
	known       map[uint32]bool
}

const (
	jobsASandbox = 1 << 16
	firstBigUID  = 1 << 20 // accounts, services and subordinate ranges seldom go beyond this
	lastBigUID   = 1<<31 - 1<<17
	firstUID     = 20_000
	lastUID      = 60_000
)

// newIdentities finds a range of ids, without those of user, that this process may change to. It returns nil if
// there is none.
func newIdentities(user identity) *identities {
	has, err := getCaps()
	const needed = 1<<capSetuid | 1<<capSetgid
	if err != nil || confined != nil || os.Getuid() != 0 || has&needed != needed {
		return nil
	}
	n := &identities{known: map[uint32]bool{user.uid: true, user.gid: true}}
	for _, file := range []string{"/etc/passwd", "/etc/group"} {
		for _, line := range accountLines(file) {
			if f := strings.Split(line, ":"); len(f) > 2 {
				if id, err := strconv.ParseUint(f[2], 10, 32); err == nil {
					n.known[uint32(id)] = true
				}
			}
		}
	}
	users, groups := mapped("/proc/self/uid_map"), mapped("/proc/self/gid_map")
	covers := func(first, last uint64) bool { return users(first, last) && groups(first, last) }
	big := uint64(firstBigUID + rand.Uint32N((lastBigUID-firstBigUID)>>16)<<16)
	switch {
	case covers(big, big+jobsASandbox-1):
		n.first, n.last = uint32(big), uint32(big+jobsASandbox-1)
	case covers(firstUID, lastUID):
		n.first, n.last = firstUID, lastUID
	default:
		return nil
	}
	for n.known[n.last] {
		n.last--
	}
	n.own, n.last, n.at = n.last, n.last-1, n.first
	if n.last < n.first {
		return nil
	}
	return n
}

// mapped returns a function that reports whether a user namespace maps all ids of a range. A missing
// map file means that it maps all ids.
func mapped(path string) func(first, last uint64) bool {
	data, err := os.ReadFile(path)
	return func(first, last uint64) bool {
		if err != nil {
			return errors.Is(err, os.ErrNotExist)
		}
		for _, line := range strings.Split(string(data), "\n") {
			var from, to, count uint64
			if _, err := fmt.Sscan(line, &from, &to, &count); err == nil &&
				from <= first && last < from+count {
				return true
			}
		}
		return false
	}
}

func (n *identities) has(uid uint32) bool { return n != nil && n.first <= uid && uid <= n.last }

func (n *identities) next(home string) (identity, error) {
	for ; n.at <= n.last; n.at++ {
		if !n.known[n.at] {
			uid := n.at
			n.at++
			return identity{name: strconv.Itoa(int(uid)), home: home, uid: uid, gid: uid}, nil
		}
	}
	return identity{}, fmt.Errorf("its user numbers are used up: it has had %d jobs", n.last-n.first+1)
}

// An actor is a thread that changes its real and effective ids to a job's user, without effective
// capabilities, and back. As that user, it can signal all processes of the job, and no others, at once. Its
// saved ids stay, so that it can change back.
type actor struct {
	thread *thread
	gid    uint32
	groups []uint32
}

func newActor() (*actor, error) {
	a := &actor{gid: uint32(os.Getgid())}
	var err error
	a.thread, err = newThread(func() error {
		blockSignals(quiet)
		groups, err := syscall.Getgroups()
		for _, each := range groups {
			a.groups = append(a.groups, uint32(each))
		}
		return err
	})
	return a, err
}

// as calls job on the actor's thread as the user id. It returns job's result, and errors of the change.
func (a *actor) as(id identity, job func() []string) (left []string) {
	if id.isAgent() {
		return job()
	}
	a.thread.do(func() {
		if err := a.become(id); err != nil {
			left = []string{err.Error()}
		} else {
			left = job()
		}
		if err := a.back(); err != nil {
			left = append(left, err.Error())
		}
	})
	return left
}

func (a *actor) become(id identity) error {
	e := setGroups(id.groups)
	if e == nil {
		e = setIDs(syscall.SYS_SETRESGID, id.gid)
	}
	if e == nil {
		e = setIDs(syscall.SYS_SETRESUID, id.uid)
	}
	// A change of ids sets the process's dumpable flag to fs.suid_dumpable, the administrator's
	// choice. Clear it again.
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	if e == nil {
		e = lowerThreadCaps(false)
	}
	if real, effective := threadIDs(); e == nil && (real != id.uid || effective != id.uid) {
		e = syscall.EPERM
	}
	if e != nil {
		return fmt.Errorf("cannot become user %d: %w", id.uid, e)
	}
	return nil
}

func (a *actor) back() error {
	e := setIDs(syscall.SYS_SETRESUID, 0)
	if e == nil {
		e = setIDs(syscall.SYS_SETRESGID, a.gid)
	}
	if e == nil {
		e = setGroups(a.groups)
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
	if real, effective := threadIDs(); e == nil && (real != 0 || effective != 0) {
		e = syscall.EPERM
	}
	if e != nil {
		return fmt.Errorf("the agent cannot be itself again: %w", e)
	}
	return nil
}

// setIDs sets the calling thread's real and effective ids, and keeps the saved one.
func setIDs(call uintptr, id uint32) error {
	const keep = ^uintptr(0)
	if _, _, e := syscall.RawSyscall(call, uintptr(id), uintptr(id), keep); e != 0 {
		return e
	}
	return nil
}

func threadIDs() (real, effective uint32) {
	var saved uint32
	syscall.RawSyscall(syscall.SYS_GETRESUID, uintptr(unsafe.Pointer(&real)),
		uintptr(unsafe.Pointer(&effective)), uintptr(unsafe.Pointer(&saved)))
	return real, effective
}

const accessACL = "system.posix_acl_access"

// accessFor returns a POSIX access control list that grants access to the owner and one user.
func accessFor(uid uint32) []byte {
	const none = ^uint32(0)
	out := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range []struct {
		tag, may uint16
		id       uint32
	}{{0x01, 7, none}, {0x02, 7, uid}, {0x04, 0, none}, {0x10, 7, none}, {0x20, 0, none}} {
		out = binary.LittleEndian.AppendUint16(out, entry.tag)
		out = binary.LittleEndian.AppendUint16(out, entry.may)
		out = binary.LittleEndian.AppendUint32(out, entry.id)
	}
	return out
}

// ownWorkdir makes the agent's user the owner of the workdir, so that each job can get access in turn.
func (b *sandbox) ownWorkdir() error {
	var st syscall.Stat_t
	if err := syscall.Stat(b.workdir, &st); err != nil {
		return fmt.Errorf("the workdir %s: %w", b.workdir, err)
	}
	if st.Uid == uint32(os.Getuid()) && st.Mode&0o002 != 0 {
		return nil
	}
	if err := os.Chown(b.workdir, os.Getuid(), os.Getgid()); err != nil {
		return err
	}
	return syscall.Chmod(b.workdir, 0o1777)
}

// giveWorkdir gives one user access to the workdir. If the file system has no access control lists, it
// gives access to every user, which is safe because no other user has a process then.
func (b *sandbox) giveWorkdir(id identity) error {
	for _, p := range b.jobs.places {
		if p.path != b.workdir {
			continue
		}
		if p.like.Uid != uint32(os.Getuid()) {
			return fmt.Errorf("the workdir %s belongs to user %d", p.path, p.like.Uid)
		}
		list := accessFor(id.uid)
		if err := setXattr(p.fd, accessACL, list); err == nil {
			p.xattrs = p.attributes()
			if p.xattrs[accessACL] != string(list) {
				return fmt.Errorf("the workdir %s did not take its access control list", p.path)
			}
		} else if err != syscall.EOPNOTSUPP {
			return fmt.Errorf("the workdir %s: %w", p.path, err)
		} else if err := syscall.Fchmod(p.fd, 0o1777); err != nil {
			return fmt.Errorf("the workdir %s: %w", p.path, err)
		}
		return syscall.Fstat(p.fd, &p.like)
	}
	return fmt.Errorf("the workdir %s cannot be given to another user", b.workdir)
}
