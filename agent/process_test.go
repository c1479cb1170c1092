package main

import (
	"encoding/binary"
	"syscall"
	"testing"
	"unsafe"

	"sandboxkit/agent/early"
)

func TestAReaperTellsHowTheMainProcessEnded(t *testing.T) {
	for _, each := range []struct {
		code, status int32
		want         ending
	}{
		{cldExited, 0, ending{status: 0}},
		{cldExited, 137, ending{status: 137}},
		{2, 9, ending{status: 137, signal: syscall.SIGKILL}},
		{3, 6, ending{status: 134, signal: syscall.SIGABRT}},
	} {
		s := reaperState{}
		s.ends[0].code, s.ends[0].status = each.code, each.status
		s.usages[0].Utime, s.usages[0].Stime = syscall.Timeval{Sec: 1}, syscall.Timeval{Usec: 5}
		s.usages[0].Maxrss = 1 << 30
		each.want.processor, each.want.peak = 1_000_005_000, 1<<40
		if got := s.ending(); got != each.want {
			t.Errorf("%+v: %+v", each, got)
		}
	}
}

func TestAPeakBelowTheAgentsOwnIsUnknown(t *testing.T) {
	if e := usedBy(&syscall.Rusage{Maxrss: 1}); e.peak != unknown {
		t.Error(e.peak)
	}
}

func TestAnExitHasItsFieldsInTheirPlaces(t *testing.T) {
	o := outcome{ending: ending{status: 137, processor: 1, peak: 2}, how: howSignal, throttled: 3, oomKills: unknown}
	p := o.payload()
	if len(p) != 33 || binary.BigEndian.Uint32(p) != 137 || p[4] != howSignal ||
		binary.BigEndian.Uint64(p[5:]) != 1 || binary.BigEndian.Uint64(p[13:]) != 2 ||
		binary.BigEndian.Uint64(p[21:]) != 3 || binary.BigEndian.Uint32(p[29:]) != ^uint32(0) {
		t.Errorf("%x", p)
	}
}

func TestTheStateFitsBelowTheStacks(t *testing.T) {
	if size := int(unsafe.Sizeof(reaperState{})); size > regionBytes-2*stackBytes {
		t.Error(size)
	}
}

func TestTheLimitOfOpenFilesIsReadBeforeGoRaisesIt(t *testing.T) {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	// go test passes its own limits on to this process.
	if early.OpenFiles[1] != now.Max || early.OpenFiles[0] > now.Max || early.OpenFiles[0] == 0 {
		t.Errorf("%v %+v", early.OpenFiles, now)
	}
}
