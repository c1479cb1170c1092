// Pseudo-terminals for commands that request one.
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

func ioctl(fd, request, arg uintptr) error {
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, request, arg); errno != 0 {
		return errno
	}
	return nil
}

// openPty opens a pseudo-terminal and returns its master, which is non-blocking, and its slave. The
// slave belongs to the user that the calling thread acts as.
func openPty(rows, cols uint16) (master, slave int, err error) {
	master, err = syscall.Open("/dev/ptmx", syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open /dev/ptmx: %w", err)
	}
	var unlock int32
	var number uint32
	if err = ioctl(uintptr(master), syscall.TIOCSPTLCK, uintptr(unsafe.Pointer(&unlock))); err == nil {
		err = ioctl(uintptr(master), syscall.TIOCGPTN, uintptr(unsafe.Pointer(&number)))
	}
	if err == nil {
		slave, err = syscall.Open("/dev/pts/"+strconv.Itoa(int(number)),
			syscall.O_RDWR|syscall.O_NOCTTY|syscall.O_CLOEXEC, 0)
	}
	if err == nil {
		err = resize(master, rows, cols)
	}
	if err == nil {
		err = syscall.SetNonblock(master, true)
	}
	if err != nil {
		syscall.Close(master)
		return 0, 0, fmt.Errorf("open a terminal: %w", err)
	}
	return master, slave, nil
}

func resize(master int, rows, cols uint16) error {
	size := [4]uint16{rows, cols}
	return ioctl(uintptr(master), syscall.TIOCSWINSZ, uintptr(unsafe.Pointer(&size)))
}

// readable returns how many bytes can be read from a pipe or terminal without blocking.
func readable(f *os.File) int {
	var n int32
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		_ = ioctl(fd, syscall.TIOCINQ, uintptr(unsafe.Pointer(&n)))
	})
	return int(n)
}
