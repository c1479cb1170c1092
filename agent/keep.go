// A snapshot of files, for a client that cannot read the container's layers: `keep` writes what has changed
// since the container's start to its stdout, as a compressed tar that `restore` unpacks in another container.
//
// A file has changed if its ctime is not older than the start of process 1. No program can set a ctime, and
// everything that reaches the writable layer of an overlay gets a new one; the image was unpacked before.
package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const (
	// recSame lists the entries of a changed folder that are as in the image. `restore` removes all that
	// are neither there, nor folders with changes (recFolders), nor members of the archive.
	recSame    = "SANDBOXKIT.same"
	recFolders = "SANDBOXKIT.folders"
	// recParts has offset and length of each part of a file with holes, recSize the file's size.
	recParts = "SANDBOXKIT.parts"
	recSize  = "SANDBOXKIT.size"
	// recXattr and an escaped name has the value of an attribute.
	recXattr = "SCHILY.xattr."
	// recRecord marks a member whose content is a record of the next member: readers and writers refuse headers
	// of more than 1 MiB. Its value is the record's key.
	recRecord = "SANDBOXKIT.record"
	// longRecord is the length of a record that is always such a member, and headerRoom that of all others.
	longRecord, headerRoom = 4096, 512 << 10

	// keptMark follows the archive, and shows that it is whole and how large the tar is.
	keptMark = "SBXKEPT %016x\n"
	// startSlack is how much later than the container's files process 1 may have started.
	startSlack = time.Second

	seekData, seekHole = 3, 4
)

// escapeName and unescapeName are for names of attributes: the key of a record has no "=".
var (
	escapeName   = strings.NewReplacer("%", "%25", "=", "%3D")
	unescapeName = strings.NewReplacer("%25", "%", "%3D", "=")
)

// An owner is a user who may do what nobody else may with a file, because the program has no capability
// that overrides modes.
type owner struct{ uid, gid uint32 }

func ownerOf(st *syscall.Stat_t) owner { return owner{st.Uid, st.Gid} }

// acting is the owner as whom the thread acts; nil if that is unknown.
var acting *owner

// act gives this thread the rights of a file's owner. Where the program is not root, it only has its own.
func (o owner) act() error {
	if os.Getuid() != 0 || acting != nil && *acting == o {
		return nil
	}
	acting = nil
	// The effective uid 0 returns the capabilities that changing ids needs.
	if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, 0); e != nil {
		return e
	}
	if e := setGroups([]uint32{o.gid}); e != nil {
		return e
	}
	if e := becomeEffective(syscall.SYS_SETRESGID, syscall.SYS_GETRESGID, o.gid); e != nil {
		return e
	}
	if e := becomeEffective(syscall.SYS_SETRESUID, syscall.SYS_GETRESUID, o.uid); e != nil {
		return e
	}
	syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0) // a change of ids sets it
	acting = &o
	return nil
}

// An entry is a descriptor of a file, folder or link that does not open it. Its path in /proc leads there
// without a look at the folders above, which its owner may not enter.
type entry struct {
	fd int
	st syscall.Stat_t
}

// reach returns the entry at a path. The thread must act as the owner of the folder that contains it.
func reach(at string) (e entry, err error) {
	if e.fd, err = syscall.Open(at, oPath|syscall.O_NOFOLLOW|syscall.O_CLOEXEC, 0); err != nil {
		return e, err
	}
	if err = syscall.Fstat(e.fd, &e.st); err != nil {
		syscall.Close(e.fd)
	}
	return e, err
}

func (e *entry) path() string { return "/proc/self/fd/" + strconv.Itoa(e.fd) }

func (e *entry) isFolder() bool { return e.st.Mode&syscall.S_IFMT == syscall.S_IFDIR }

// allow makes the thread act as the entry's owner and adds bits to the mode. The returned function restores
// the mode.
func (e *entry) allow(bits uint32) (undo func(), err error) {
	undo = func() {}
	if err := ownerOf(&e.st).act(); err != nil || e.st.Mode&bits == bits {
		return undo, err
	}
	if err := syscall.Chmod(e.path(), e.st.Mode&0o7777|bits); err != nil {
		return undo, err
	}
	return func() {
		_ = ownerOf(&e.st).act()
		_ = syscall.Chmod(e.path(), e.st.Mode&0o7777)
	}, nil
}

// with acts as the entry's owner, and does something for which the mode must have some bits. They are added for
// no longer, so that a kill seldom finds them added.
func (e *entry) with(bits uint32, do func() error) error {
	if err := ownerOf(&e.st).act(); err != nil {
		return err
	}
	if e.st.Mode&bits == bits {
		return do()
	}
	if err := syscall.Chmod(e.path(), e.st.Mode&0o7777|bits); err != nil {
		return err
	}
	return errors.Join(do(), syscall.Chmod(e.path(), e.st.Mode&0o7777))
}

type keeper struct {
	w      *tar.Writer
	since  int64 // in ns since the epoch
	mounts map[string]bool
	linked map[[2]uint64]string
	buf    []byte
}

