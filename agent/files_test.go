package main

import (
	"fmt"
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestWriteFileReplacesAtOnceAndKeepsTheMode(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a", "b")
	for mode, want := range map[uint32]os.FileMode{0o750: 0o750, 0o604: 0o604} {
		if err := writeFile(name, mode, []byte("he"), strings.NewReader("llo")); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(name, keepMode, []byte("again"), strings.NewReader("")); err != nil {
			t.Fatal(err)
		}
		info, _ := os.Stat(name)
		data, _ := os.ReadFile(name)
		if string(data) != "again" || info.Mode().Perm() != want {
			t.Fatalf("%q %v", data, info.Mode())
		}
	}
	entries, _ := os.ReadDir(filepath.Dir(name))
	if len(entries) != 1 {
		t.Fatalf("%d entries left", len(entries))
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errCancelled }

func TestAnInterruptedWriteLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	err := writeFile(filepath.Join(folder, "f"), keepMode, []byte("half"), failing{})
	if !errors.Is(err, errCancelled) {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 0 {
		t.Fatal("a temporary file was left")
	}
}

func TestArchivesCannotLeadOut(t *testing.T) {
	for _, name := range []string{"../x", "a/../../x", ".."} {
		var buf bytes.Buffer
		w := tar.NewWriter(&buf)
		_ = w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg})
		_ = w.Close()
		if err := putArchive(t.TempDir(), &buf); errnoOf(err) != syscall.EINVAL {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOwnProcEntriesAreForbidden(t *testing.T) {
	own := fmt.Sprintf("/proc/%d/stat", self)
	fd, err := syscall.Open(own, syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if !forbiddenProc(fd) {
		t.Fatal(own + " was allowed")
	}
	if guard("/proc/meminfo") != nil || guard("/etc/passwd") != nil {
		t.Fatal("a file that is not the agent's was refused")
	}
}
