// Programs for snapshots whose archive reaches its pod in an image: `stage` runs in a container of that image
// and copies the archive into a volume, from which `unstage` unpacks it in the sandbox's container.
//
// The volume stays mounted in the sandbox, whose programs must not read there what the sandbox has
// deleted. So the copy is encrypted with a key that the client makes for this pod, and sends to `unstage`
// on stdin: command lines are visible in the sandbox.
package main

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// keyLength is that of a key in hexadecimal.
const keyLength = 64

// stage copies a file, encrypted: FROM TO KEY.
func stage(args []string) error {
	if len(args) != 3 {
		return fmt.Errorf("give a file, its copy and a key")
	}
	stream, err := streamOf(args[2])
	if err != nil {
		return err
	}
	from, err := os.Open(args[0])
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(args[1], os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o444)
	if err != nil {
		return err
	}
	if _, err := io.Copy(cipher.StreamWriter{S: stream, W: to}, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}

// unstage does what restore does, with the archive in a file that `stage` wrote: FILE WORKDIR PLACE... It
// reads the key and a line feed from stdin.
func unstage(args []string) error {
	if len(args) < 1 {
		return fmt.Errorf("give a file, the workdir and the writable places")
	}
	return restored(func() error {
		line := make([]byte, keyLength+1)
		if _, err := io.ReadFull(os.Stdin, line); err != nil {
			return fmt.Errorf("the key: %w", err)
		}
		stream, err := streamOf(string(line[:keyLength]))
		if err != nil {
			return err
		}
		from, err := os.Open(args[0])
		if err != nil {
			return err
		}
		defer from.Close()
		return unpack(cipher.StreamReader{S: stream, R: from}, args[1:])
	})
}

// streamOf returns the stream of a key in hexadecimal. A key is used once, so the first block may be zero.
func streamOf(key string) (cipher.Stream, error) {
	bytes, err := hex.DecodeString(key)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(bytes)
	if err != nil {
		return nil, err
	}
	return cipher.NewCTR(block, make([]byte, aes.BlockSize)), nil
}
