// Unpacks the archive that `keep` wrote of another container of the same image, before any command runs.
//
// The members come as `keep` walked: a folder, its changed files, then its folders. The folders above the
// member at hand are open. Each gets its final mode and times when the walk leaves it.
package main

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const atEmptyPath = 0x1000

// restoredMark is the line that a restore prints unless it fails.
const restoredMark = "restored"

// An openFolder is a folder on the way to the member at hand. head is what it is to be in the end.
type openFolder struct {
	entry
	name string
	head *tar.Header
}

type restorer struct {
	r       *tar.Reader
	workdir string
	places  []string
	mounts  map[string]bool
	open    []*openFolder
	buf     []byte
}

// restore unpacks the archive on stdin: WORKDIR PLACE...
func restore(args []string) error {
	return restored(func() error { return unpack(os.Stdin, args) })
}

// restored prints one line on how unpacking went. After a failure it reads stdin until the client closes it:
// some clusters do not report the end of a program that leaves input unread.
func restored(unpacking func() error) error {
	err := unpacking()
	if err == nil {
		fmt.Println(restoredMark)
		return nil
	}
	fmt.Println("sandbox agent:", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return err
}

// unpack unpacks an archive into the places that it was made of: WORKDIR PLACE... It does not remove the
// workdir, which the agent has made.
func unpack(archive io.Reader, args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("give the workdir and the writable places")
	}
	syscall.Umask(0)
	packed, err := gzip.NewReader(bufio.NewReaderSize(archive, chunkSize))
	if err != nil {
		return fmt.Errorf("the archive: %w", err)
	}
	r := &restorer{
		r:       tar.NewReader(packed),
		workdir: args[0],
		places:  args[1:],
		mounts:  mountPoints("self"),
		buf:     make([]byte, chunkSize),
	}
	long := map[string]string{} // records of the next member
	for {
		head, err := r.r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the archive: %w", err)
		}
		if key := head.PAXRecords[recRecord]; key != "" {
			value, err := io.ReadAll(r.r)
			if err != nil {
				return fmt.Errorf("the archive: %w", err)
			}
			long[key] = string(value)
			continue
		}
		if len(long) > 0 {
			maps.Copy(long, head.PAXRecords)
			head.PAXRecords, long = long, map[string]string{}
		}
		name := path.Clean("/" + head.Name)
		if r.isCovered(name) {
			continue
		}
		if err := r.member(name, head); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return r.leave(0)
}

// isCovered reports whether a mount that is no place lies at a path or above it.
func (r *restorer) isCovered(name string) bool {
	for at := name; at != "/" && !slices.Contains(r.places, at); at = path.Dir(at) {
		if r.mounts[at] {
			return true
		}
	}
	return false
}

// hasMount reports whether any mount lies at a path or below it.
func (r *restorer) hasMount(name string) bool {
	for at := range r.mounts {
		if at == name || strings.HasPrefix(at, name+"/") {
			return true
		}
	}
	return false
}

func (r *restorer) member(name string, head *tar.Header) error {
	if head.Typeflag == tar.TypeDir && slices.Contains(r.places, name) {
		return r.place(name, head)
	}
	above, err := r.enter(path.Dir(name))
	if err != nil {
		return err
	}
	if err := ownerOf(&above.st).act(); err != nil {
		return err
	}
	at := above.path() + "/" + path.Base(name)
	if head.Typeflag == tar.TypeDir {
		err := syscall.Mkdir(at, 0o700)
		if errors.Is(err, syscall.EEXIST) {
			var st syscall.Stat_t
			if err = syscall.Lstat(at, &st); err == nil && st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
				if err = syscall.Unlink(at); err == nil {
					err = syscall.Mkdir(at, 0o700)
				}
			}
		}
		if err != nil {
			return err
		}
		return r.push(name, at, head)
	}
	if err := r.remove(name, at, ownerOf(&above.st)); err != nil {
		return err
	}
	if err := ownerOf(&above.st).act(); err != nil {
		return err
	}
	switch head.Typeflag {
	case tar.TypeReg:
		err = r.content(at, head)
	case tar.TypeSymlink:
		err = syscall.Symlink(head.Linkname, at)
	case tar.TypeFifo:
		err = syscall.Mkfifo(at, 0o600)
	case tar.TypeLink:
		return r.link(above, at, head)
	default:
		return syscall.EINVAL
	}
	if err != nil {
		return err
	}
	made, err := reach(at)
	if err != nil {
		return err
	}
	defer syscall.Close(made.fd)
	return made.become(head)
}

