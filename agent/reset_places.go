// Writable places: the folders and small files that a job can change, and how they are restored.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unsafe"
)

const (
	maxFindings = 8
	placeBuffer = 8 << 10

	getFlags = 0x80086601
	setFlags = 0x40086602
	noAtime  = 0x40000
	atCwd    = -0x64
)

// A place is a folder or a small file that jobs may write to or own.
type place struct {
	path   string
	fd     int
	like   syscall.Stat_t // its attributes at the inventory
	xattrs map[string]string
	flags  uint64
	kept   map[string]bool // entries at the inventory that no job can remove
	remade string          // the entry that is on the workdir's path, and is created again
	// regular marks a file; content is its content at the inventory.
	regular bool
	content []byte
	// watched marks a folder whose entries the kernel removes: terminals, when they are closed.
	watched bool
	buffer  []byte
}

func newPlace(name string, regular bool) (*place, error) {
	how := syscall.O_DIRECTORY | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	if regular {
		how = syscall.O_RDWR | syscall.O_NONBLOCK | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	}
	fd, err := syscall.Open(name, how|noAtime, 0)
	if err == syscall.EPERM {
		fd, err = syscall.Open(name, how, 0) // only a file's owner may use O_NOATIME
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	p := &place{path: name, fd: fd, regular: regular, kept: map[string]bool{},
		buffer: make([]byte, placeBuffer)}
	if err := syscall.Fstat(fd, &p.like); err != nil {
		return nil, err
	}
	p.xattrs = p.attributes()
	p.flags = flagsOf(fd)
	p.content = bytes.Clone(p.read())
	return p, nil
}

// read returns a file's content, at most placeBuffer bytes. It is valid until the buffer's next use.
func (p *place) read() []byte {
	if !p.regular {
		return nil
	}
	n, err := syscall.Pread(p.fd, p.buffer, 0)
	if err != nil {
		return nil
	}
	return p.buffer[:n]
}

func flagsOf(fd int) (flags uint64) {
	_, _, e := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), getFlags,
		uintptr(unsafe.Pointer(&flags)))
	if e != 0 {
		return 0
	}
	return flags
}

// attributes returns the extended attributes, which include access control lists. A value that is too
// long for the buffer reads as empty; no place has one at the inventory.
func (p *place) attributes() map[string]string {
	n, _, e := syscall.RawSyscall(syscall.SYS_FLISTXATTR, uintptr(p.fd),
		uintptr(unsafe.Pointer(&p.buffer[0])), uintptr(len(p.buffer)))
	if e == syscall.ERANGE {
		return map[string]string{"": "more than can be listed"}
	}
	if e != 0 || n == 0 {
		return nil
	}
	found := map[string]string{}
	for _, name := range strings.Split(strings.TrimRight(string(p.buffer[:n]), "\x00"), "\x00") {
		key, _ := syscall.BytePtrFromString(name)
		n, _, e := syscall.RawSyscall6(syscall.SYS_FGETXATTR, uintptr(p.fd), uintptr(unsafe.Pointer(key)),
			uintptr(unsafe.Pointer(&p.buffer[0])), uintptr(len(p.buffer)), 0, 0)
		if e != 0 {
			n = 0
		}
		found[name] = string(p.buffer[:n])
	}
	return found
}

