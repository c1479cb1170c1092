// File calls, which run on a thread with the rights of the sandbox's user.
package main

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	oPath     = 0x200000
	procMagic = 0x9fa0
	keepMode  = math.MaxUint32
)

// forbiddenProc reports whether an open descriptor is one of the agent's own /proc entries. The kernel
// lets every thread of the agent open these, regardless of the user that the thread acts as.
func forbiddenProc(fd int) bool {
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(fd, &fs); err != nil || fs.Type != procMagic {
		return false
	}
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return true
	}
	for _, part := range strings.Split(name, "/") {
		pid, err := strconv.Atoi(part)
		if err != nil {
			continue
		}
		_, err = os.Lstat("/proc/self/task/" + strconv.Itoa(pid))
		return pid == self || err == nil
	}
	return false
}

// guard returns an error if a path resolves, through links too, to one of the agent's own /proc entries.
func guard(name string) error {
	fd, err := syscall.Open(name, oPath|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil // the call itself will report this error
	}
	defer syscall.Close(fd)
	if forbiddenProc(fd) {
		return fmt.Errorf("%s: the sandbox's agent: %w", name, syscall.EACCES)
	}
	return nil
}

// openRegular opens a regular file for reading. It never blocks on a named pipe.
func openRegular(name string) (*os.File, os.FileInfo, error) {
	if err := guard(name); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case forbiddenProc(int(f.Fd())):
		err = fmt.Errorf("%s: the sandbox's agent: %w", name, syscall.EACCES)
	case info.IsDir():
		err = fmt.Errorf("%s: %w", name, syscall.EISDIR)
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s: not a regular file: %w", name, syscall.EINVAL)
	default:
		return f, info, nil
	}
	f.Close()
	return nil, nil, err
}

func readFile(s *stream, name string, limit uint64) error {
	f, info, err := openRegular(name)
	if err != nil {
		return err
	}
	defer f.Close()
	tooBig := fmt.Errorf("%s: larger than the limit of %d bytes: %w", name, limit, syscall.EFBIG)
	if uint64(info.Size()) > limit {
		return tooBig
	}
	buf := make([]byte, min(max(info.Size()+1, 4096), chunkSize))
	for total := uint64(0); ; {
		n, err := f.Read(buf)
		if total += uint64(n); total > limit {
			return tooBig
		}
		if e := s.send(kStdout, buf[:n]); e != nil {
			return e
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// writeFile replaces a file atomically: it writes a temporary file in the same folder and renames it.
func writeFile(name string, mode uint32, head []byte, rest io.Reader) (err error) {
	if err := os.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	asked := name
	if real, e := filepath.EvalSymlinks(name); e == nil {
		name = real
	}
	permissions := os.FileMode(0o644)
	info, err := os.Lstat(name)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s: %w", name, syscall.EISDIR)
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file: %w", name, syscall.EINVAL)
	case err == nil:
		permissions = info.Mode() & (os.ModePerm | os.ModeSetuid | os.ModeSetgid | os.ModeSticky)
	case !errors.Is(err, os.ErrNotExist):
		return err
	}
	var random [6]byte
	_, _ = rand.Read(random[:])
	base := path.Base(name)
	temporary := path.Join(path.Dir(name), "."+base[:min(len(base), 200)]+"."+hex.EncodeToString(random[:]))
	defer func() { err = notWritten(asked, err) }()
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
		}
	}()
	if _, err = f.Write(head); err == nil && rest != nil {
		// Plain io.Copy would try splice, and allocate its own buffer.
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, rest, make([]byte, chunkSize))
	}
	if err == nil {
		if mode == keepMode {
			err = f.Chmod(permissions)
		} else {
			err = syscall.Fchmod(int(f.Fd()), mode&0o7777)
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary, name)
}

// notWritten returns an error that names the file that a client asked for, in the place of a temporary one. Where there is
// no room it says how much there was.
func notWritten(name string, err error) error {
	var at *os.PathError
	if !errors.As(err, &at) {
		return err
	}
	var fs syscall.Statfs_t
	if !errors.Is(err, syscall.ENOSPC) || syscall.Statfs(path.Dir(name), &fs) != nil {
		return fmt.Errorf("%s: %w", name, at.Err)
	}
	room := fmt.Sprintf("%d MiB", fs.Blocks*uint64(fs.Bsize)>>20)
	if fs.Files > 0 && fs.Ffree == 0 {
		room = fmt.Sprintf("%d files", fs.Files)
	}
	return fmt.Errorf("%s: %w: there is room for %s in all; remove files, or give a larger disk_mb", name, at.Err, room)
}

// putInfo appends one FileInfo: path, type, size in bytes, mode, mtime in nanoseconds.
func putInfo(out []byte, name string, st *syscall.Stat_t) []byte {
	kinds := map[uint32]uint8{syscall.S_IFREG: 1, syscall.S_IFDIR: 2, syscall.S_IFLNK: 3}
	out = putString(out, name)
	out = append(out, kinds[st.Mode&syscall.S_IFMT])
	out = binary.BigEndian.AppendUint64(out, uint64(st.Size))
	out = binary.BigEndian.AppendUint32(out, st.Mode&0o7777)
	return binary.BigEndian.AppendUint64(out, uint64(st.Mtim.Nano()))
}

func statPath(name string) ([]byte, error) {
	var st syscall.Stat_t
	if err := syscall.Lstat(inside(name), &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: name, Err: err}
	}
	return putInfo(nil, name, &st), nil
}

// listDir sends a folder's entries as stream data, because a large folder may not fit in one frame.
func listDir(s *stream, name string) error {
	folder := inside(name)
	if err := guard(folder); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var out []byte
	for _, entry := range entries {
		var st syscall.Stat_t
		if syscall.Lstat(path.Join(folder, entry.Name()), &st) != nil {
			continue // removed in the meantime
		}
		out = putInfo(out, path.Join(name, entry.Name()), &st)
		if len(out) >= chunkSize/2 {
			if err := s.send(kStdout, out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	return s.send(kStdout, out)
}

func removePath(name string, recursive bool) error {
	if _, err := os.Lstat(name); err != nil {
		return err
	}
	if recursive {
		return os.RemoveAll(name)
	}
	return os.Remove(name)
}

// residentOf returns a process's resident memory in bytes.
func residentOf(pid int) uint64 {
	data, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if f := strings.Fields(string(data)); len(f) > 1 {
		pages, _ := strconv.ParseUint(f[1], 10, 64)
		return pages * uint64(os.Getpagesize())
	}
	return 0
}
