package main

import (
	"os"
	"slices"
	"testing"
)

func TestStatIsReadWhateverTheNameHolds(t *testing.T) {
	line := "42 (a) R (b) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 99887 1000 200"
	s, ok := parseStat([]byte(line))
	if !ok || s.pid != 42 || s.ppid != 7 || s.session != 41 || s.start != 99887 || s.dead {
		t.Fatalf("%+v %v", s, ok)
	}
	for _, bad := range []string{"", "1 (x", "x) (", "1 (a) R 1 2"} {
		if _, ok := parseStat([]byte(bad)); ok {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestOwnStatIsReadable(t *testing.T) {
	s, ok := readStat(os.Getpid())
	if !ok || s.pid != os.Getpid() || s.ppid != os.Getppid() || s.start == 0 {
		t.Fatalf("%+v %v", s, ok)
	}
}

func TestMembersAreDescendantsAndTheSession(t *testing.T) {
	table := []processStat{
		{pid: 10, ppid: 1, session: 10, start: 5},  // the command
		{pid: 11, ppid: 10, session: 10, start: 6}, // its child
		{pid: 12, ppid: 11, session: 12, start: 7}, // its child's setsid child
		{pid: 13, ppid: 1, session: 10, start: 7},  // an orphan of its session
		{pid: 20, ppid: 1, session: 20, start: 3},  // another command, older
		{pid: 21, ppid: 20, session: 20, start: 4}, // its child
		{pid: 30, ppid: 0, session: 30, start: 9},  // from outside
	}
	command := &tree{root: 10, start: 5, marker: "m", others: func(int) bool { return false }}
	var pids []int
	for _, p := range command.members(table, map[int]uint64{}) {
		pids = append(pids, p.pid)
	}
	if !slices.Equal(pids, []int{10, 11, 12, 13}) {
		t.Fatal(pids)
	}
}

func TestAKnownProcessStaysAMemberWhenItsParentIsGone(t *testing.T) {
	table := []processStat{{pid: 12, ppid: 1, session: 12, start: 7}}
	command := &tree{root: 10, start: 8, others: func(int) bool { return false }}
	if len(command.members(table, map[int]uint64{12: 7})) != 1 {
		t.Fatal("it was forgotten")
	}
	if len(command.members(table, map[int]uint64{12: 6})) != 0 {
		t.Fatal("another process with its number was taken for it")
	}
}