// place begins a walk below one of the places.
func (r *restorer) place(name string, head *tar.Header) error {
	if err := r.leave(0); err != nil {
		return err
	}
	if err := (owner{}).act(); err != nil {
		return err
	}
	return r.push(name, name, head)
}

// enter returns the open folder at a path, and leaves all that are not above it.
func (r *restorer) enter(name string) (*openFolder, error) {
	count := 0
	for count < len(r.open) && isWithin(name, r.open[count].name) {
		count++
	}
	if err := r.leave(count); err != nil {
		return nil, err
	}
	if count == 0 { // nothing of the place's own folder has changed
		place := "/"
		for _, each := range r.places {
			if isWithin(name, each) && len(each) > len(place) {
				place = each
			}
		}
		if err := r.place(place, nil); err != nil {
			return nil, err
		}
	}
	for top := r.open[len(r.open)-1]; top.name != name; top = r.open[len(r.open)-1] {
		next, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(name, top.name), "/"), "/")
		if err := ownerOf(&top.st).act(); err != nil {
			return nil, err
		}
		if err := r.push(path.Join(top.name, next), top.path()+"/"+next, nil); err != nil {
			return nil, err
		}
	}
	return r.open[len(r.open)-1], nil
}

func isWithin(name, folder string) bool {
	return name == folder || folder == "/" || strings.HasPrefix(name, folder+"/")
}

// push opens a folder. Without a header it stays as it is.
func (r *restorer) push(name, at string, head *tar.Header) error {
	e, err := reach(at)
	if err != nil {
		return err
	}
	if !e.isFolder() {
		syscall.Close(e.fd)
		return syscall.ENOTDIR
	}
	f := &openFolder{e, name, head}
	if head == nil {
		f.head = header(name+"/", &e.st, tar.TypeDir)
	}
	r.open = append(r.open, f)
	if _, err := f.allow(0o700); err != nil || head == nil {
		return err
	}
	return r.clear(f)
}

// clear removes what a folder of the image has and the archive's does not.
func (r *restorer) clear(f *openFolder) error {
	same := namesOf(f.head, recSame)
	keeps := map[string]bool{}
	for _, each := range append(namesOf(f.head, recFolders), same...) {
		keeps[each] = true
	}
	names, err := namesIn(f.path())
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, each := range names {
		there[each] = true
		if !keeps[each] {
			if err := r.remove(path.Join(f.name, each), f.path()+"/"+each, ownerOf(&f.st)); err != nil {
				return err
			}
		}
	}
	for _, each := range same {
		if !there[each] {
			return fmt.Errorf("the image has no %s, which was there unchanged: it is not the image of the snapshot",
				path.Join(f.name, each))
		}
	}
	return nil
}

func namesOf(head *tar.Header, record string) []string {
	return slices.DeleteFunc(strings.Split(head.PAXRecords[record], "/"), func(s string) bool { return s == "" })
}

// remove removes what is at a path, except mounts, the workdir and the folders above them.
func (r *restorer) remove(name, at string, above owner) error {
	if err := above.act(); err != nil {
		return err
	}
	if r.mounts[name] {
		return nil
	}
	err := syscall.Unlink(at)
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	e, failed := reach(at)
	if failed != nil {
		return failed
	}
	defer syscall.Close(e.fd)
	if !e.isFolder() {
		return err
	}
	undo, err := e.allow(0o700)
	if err != nil {
		return err
	}
	names, err := namesIn(e.path())
	if err != nil {
		return err
	}
	for _, each := range names {
		if err := r.remove(path.Join(name, each), e.path()+"/"+each, ownerOf(&e.st)); err != nil {
			return err
		}
	}
	if isWithin(r.workdir, name) || r.hasMount(name) {
		undo()
		return nil
	}
	if err := above.act(); err != nil {
		return err
	}
	return syscall.Rmdir(at)
}

