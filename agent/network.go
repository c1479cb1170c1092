// Removal of network interfaces, for a sandbox without a network.
package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
)

// removeInterfaces removes every network interface except the loopback, or takes it down if it cannot
// be removed. It needs CAP_NET_ADMIN, which the agent drops afterwards.
func removeInterfaces() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("network interfaces: %w", err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		if removed := setLink(syscall.RTM_DELLINK, i.Index, 0); removed == nil {
			continue
		}
		if err := setLink(syscall.RTM_NEWLINK, i.Index, syscall.IFF_UP); err != nil {
			return fmt.Errorf("network interface %s can neither be removed nor taken down: %w", i.Name, err)
		}
	}
	return nil
}

// setLink sends one netlink message about an interface and returns the kernel's error. clear is a mask
// of the interface's flags to clear.
func setLink(kind uint16, index int, clear uint32) error {
	s, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer syscall.Close(s)
	const size = syscall.NLMSG_HDRLEN + syscall.SizeofIfInfomsg
	n := binary.NativeEndian
	message := n.AppendUint32(nil, size)
	message = n.AppendUint16(message, kind)
	message = n.AppendUint16(message, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK)
	message = append(message, make([]byte, 8+4)...) // sequence, port; family and type
	message = n.AppendUint32(message, uint32(index))
	message = n.AppendUint32(message, 0)
	message = n.AppendUint32(message, clear)
	if err := syscall.Sendto(s, message, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return err
	}
	var answer [256]byte
	got, _, err := syscall.Recvfrom(s, answer[:], 0)
	if err != nil {
		return err
	}
	if got < syscall.NLMSG_HDRLEN+4 {
		return fmt.Errorf("an answer of %d bytes", got)
	}
	if code := int32(n.Uint32(answer[syscall.NLMSG_HDRLEN:])); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}
