// Sockets that outlive their processes: lingering connections, and sockets in flight in other sockets.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// socketCounts are the kernel's counts of sockets in the network namespace.
type socketCounts struct {
	files  []int
	counts map[string]int
	unix   objectList // all Unix sockets, read only when the count has grown
	labels objectList // IPv6 flow labels, which last as long as their creator requested
}

// counted are the fields that count one namespace; the other fields of these files count the machine.
var counted = map[string][]string{
	"TCP": {"inuse", "tw"}, "UDP": {"inuse"}, "UDPLITE": {"inuse"}, "RAW": {"inuse"},
	"FRAG": {"inuse"}, "TCP6": {"inuse"}, "UDP6": {"inuse"}, "UDPLITE6": {"inuse"},
	"RAW6": {"inuse"}, "FRAG6": {"inuse"}, "sockets": {"used"},
}

func countSockets() (s socketCounts) {
	for _, name := range []string{"/proc/net/sockstat", "/proc/net/sockstat6"} {
		if fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
			s.files = append(s.files, fd)
		}
	}
	s.unix.fd, _ = syscall.Open("/proc/net/unix", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	s.labels.fd, _ = syscall.Open("/proc/net/ip6_flowlabel", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	s.labels.before = bytes.Clone(s.labels.read())
	s.counts = s.read()
	return s
}

func (s *socketCounts) read() map[string]int {
	found := map[string]int{}
	var data [2048]byte
	for _, fd := range s.files {
		n, _ := syscall.Pread(fd, data[:], 0)
		for _, line := range strings.Split(string(data[:max(n, 0)]), "\n") {
			kind, rest, _ := strings.Cut(line, ":")
			f := strings.Fields(rest)
			for i := 0; i+1 < len(f); i += 2 {
				for _, name := range counted[kind] {
					if f[i] == name {
						found[kind+" "+name], _ = strconv.Atoi(f[i+1])
					}
				}
			}
		}
	}
	return found
}

// left returns the sockets that a job has left, after waiting for those that the kernel is removing.
func (s *socketCounts) left() []string {
	if self != 1 {
		return nil // other programs of the machine use its network, too
	}
	return until(func() (left []string) {
		if !bytes.Equal(s.labels.read(), s.labels.before) {
			left = append(left, "an IPv6 flow label")
		}
		now := s.read()
		for name, count := range now {
			switch {
			case count <= s.counts[name]:
			case name == "sockets used":
				if strange := s.strangeUnix(); strange > 0 {
					left = append(left, fmt.Sprintf("%d unix sockets", strange))
				} else {
					s.counts[name] = count // the agent has more sockets, because it has more clients
				}
			default:
				left = append(left, fmt.Sprintf("%d sockets: %s", count-s.counts[name], name))
			}
		}
		return left
	})
}

// inFlight returns Unix sockets that outlived all processes of the job. They hold each other, and may
// hold files with locks and disk space. No interface shows when the kernel has released those.
func (s *socketCounts) inFlight() []string {
	if self != 1 || s.read()["sockets used"] <= s.counts["sockets used"] {
		return nil
	}
	if strange := s.strangeUnix(); strange > 0 {
		return []string{fmt.Sprintf("%d unix sockets that only each other hold", strange)}
	}
	return nil
}

// strangeUnix counts the Unix sockets that the agent does not hold.
func (s *socketCounts) strangeUnix() (count int) {
	own := map[string]bool{}
	names, _ := os.ReadDir("/proc/self/fd")
	for _, name := range names {
		to, _ := os.Readlink("/proc/self/fd/" + name.Name())
		if inode, ok := strings.CutPrefix(to, "socket:["); ok {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for i, line := range strings.Split(string(s.unix.read()), "\n") {
		// Num RefCount Protocol Flags Type St Inode Path: an unaccepted connection has inode 0.
		if f := strings.Fields(line); i > 0 && len(f) > 6 && !own[f[6]] {
			count++
		}
	}
	return count
}
