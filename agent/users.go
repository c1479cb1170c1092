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

// checkGround returns an error unless /proc, /dev/null and the folder of gVisor's socket are the kernel's and
// the runtime's own. A volume or folder that the image leads there by a link would be believed, and what it has
// in the place of /dev/null would be opened as root and passed to commands.
func checkGround(o options) error {
	const procMagic, nullDevice = 0x9fa0, 1<<8 | 3
	var fs syscall.Statfs_t
	if err := syscall.Statfs("/proc", &fs); err != nil || fs.Type != procMagic {
		return fmt.Errorf("/proc is not the kernel's (error %v): %s", err, honest)
	}
	var st syscall.Stat_t
	if err := syscall.Lstat("/dev/null", &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFCHR || st.Rdev != nullDevice {
		return fmt.Errorf("/dev/null is not the null device (error %v): %s", err, honest)
	}
	if !o.gvisor {
		return nil
	}
	folder := path.Dir(o.listenPath)
	if err := syscall.Lstat(folder, &st); err != nil || st.Mode != syscall.S_IFDIR|0o700 || st.Uid != 0 {
		return fmt.Errorf("%s is not root's own folder (error %v): %s", folder, err, honest)
	}
	return nil
}

const honest = "use an image without a link or a VOLUME there, and without links from other folders to it"

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
