// As whom the interpreter runs. It is a program of the image, so it gets no more rights than its jobs need.
package main

import (
	"runtime"
	"syscall"
	"unsafe"
)

// fork starts the interpreter of a sandbox whose user is id. If jobs can have several users, it runs as a user of
// its own, or as uid 0 if id does, and can become no others than id and the jobs' users. Otherwise it runs as id
// without capabilities. Its limits are those of a thread that ends here. Hold children.mu.
func (f *interpreter) fork(b *sandbox, id identity, file string, argv []string, how *syscall.ProcAttr) (pid int, err error) {
	const change = 1<<capSetuid | 1<<capSetgid
	as, ids, header, data := id, b.identities(), capHeader{version: capVersion3}, capSets(procs.caps)
	how.Sys = &syscall.SysProcAttr{Setsid: true}
	if ids != nil {
		how.Sys.AmbientCaps = []uintptr{capSetuid, capSetgid}
		data = capSets(procs.caps | change)
	}
	if !id.isAgent() {
		if data = capSets(change); ids != nil {
			as.uid = ids.own
		}
		how.Sys.Credential = &syscall.Credential{Uid: as.uid, Gid: as.gid, NoSetGroups: true}
	}
	if ids != nil {
		data[0].inheritable = change
	}
	f.uid, f.exposed = as.uid, as.uid == id.uid
	thread, err := newThread(func() error {
		e := confined.confineThread()
		if e == nil && !id.isAgent() {
			e = setGroups(id.groups)
		}
		// Root's jobs may have these capabilities themselves, for instance for a package manager.
		if e == nil && ids != nil && (procs.caps&change == 0 || !id.isAgent()) {
			const same = ^uint32(0)
			e = installFilter(idFilter(ids, []uint32{same, as.uid, id.uid}, []uint32{same, id.gid}), 0)
		}
		if _, _, failed := syscall.RawSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
			uintptr(unsafe.Pointer(&data[0])), 0); failed != 0 && e == nil {
			e = failed
		}
		if e == nil {
			pid, e = syscall.ForkExec(file, argv, how)
		}
		// The change of user sets the dumpable flag of the memory that the fork shared, as in begins.
		syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0)
		return e
	})
	if err == nil {
		thread.stop()
	}
	return pid, err
}

// narrowCalls are the calls of i386 and arm that change ids. They are denied: some of them take only 16 bits.
var narrowCalls = []uint32{23, 46, 70, 71, 81, 138, 139, 164, 170, 203, 204, 206, 208, 210, 213, 214, 215, 216}

// idFilter builds a filter that denies changes to other ids than those given and the jobs', and groups.
func idFilter(jobs *identities, uids, gids []uint32) []bpf {
	const x32 = 1 << 30 // this bit is set in the numbers of its calls
	allow, deny := bpf{bpfReturn, 0, 0, seccompAllow}, bpf{bpfReturn, 0, 0, seccompErrno | uint32(syscall.EPERM)}
	program := []bpf{{bpfLoad, 0, 0, dataArch}, {bpfEqual, uint8(len(narrowCalls)) + 3, 0,
		prlimitCalls[runtime.GOARCH][0].arch}, {bpfLoad, 0, 0, dataNumber}}
	for i, number := range narrowCalls {
		program = append(program, bpf{bpfEqual, uint8(len(narrowCalls) - i), 0, number})
	}
	program = append(program, allow, deny, bpf{bpfLoad, 0, 0, dataNumber}, bpf{bpfAnd, 0, 0, ^uint32(x32)})
	for ids, calls := range map[*[]uint32][4]uint32{
		&uids: {syscall.SYS_SETUID, syscall.SYS_SETFSUID, syscall.SYS_SETREUID, syscall.SYS_SETRESUID},
		&gids: {syscall.SYS_SETGID, syscall.SYS_SETFSGID, syscall.SYS_SETREGID, syscall.SYS_SETRESGID},
	} {
		for i, number := range calls {
			var body []bpf
			for argument := range uint32(max(1, i)) {
				body = append(body, bpf{bpfLoad, 0, 0, dataPid + 8*argument})
				for j, id := range *ids {
					body = append(body, bpf{bpfEqual, uint8(len(*ids)-j) + 2, 0, id})
				}
				body = append(body, bpf{bpfAtLeast, 0, 1, jobs.first}, bpf{bpfGreater, 0, 1, jobs.last}, deny)
			}
			program = append(append(program, bpf{bpfEqual, 0, uint8(len(body)) + 1, number}), append(body, allow)...)
		}
	}
	return append(program, bpf{bpfEqual, 0, 3, syscall.SYS_SETGROUPS}, bpf{bpfLoad, 0, 0, dataPid},
		bpf{bpfEqual, 1, 0, 0}, deny, allow)
}
