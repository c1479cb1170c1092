// Transfer of whole folders as tar streams, in both directions.
package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

type streamWriter struct{ s *stream }

func (w streamWriter) Write(p []byte) (int, error) {
	if err := w.s.send(kStdout, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// putArchive unpacks a tar stream into a folder. It sets folder modes last, because a mode may
// forbid writing.
func putArchive(folder string, from io.Reader) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	type late struct {
		name string
		head *tar.Header
	}
	var folders []late
	r := tar.NewReader(from)
	buf := make([]byte, chunkSize)
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return archiveError(folder, err)
		}
		name := path.Clean("/" + head.Name)
		if strings.Contains("/"+head.Name+"/", "/../") {
			return fmt.Errorf("archive member %q leads out of %s: %w", head.Name, folder, syscall.EINVAL)
		}
		full := path.Join(folder, name)
		if name != "/" {
			if err := os.MkdirAll(path.Dir(full), 0o755); err != nil {
				return err
			}
		}
		switch head.Typeflag {
		case tar.TypeDir:
			if err := os.Mkdir(full, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			if info, err := os.Stat(full); err != nil || !info.IsDir() {
				return fmt.Errorf("%s: %w", full, syscall.ENOTDIR)
			}
			folders = append(folders, late{full, head})
		case tar.TypeReg:
			if err := unpackFile(full, head, r, buf); err != nil {
				return archiveError(full, err)
			}
		case tar.TypeSymlink:
			if err := replace(full, func() error { return os.Symlink(head.Linkname, full) }); err != nil {
				return err
			}
		case tar.TypeLink:
			target := path.Join(folder, path.Clean("/"+head.Linkname))
			if err := replace(full, func() error { return os.Link(target, full) }); err != nil {
				return err
			}
		default:
			return fmt.Errorf("archive member %q is not a file, folder or link: %w", head.Name, syscall.EINVAL)
		}
	}
	// Everything after the end marker is padding.
	if _, err := io.Copy(io.Discard, from); err != nil {
		return err
	}
	for i := len(folders) - 1; i >= 0; i-- {
		if err := syscall.Chmod(folders[i].name, uint32(folders[i].head.Mode&0o7777)); err != nil {
			return &os.PathError{Op: "chmod", Path: folders[i].name, Err: err}
		}
		setTime(folders[i].name, folders[i].head.ModTime)
	}
	return nil
}

func archiveError(name string, err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: broken archive: %v: %w", name, err, syscall.EINVAL)
	}
	return err
}

func setTime(name string, mtime time.Time) {
	if !mtime.IsZero() && mtime.Unix() > 0 {
		_ = os.Chtimes(name, mtime, mtime)
	}
}

// replace calls make to create name and removes an existing file or link of that name first.
// It does not remove a folder.
func replace(name string, make func() error) error {
	err := make()
	if errors.Is(err, os.ErrExist) {
		if info, e := os.Lstat(name); e == nil && info.IsDir() {
			return err
		}
		if err := os.Remove(name); err != nil {
			return err
		}
		return make()
	}
	return err
}

func unpackFile(name string, head *tar.Header, from io.Reader, buf []byte) error {
	var f *os.File
	err := replace(name, func() (err error) {
		f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o600)
		return err
	})
	if err != nil {
		return err
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{f}, from, buf)
	if err == nil {
		err = syscall.Fchmod(int(f.Fd()), uint32(head.Mode&0o7777))
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		setTime(name, head.ModTime)
	}
	return notWritten(name, err)
}

// getArchive sends a folder's contents, or one file, as a tar stream. It leaves out sockets, pipes
// and devices, and what is removed meanwhile. A pipe stands for what its user may not read.
func getArchive(s *stream, name string) error {
	if err := guard(name); err != nil {
		return err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return err
	}
	w := tar.NewWriter(streamWriter{s})
	buf := make([]byte, chunkSize)
	if !info.IsDir() {
		if err := packOne(w, name, path.Base(name), info, buf); err != nil {
			return err
		}
		return w.Close()
	}
	err = filepath.WalkDir(name, func(full string, entry fs.DirEntry, err error) error {
		if full == name {
			return err
		}
		relative, _ := filepath.Rel(name, full) // of two absolute paths
		var info fs.FileInfo
		if err == nil {
			info, err = entry.Info()
		}
		if err == nil {
			err = packOne(w, full, relative, info, buf)
		}
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case errors.Is(err, os.ErrPermission):
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeFifo, Name: relative})
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.Close()
}

func packOne(w *tar.Writer, full, name string, info fs.FileInfo, buf []byte) error {
	link := ""
	var f *os.File
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(full)
		if err != nil {
			return err
		}
		link = target
	case info.Mode().IsRegular():
		opened, now, err := openRegular(full)
		if err != nil {
			return err
		}
		defer opened.Close()
		f, info = opened, now
	case !info.IsDir():
		return nil
	}
	head, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	head.Name, head.Uname, head.Gname = name, "", ""
	if info.IsDir() {
		head.Name += "/"
	}
	if err := w.WriteHeader(head); err != nil {
		return err
	}
	if f == nil {
		return nil
	}
	// The header has fixed the size: truncate a file that grew, pad one that shrank with zeros.
	n, err := io.CopyBuffer(struct{ io.Writer }{w}, io.LimitReader(f, head.Size), buf)
	if err != nil {
		return err
	}
	_, err = io.CopyN(w, zeros{}, head.Size-n)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