// leave finishes all open folders but the first ones.
func (r *restorer) leave(count int) error {
	for len(r.open) > count {
		f := r.open[len(r.open)-1]
		r.open = r.open[:len(r.open)-1]
		err := f.become(f.head)
		syscall.Close(f.fd)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// become gives an entry the owner, attributes, mode and times of a header.
func (e *entry) become(head *tar.Header) error {
	wanted := owner{uint32(head.Uid), uint32(head.Gid)}
	if own := uint32(os.Getuid()); own != 0 && own != e.st.Uid && wanted == ownerOf(&e.st) {
		return nil // the sandbox's only user cannot have changed it, only the times of a folder
	}
	if wanted != ownerOf(&e.st) {
		if err := (owner{}).act(); err != nil {
			return err
		}
		empty := []byte{0}
		_, _, errno := syscall.Syscall6(syscall.SYS_FCHOWNAT, uintptr(e.fd), uintptr(unsafe.Pointer(&empty[0])),
			uintptr(wanted.uid), uintptr(wanted.gid), atEmptyPath, 0)
		if errno == syscall.EPERM && os.Getuid() != 0 {
			wanted = ownerOf(&e.st) // it belongs to the sandbox's only user now
		} else if errno != 0 {
			return fmt.Errorf("owner %d:%d: %w", wanted.uid, wanted.gid, errno)
		}
		e.st.Uid, e.st.Gid = wanted.uid, wanted.gid
	}
	if err := wanted.act(); err != nil {
		return err
	}
	for key, value := range head.PAXRecords {
		if name, is := strings.CutPrefix(key, recXattr); is {
			if err := syscall.Setxattr(e.path(), unescapeName.Replace(name), []byte(value), 0); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	if head.Typeflag != tar.TypeSymlink {
		if err := syscall.Chmod(e.path(), uint32(head.Mode)); err != nil {
			return err
		}
	}
	return syscall.UtimesNano(e.path(), []syscall.Timespec{timespec(head.AccessTime), timespec(head.ModTime)})
}

func timespec(t time.Time) syscall.Timespec { return syscall.NsecToTimespec(t.UnixNano()) }

// content writes a new file, with its holes.
func (r *restorer) content(at string, head *tar.Header) error {
	f, err := os.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	size, holes := head.PAXRecords[recSize]
	if !holes {
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{r.r}, r.buf)
		return errors.Join(err, f.Close())
	}
	numbers := strings.FieldsFunc(head.PAXRecords[recParts], func(c rune) bool { return c == ',' })
	for i := 0; i+1 < len(numbers); i += 2 {
		from, e1 := strconv.ParseInt(numbers[i], 10, 64)
		length, e2 := strconv.ParseInt(numbers[i+1], 10, 64)
		if err := errors.Join(e1, e2); err != nil {
			return err
		}
		part := io.LimitReader(r.r, length)
		if _, err := io.CopyBuffer(io.NewOffsetWriter(f, from), part, r.buf); err != nil {
			return err
		}
	}
	whole, err := strconv.ParseInt(size, 10, 64)
	if err == nil {
		err = f.Truncate(whole)
	}
	return errors.Join(err, f.Close())
}

// link makes a further name of a file that an earlier member is.
func (r *restorer) link(above *openFolder, at string, head *tar.Header) error {
	first := path.Clean("/" + head.Linkname)
	err := linkTo(first, at, 0)
	if !slices.Contains([]error{syscall.EPERM, syscall.EACCES, syscall.ENAMETOOLONG}, err) {
		return err
	}
	// A folder on the way is closed to others, or the kernel lets only its owner link a file.
	e, err := reachFromRoot(first)
	if err != nil {
		return err
	}
	defer syscall.Close(e.fd)
	if err := ownerOf(&above.st).act(); err != nil {
		return err
	}
	if err := syscall.Chmod(above.path(), 0o777); err != nil {
		return err
	}
	if err := ownerOf(&e.st).act(); err != nil {
		return err
	}
	const follow = 0x400
	return linkTo(e.path(), at, follow)
}

// reachFromRoot returns the entry at a path of any length, with the rights of each folder's owner.
func reachFromRoot(name string) (e entry, err error) {
	if e, err = reach("/"); err != nil {
		return e, err
	}
	for _, each := range strings.Split(strings.Trim(name, "/"), "/") {
		undo, err := e.allow(0o100)
		var inner entry
		if err == nil {
			inner, err = reach(e.path() + "/" + each)
		}
		undo()
		syscall.Close(e.fd)
		if err != nil {
			return e, err
		}
		e = inner
	}
	return e, nil
}

func linkTo(first, at string, flags uintptr) error {
	here := -100 // AT_FDCWD
	from, err := syscall.BytePtrFromString(first)
	if err != nil {
		return err
	}
	to, err := syscall.BytePtrFromString(at)
	if err != nil {
		return err
	}
	_, _, errno := syscall.Syscall6(syscall.SYS_LINKAT, uintptr(here), uintptr(unsafe.Pointer(from)),
		uintptr(here), uintptr(unsafe.Pointer(to)), flags, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
