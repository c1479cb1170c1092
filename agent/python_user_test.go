package main

import (
	"runtime"
	"syscall"
	"testing"
)

// verdict runs a filter on a system call, as the kernel does.
func verdict(t *testing.T, filter []bpf, arch, number uint32, args ...uint32) bool {
	t.Helper()
	value := uint32(0)
	for at := 0; at < len(filter); at++ {
		step := filter[at]
		jump := false
		switch step.code {
		case bpfLoad:
			switch step.value {
			case dataNumber:
				value = number
			case dataArch:
				value = arch
			default:
				value = 0
				if i := int(step.value-dataPid) / 8; i < len(args) {
					value = args[i]
				}
			}
			continue
		case bpfAnd:
			value &= step.value
			continue
		case bpfReturn:
			return step.value == seccompAllow
		case bpfEqual:
			jump = value == step.value
		case bpfAtLeast:
			jump = value >= step.value
		case bpfGreater:
			jump = value > step.value
		}
		if jump {
			at += int(step.yes)
		} else {
			at += int(step.no)
		}
	}
	t.Fatal("the filter has no verdict")
	return false
}

func TestTheInterpreterBecomesOnlyTheUsersOfJobs(t *testing.T) {
	const unchanged = ^uint32(0)
	native := prlimitCalls[runtime.GOARCH][0].arch
	filter := idFilter(&identities{first: 5000, last: 5999}, []uint32{unchanged, 6000, 1000},
		[]uint32{unchanged, 100})
	for _, c := range []struct {
		number  uint32
		args    []uint32
		allowed bool
	}{
		{syscall.SYS_SETUID, []uint32{1000}, true},
		{syscall.SYS_SETUID, []uint32{6000}, true},
		{syscall.SYS_SETUID, []uint32{5000}, true},
		{syscall.SYS_SETUID, []uint32{5999}, true},
		{syscall.SYS_SETUID, []uint32{0}, false},
		{syscall.SYS_SETUID, []uint32{4999}, false},
		{syscall.SYS_SETUID, []uint32{6001}, false},
		{syscall.SYS_SETUID, []uint32{100}, false},
		{syscall.SYS_SETREUID, []uint32{unchanged, 1000}, true},
		{syscall.SYS_SETREUID, []uint32{unchanged, 0}, false},
		{syscall.SYS_SETREUID, []uint32{0, unchanged}, false},
		{syscall.SYS_SETRESUID, []uint32{5500, 5500, 5500}, true},
		{syscall.SYS_SETRESUID, []uint32{0, 5500, 5500}, false},
		{syscall.SYS_SETRESUID, []uint32{5500, 0, 5500}, false},
		{syscall.SYS_SETRESUID, []uint32{5500, 5500, 0}, false},
		{syscall.SYS_SETFSUID, []uint32{0}, false},
		{syscall.SYS_SETFSUID, []uint32{unchanged}, true},
		{syscall.SYS_SETGID, []uint32{100}, true},
		{syscall.SYS_SETGID, []uint32{0}, false},
		{syscall.SYS_SETGID, []uint32{1000}, false},
		{syscall.SYS_SETREGID, []uint32{100, 0}, false},
		{syscall.SYS_SETRESGID, []uint32{100, 5001, 100}, true},
		{syscall.SYS_SETRESGID, []uint32{100, 100, 0}, false},
		{syscall.SYS_SETFSGID, []uint32{0}, false},
		{syscall.SYS_SETGROUPS, []uint32{0, 1}, true},
		{syscall.SYS_SETGROUPS, []uint32{1, 1}, false},
		{syscall.SYS_GETPID, nil, true},
		{syscall.SYS_EXECVE, nil, true},
	} {
		if got := verdict(t, filter, native, c.number, c.args...); got != c.allowed {
			t.Errorf("call %d %v: %v", c.number, c.args, got)
		}
		if got := verdict(t, filter, native, c.number|1<<30, c.args...); got != c.allowed {
			t.Errorf("x32's call %d %v: %v", c.number, c.args, got)
		}
	}
	narrow := prlimitCalls[runtime.GOARCH][len(prlimitCalls[runtime.GOARCH])-1].arch
	for _, number := range narrowCalls {
		if verdict(t, filter, narrow, number, 1<<16) {
			t.Errorf("the 32-bit call %d is allowed", number)
		}
	}
	for _, number := range []uint32{1, 22, 24, 199, 217, 403} {
		if !verdict(t, filter, narrow, number) {
			t.Errorf("the 32-bit call %d is denied", number)
		}
	}
}

func TestTheInterpretersUserIsNeitherAnAccountNorAJobs(t *testing.T) {
	n := newIdentities(identity{uid: 1000, gid: 1000})
	if n == nil {
		t.Skip("this process can become no other user")
	}
	if n.own != n.last+1 || n.has(n.own) || n.known[n.own] || !n.known[1000] {
		t.Errorf("%+v", n)
	}
}