func setXattr(fd int, name string, value []byte) error {
	key, err := syscall.BytePtrFromString(name)
	if err != nil {
		return err
	}
	data := append(slices.Clone(value), 0) // for an address even if value is empty
	_, _, e := syscall.RawSyscall6(syscall.SYS_FSETXATTR, uintptr(fd), uintptr(unsafe.Pointer(key)),
		uintptr(unsafe.Pointer(&data[0])), uintptr(len(value)), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}

func removeXattr(fd int, name string) {
	if key, err := syscall.BytePtrFromString(name); err == nil {
		syscall.RawSyscall(syscall.SYS_FREMOVEXATTR, uintptr(fd), uintptr(unsafe.Pointer(key)), 0)
	}
}

// restore resets a folder's own attributes, or a file's attributes and content. A later call of left finds
// those that it could not reset.
func (p *place) restore() []string {
	var now syscall.Stat_t
	if err := syscall.Fstat(p.fd, &now); err != nil {
		return []string{p.path + ": " + err.Error()}
	}
	if flags := flagsOf(p.fd); flags != p.flags {
		flags = p.flags
		syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(p.fd), setFlags, uintptr(unsafe.Pointer(&flags)))
	}
	if found := p.attributes(); !maps.Equal(found, p.xattrs) {
		for name := range found {
			if _, was := p.xattrs[name]; !was {
				removeXattr(p.fd, name)
			}
		}
		for name, value := range p.xattrs {
			if found[name] != value {
				_ = setXattr(p.fd, name, []byte(value))
			}
		}
	}
	if now.Mode != p.like.Mode {
		_ = syscall.Fchmod(p.fd, p.like.Mode&0o7777)
	}
	if now.Gid != p.like.Gid {
		_ = syscall.Fchown(p.fd, -1, int(p.like.Gid))
	}
	if p.regular && (now.Size != p.like.Size || !bytes.Equal(p.read(), p.content)) {
		_ = syscall.Ftruncate(p.fd, 0)
		_, _ = syscall.Pwrite(p.fd, p.content, 0)
	}
	return nil
}

// restoreTimes resets a place's times. Call it last, after all other changes. Only the owner may do so.
func (p *place) restoreTimes() {
	times := [2]syscall.Timespec{p.like.Atim, p.like.Mtim}
	syscall.RawSyscall6(syscall.SYS_UTIMENSAT, uintptr(p.fd), 0, uintptr(unsafe.Pointer(&times[0])),
		0, 0, 0)
}

// left returns the differences between a place and its state at the inventory, except times: its
// attributes, its content, and new entries.
func (p *place) left() (left []string) {
	var now syscall.Stat_t
	if err := syscall.Fstat(p.fd, &now); err != nil {
		return []string{p.path + ": " + err.Error()}
	}
	if now.Mode != p.like.Mode || now.Uid != p.like.Uid || now.Gid != p.like.Gid {
		left = append(left, fmt.Sprintf("%s has mode %o and owner %d:%d", p.path, now.Mode&0o7777,
			now.Uid, now.Gid))
	}
	if flagsOf(p.fd) != p.flags {
		left = append(left, p.path+" has other flags")
	}
	if !maps.Equal(p.attributes(), p.xattrs) {
		left = append(left, p.path+" has other extended attributes")
	}
	if p.regular {
		if now.Size != p.like.Size || !bytes.Equal(p.read(), p.content) {
			left = append(left, p.path+" has other content")
		}
		return left
	}
	find := func() (left []string) {
		names, err := p.names(p.fd, p.buffer)
		if err != nil {
			return []string{p.path + ": " + err.Error()}
		}
		for _, name := range names {
			if !p.kept[name] && name != p.remade && len(left) < maxFindings {
				left = append(left, quoted(path.Join(p.path, name)))
			}
		}
		return left
	}
	if p.watched {
		return append(left, until(find)...)
	}
	return append(left, find()...)
}

// names lists a folder's entries. It stops after maxRemovals of them.
func (p *place) names(fd int, buffer []byte) ([]string, error) {
	if _, err := syscall.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	for {
		n, err := syscall.ReadDirent(fd, buffer)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return names, nil
		}
		_, _, names = syscall.ParseDirent(buffer[:n], -1, names)
		if len(names) >= maxRemovals {
			return names, nil
		}
	}
}

// A device is a file that a job owns and that stores only its attributes.
type device struct {
	path string
	like syscall.Stat_t
}

func (d device) restore() {
	_ = syscall.Fchmodat(atCwd, d.path, d.like.Mode&0o7777, 0)
	_ = syscall.UtimesNano(d.path, []syscall.Timespec{d.like.Atim, d.like.Mtim})
}

func (d device) left() []string {
	var now syscall.Stat_t
	if err := syscall.Lstat(d.path, &now); err != nil {
		return []string{d.path + ": " + err.Error()}
	}
	if now.Mode != d.like.Mode || now.Uid != d.like.Uid || now.Gid != d.like.Gid {
		return []string{fmt.Sprintf("%s has mode %o", d.path, now.Mode&0o7777)}
	}
	return nil
}

func quoted(name string) string {
	if len(name) > 200 {
		name = name[:200]
	}
	return fmt.Sprintf("%q", name)
}