// keep writes what has changed in the places since the start of process 1, or since a Unix time if that is
// earlier: SINCE PLACE...
func keep(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("give a time and the writable places")
	}
	latest, err := strconv.ParseFloat(args[0], 64)
	if err != nil {
		return err
	}
	begin, err := began()
	if err != nil {
		return err
	}
	begin = min(begin, latest)
	if err := syscall.SetNonblock(1, true); err != nil {
		return err
	}
	stdout := os.NewFile(1, "stdout")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stdout.Close() // the client has gone: end a write that nobody reads
	}()
	out := bufio.NewWriterSize(stdout, chunkSize)
	k := keeper{since: int64((begin - startSlack.Seconds()) * 1e9), mounts: mountPoints("self")}
	// Higher levels take several times the processor time, while the sandbox is paused, for few bytes less.
	size, err := k.pack(out, gzip.BestSpeed, args[1:])
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(out, keptMark, size); err != nil {
		return err
	}
	return out.Flush()
}

// pack writes the changes in the places, and returns the size of the tar before its compression.
func (k *keeper) pack(out io.Writer, level int, places []string) (int64, error) {
	packed, err := gzip.NewWriterLevel(out, level)
	if err != nil {
		return 0, err
	}
	all := countingWriter{Writer: packed}
	k.w, k.linked, k.buf = tar.NewWriter(&all), map[[2]uint64]string{}, make([]byte, chunkSize)
	for _, place := range places {
		root, err := reach(place)
		if err == nil {
			err = k.folder(place, &root)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := k.w.Close(); err != nil {
		return 0, err
	}
	return all.bytes, packed.Close()
}

type countingWriter struct {
	io.Writer
	bytes int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	c.bytes += int64(len(p))
	return c.Writer.Write(p)
}

// began returns when process 1 started, as a Unix time by the present wall clock.
func began() (float64, error) {
	const ticks = 100
	data, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return 0, err
	}
	up, err := strconv.ParseFloat(strings.Fields(string(data))[0], 64)
	if err != nil {
		return 0, err
	}
	first, ok := readStat(1)
	if !ok {
		return 0, errors.New("process 1 cannot be seen")
	}
	age := math.Max(up-float64(first.start)/ticks, 0)
	return float64(time.Now().UnixNano())/1e9 - age, nil
}

// mountPoints returns the paths at which a process sees mounts: its number, or "self".
func mountPoints(process string) map[string]bool {
	found := map[string]bool{}
	data, _ := os.ReadFile("/proc/" + process + "/mountinfo")
	for _, m := range mounts(string(data)) {
		found[m.path] = true
	}
	return found
}

// mayChange reports whether the sandbox can have changed a file in a folder. A file of the image whose ctime is that
// of a recent pull is not its doing if its only user may write to neither.
func mayChange(folder, file *syscall.Stat_t) bool {
	own := uint32(os.Getuid())
	return own == 0 || file.Uid == own || folder.Uid == own || (folder.Mode|file.Mode)&0o022 != 0
}

// header begins a member, and writes before it the records for which its header has no room.
func (k *keeper) header(head *tar.Header) error {
	room := headerRoom
	for _, key := range slices.Sorted(maps.Keys(head.PAXRecords)) {
		value := head.PAXRecords[key]
		if length := len(key) + len(value); len(value) <= longRecord && length <= room {
			room -= length
			continue
		}
		delete(head.PAXRecords, key)
		before := &tar.Header{Typeflag: tar.TypeReg, Name: "record", Size: int64(len(value)), Format: tar.FormatPAX}
		before.PAXRecords = map[string]string{recRecord: key}
		if err := k.w.WriteHeader(before); err != nil {
			return err
		}
		if _, err := io.WriteString(k.w, value); err != nil {
			return err
		}
	}
	return k.w.WriteHeader(head)
}

func (k *keeper) isChanged(st *syscall.Stat_t) bool { return st.Ctim.Nano() >= k.since }

// folder writes a folder, if it has changed, and the changes below it. It closes the entry.
func (k *keeper) folder(name string, e *entry) error {
	defer syscall.Close(e.fd)
	var same, folders, below, changed []string
	var records map[string]string
	err := e.with(0o500, func() error {
		names, err := namesIn(e.path())
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, each := range names {
			if k.mounts[path.Join(name, each)] {
				folders = append(folders, each) // its contents are not kept, nor is it removed where it is no mount
				continue
			}
			var st syscall.Stat_t
			if err := syscall.Lstat(e.path()+"/"+each, &st); err != nil {
				return fmt.Errorf("%s: %w", each, err)
			}
			isFolder := st.Mode&syscall.S_IFMT == syscall.S_IFDIR
			switch {
			case !k.isChanged(&st) || !mayChange(&e.st, &st):
				same = append(same, each)
			case isFolder:
				folders = append(folders, each)
			default:
				changed = append(changed, each)
			}
			if isFolder {
				below = append(below, each)
			}
		}
		records = attributes(e.path())
		return nil
	})
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		if os.Getuid() != 0 && e.st.Uid != uint32(os.Getuid()) {
			return nil // the sandbox's only user cannot have changed anything in it
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if k.isChanged(&e.st) {
		head := header(name+"/", &e.st, tar.TypeDir)
		head.PAXRecords = records
		head.PAXRecords[recSame] = strings.Join(same, "/")
		head.PAXRecords[recFolders] = strings.Join(folders, "/")
		if err := k.header(head); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for number, each := range append(changed, below...) {
		var inner entry
		err := e.with(0o100, func() (err error) {
			inner, err = reach(e.path() + "/" + each)
			return err
		})
		if err == nil && number < len(changed) {
			err = k.other(path.Join(name, each), &inner)
		} else if err == nil {
			err = k.folder(path.Join(name, each), &inner)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// other writes what is no folder. It leaves out sockets and devices, and closes the entry.
func (k *keeper) other(name string, e *entry) error {
	defer syscall.Close(e.fd)
	id := [2]uint64{uint64(e.st.Dev), e.st.Ino}
	if first, ok := k.linked[id]; ok {
		head := header(name, &e.st, tar.TypeLink)
		head.Linkname = first
		return k.w.WriteHeader(head)
	}
	head := header(name, &e.st, tar.TypeReg)
	head.PAXRecords = map[string]string{}
	if e.st.Nlink > 1 {
		k.linked[id] = head.Name
	}
	var err error
	switch e.st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		err = k.file(head, e)
	case syscall.S_IFLNK:
		head.Typeflag = tar.TypeSymlink
		if head.Linkname, err = linkOf(e.fd); err == nil {
			err = k.w.WriteHeader(head)
		}
	case syscall.S_IFIFO:
		head.Typeflag = tar.TypeFifo
		err = k.w.WriteHeader(head)
	default:
		delete(k.linked, id)
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// linkOf returns the target of a link by its descriptor.
func linkOf(fd int) (string, error) {
	buf := make([]byte, syscall.PathMax+1)
	empty := []byte{0}
	n, _, errno := syscall.Syscall6(syscall.SYS_READLINKAT, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
	if errno != 0 {
		return "", errno
	}
	return string(buf[:n]), nil
}

func (k *keeper) file(head *tar.Header, e *entry) error {
	var f *os.File
	err := e.with(0o400, func() (err error) {
		if f, err = os.OpenFile(e.path(), os.O_RDONLY, 0); err == nil {
			maps.Copy(head.PAXRecords, attributes(e.path()))
		}
		return err
	})
	defer f.Close() // of a nil file it does nothing
	if err != nil {
		return err
	}
	head.Size = e.st.Size
	parts := [][2]int64{{0, e.st.Size}}
	if e.st.Blocks*512 < e.st.Size {
		if parts, err = dataOf(f, e.st.Size); err != nil {
			return err
		}
		var text []string
		head.Size = 0
		for _, part := range parts {
			head.Size += part[1]
			text = append(text, fmt.Sprint(part[0]), fmt.Sprint(part[1]))
		}
		head.PAXRecords[recSize] = fmt.Sprint(e.st.Size)
		head.PAXRecords[recParts] = strings.Join(text, ",")
	}
	if err := k.header(head); err != nil {
		return err
	}
	for _, part := range parts {
		from := io.NewSectionReader(f, part[0], part[1])
		n, err := io.CopyBuffer(struct{ io.Writer }{k.w}, struct{ io.Reader }{from}, k.buf)
		if err == nil && n < part[1] {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dataOf returns offset and length of each part of a file that is no hole.
func dataOf(f *os.File, size int64) (parts [][2]int64, err error) {
	for at := int64(0); at < size; {
		from, err := f.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			break
		}
		if err != nil {
			return nil, err
		}
		if at, err = f.Seek(from, seekHole); err != nil {
			return nil, err
		}
		parts = append(parts, [2]int64{from, min(at, size) - from})
	}
	return parts, nil
}

func header(name string, st *syscall.Stat_t, kind byte) *tar.Header {
	return &tar.Header{
		Typeflag:   kind,
		Name:       strings.TrimPrefix(name, "/"),
		Mode:       int64(st.Mode & 0o7777),
		Uid:        int(st.Uid),
		Gid:        int(st.Gid),
		ModTime:    time.Unix(st.Mtim.Unix()),
		AccessTime: time.Unix(st.Atim.Unix()),
		Format:     tar.FormatPAX,
	}
}

// attributes returns a file's extended attributes that users may set.
func attributes(at string) map[string]string {
	found := map[string]string{}
	buf := make([]byte, 64<<10)
	n, err := syscall.Listxattr(at, buf)
	if err != nil {
		return found // the file system has none
	}
	for _, name := range strings.Split(string(buf[:n]), "\x00") {
		// An overlay would obey its own attributes.
		if !strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "user.overlay.") {
			continue
		}
		value := make([]byte, 64<<10)
		if size, err := syscall.Getxattr(at, name, value); err == nil {
			found[recXattr+escapeName.Replace(name)] = string(value[:size])
		}
	}
	return found
}
