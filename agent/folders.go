// Snapshots of folders in memory: `pack` runs in a second container, which shares the pids of the sandbox, and
// `unpack` in a sandbox whose image has the archive, as the sandbox's user.
package main

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// packFolders writes all that the folders of process 1 have to a new file of this container: FILE FOLDER...
func packFolders(args []string) error {
	to, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return err
	}
	defer to.Close()
	// Links lead where they lead in the sandbox, and to nothing of this container.
	if err := errors.Join(syscall.Chroot("/proc/1/root"), syscall.Chdir("/")); err != nil {
		return err
	}
	places, err := inMemory(args[1:])
	if err != nil {
		return err
	}
	out := bufio.NewWriterSize(to, chunkSize)
	k := keeper{since: math.MinInt64, mounts: mountPoints("1")}
	if _, err := k.pack(out, gzip.NoCompression, places); err != nil {
		return err
	}
	return errors.Join(out.Flush(), to.Close())
}

// unpackFolders unpacks the archive in a file: FILE WORKDIR FOLDER...
func unpackFolders(args []string) error {
	return restored(func() error {
		from, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer from.Close()
		places, err := inMemory(args[2:])
		if err != nil {
			return err
		}
		return unpack(from, append([]string{args[1]}, places...))
	})
}

// inMemory returns the paths of folders without links. It refuses what is not in memory: a program may have made
// a link to files that only root can read.
func inMemory(folders []string) (places []string, err error) {
	const tmpfsMagic = 0x01021994
	for _, folder := range folders {
		place, err := filepath.EvalSymlinks(folder)
		if err != nil {
			return nil, err
		}
		var fs syscall.Statfs_t
		if err := syscall.Statfs(place, &fs); err != nil || fs.Type != tmpfsMagic {
			return nil, fmt.Errorf("%s leads to %s, which is not in memory (error %v)", folder, place, err)
		}
		places = append(places, place)
	}
	return places, nil
}
