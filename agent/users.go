// Users: lookup of a command's identity in the sandbox's own /etc/passwd and /etc/group.
package main

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

type identity struct {
	name   string
	home   string
	uid    uint32
	gid    uint32
	groups []uint32
}

func (id identity) isAgent() bool { return id.uid == uint32(os.Getuid()) }

func (id identity) key() string { return fmt.Sprint(id.uid, id.gid, id.groups) }

// lookupUser returns the identity for "name", "uid" or "name-or-uid:group"; "" is the agent's own user.
func lookupUser(spec string) (identity, error) {
	user, group, hasGroup := strings.Cut(spec, ":")
	own := user == ""
	if own {
		user = strconv.Itoa(os.Getuid())
	}
	id := identity{name: user, home: "/"}
	number, err := strconv.ParseUint(user, 10, 31)
	numeric := err == nil
	found := false
	for _, line := range accountLines("/etc/passwd") {
		f := strings.Split(line, ":")
		// A number is a uid, although an image may have a user of that name.
		if len(f) < 7 || numeric && f[2] != user || !numeric && f[0] != user {
			continue
		}
		uid, e1 := strconv.ParseUint(f[2], 10, 31)
		gid, e2 := strconv.ParseUint(f[3], 10, 31)
		if e1 == nil && e2 == nil {
			id = identity{name: f[0], home: f[5], uid: uint32(uid), gid: uint32(gid)}
			found = true
			break
		}
	}
	if !found {
		if !numeric {
			return id, fmt.Errorf("no user %q in the sandbox; name one that its image has with user=, such as "+
				"user=\"nobody\": %w", user, syscall.EINVAL)
		}
		id.uid = uint32(number)
		if own {
			id.gid = uint32(os.Getgid())
		}
	}
	if own || id.isAgent() {
		// Such a command keeps the agent's ids and groups.
		id.gid = uint32(os.Getgid())
		return id, nil
	}
	if os.Getuid() != 0 {
		return id, fmt.Errorf("cannot run as %q: the sandbox has only user %d: %w",
			user, os.Getuid(), syscall.EPERM)
	}
	for _, line := range accountLines("/etc/group") {
		f := strings.Split(line, ":")
		if len(f) < 4 {
			continue
		}
		gid, err := strconv.ParseUint(f[2], 10, 31)
		if err != nil {
			continue
		}
		if slices.Contains(strings.Split(f[3], ","), id.name) {
			id.groups = append(id.groups, uint32(gid))
		}
		if hasGroup && (f[2] == group || f[0] == group && strings.Trim(group, "0123456789") != "") {
			id.gid = uint32(gid)
			hasGroup = false
		}
	}
	if hasGroup {
		gid, err := strconv.ParseUint(group, 10, 31)
		if err != nil {
			return id, fmt.Errorf("no group %q in the sandbox: %w", group, syscall.EINVAL)
		}
		id.gid = uint32(gid)
	}
	if !slices.Contains(id.groups, id.gid) {
		id.groups = append(id.groups, id.gid)
	}
	return id, nil
}

// nameUser adds a user to /etc/passwd if that has no such uid, as Podman does. Nothing changes if the agent may not
// write there, or if the image leads the file elsewhere.
func nameUser(id identity) {
	lines := accountLines("/etc/passwd")
	for _, line := range lines {
		if f := strings.Split(line, ":"); len(f) > 2 && f[2] == strconv.Itoa(int(id.uid)) {
			return
		}
	}
	var etc, file syscall.Stat_t
	if err := syscall.Lstat("/etc", &etc); err != nil || etc.Mode&syscall.S_IFMT != syscall.S_IFDIR ||
		strings.ContainsAny(id.home, ":\n") {
		return
	}
	const flags = syscall.O_WRONLY | syscall.O_APPEND | syscall.O_CREAT | syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC
	fd, err := syscall.Open("/etc/passwd", flags, 0o644)
	if err != nil {
		return
	}
	defer syscall.Close(fd)
	line := fmt.Sprintf("%s:x:%d:%d::%s:/bin/sh\n", id.name, id.uid, id.gid, id.home)
	if len(lines) > 0 && lines[len(lines)-1] != "" {
		line = "\n" + line // the last one has no end
	}
	if err := syscall.Fstat(fd, &file); err == nil && file.Mode&syscall.S_IFMT == syscall.S_IFREG {
		_, _ = syscall.Write(fd, []byte(line))
	}
}

// checkGround returns an error unless /proc, /dev/null and the folder of gVisor's socket are the kernel's and
// the runtime's own, and /.sandboxkit, where a cluster and local have the agent, is no link of the image. A volume or folder that the image leads there by a link would be believed, and what it has
// in the place of /dev/null would be opened as root and passed to commands.
func checkGround(o options) error {
	const procMagic, nullDevice = 0x9fa0, 1<<8 | 3
	var fs syscall.Statfs_t
	var null, folder, agent syscall.Stat_t
	wrong, own := "", path.Dir(o.listenPath)
	if err := syscall.Statfs("/proc", &fs); err != nil || fs.Type != procMagic {
		wrong = "/proc"
	} else if err := syscall.Lstat("/dev/null", &null); err != nil || null.Mode&syscall.S_IFMT != syscall.S_IFCHR ||
		null.Rdev != nullDevice {
		wrong = "/dev/null"
	} else if err := syscall.Lstat(own, &folder); o.gvisor && (err != nil || folder.Uid != 0 ||
		folder.Mode != syscall.S_IFDIR|0o700) {
		wrong = own
	} else if err := syscall.Lstat("/.sandboxkit", &agent); err == nil && agent.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		wrong = "/.sandboxkit"
	}
	if wrong == "" {
		return nil
	}
	return fmt.Errorf("%s is not the kernel's or the runtime's own: use an image without a link or a VOLUME there, "+
		"and without a link from another folder to it", wrong)
}

// accountLines returns a file's lines. It reads only a regular file, and at most 1 MiB, because a command
// may have replaced the file.
func accountLines(path string) []string {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || forbiddenProc(fd) {
		return nil
	}
	data, _ := io.ReadAll(io.LimitReader(f, 1<<20))
	return strings.Split(string(data), "\n")
}
