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

func pidsOf(members []processStat) (pids []int) {
	for _, p := range members {
		pids = append(pids, p.pid)
	}
	return pids
}

var aTable = []processStat{
	{pid: 10, ppid: 9, start: 5},    // the command, below its reaper
	{pid: 11, ppid: 10, start: 6},   // its child
	{pid: 12, ppid: 11, start: 7},   // its child's child
	{pid: 13, ppid: 9, start: 7},    // an orphan of it
	{pid: 20, ppid: 19, start: 6},   // another command
	{pid: 21, ppid: 20, start: 8},   // its child
	{pid: 22, ppid: 19, start: 8},   // its orphan
	{pid: 30, ppid: 0, start: 9},    // from outside
	{pid: 31, ppid: 30, start: 9},   // its child
	{pid: 40, ppid: self, start: 4}, // an orphan from before
	{pid: 41, ppid: self, start: 5}, // an orphan whose reaper is dead
	{pid: 42, ppid: 41, start: 10},  // its child
	{pid: 50, ppid: self, start: 6}, // a third command, whose reaper is dead
	{pid: 51, ppid: 50, start: 6},   // its child
	{pid: 60, ppid: 59, start: 9},   // one whose parent has vanished meanwhile
}

func TestMembersAreWhateverIsBelowTheReaper(t *testing.T) {
	own, other := &reaper{main: 10}, &reaper{main: 20}
	command := &tree{reaper: own, start: 5}
	living := map[int]*reaper{9: own, 19: other}
	mains := map[int]bool{20: true, 50: true}
	found := pidsOf(command.members(aTable, nil, living, mains))
	if !slices.Equal(found, []int{10, 11, 12, 13}) {
		t.Fatal(found)
	}
}

func TestWithoutItsReaperEveryYoungOrphanIsTheCommands(t *testing.T) {
	own, other := &reaper{main: 10, lost: true, gone: true}, &reaper{main: 20}
	table := []processStat{{pid: 10, ppid: self, start: 5}, {pid: 11, ppid: 10, start: 6}}
	table = append(table, aTable[4:]...)
	uid := uint32(1000)
	command := &tree{reaper: own, start: 5, uid: 1000, uidOf: func(int) uint32 { return uid }}
	living := map[int]*reaper{19: other}
	mains := map[int]bool{20: true, 50: true}
	found := pidsOf(command.members(table, nil, living, mains))
	if !slices.Equal(found, []int{10, 11, 41, 42}) {
		t.Fatal(found)
	}
	uid = 1001
	if found := pidsOf(command.members(table, nil, living, mains)); !slices.Equal(found, []int{10, 11}) {
		t.Fatal(found)
	}
}

func TestAKnownProcessStaysAMemberWhenItsParentIsGone(t *testing.T) {
	table := []processStat{{pid: 12, ppid: self, start: 7}}
	command := &tree{reaper: &reaper{main: 10}, start: 8}
	if len(command.members(table, map[int]uint64{12: 7}, nil, nil)) != 1 {
		t.Fatal("it was forgotten")
	}
	if len(command.members(table, map[int]uint64{12: 6}, nil, nil)) != 0 {
		t.Fatal("another process with its number was taken for it")
	}
}

func TestATableThatIsNoSnapshotEndsTheSearch(t *testing.T) {
	table := []processStat{{pid: 12, ppid: 13, start: 7}, {pid: 13, ppid: 12, start: 7}}
	command := &tree{reaper: &reaper{main: 10}, start: 1}
	if len(command.members(table, nil, nil, nil)) != 0 {
		t.Fatal("a circle belongs to nobody")
	}
}

func TestBesideOthersOnlyWhatIsBelowTheAgentIsItsOwn(t *testing.T) {
	reapers := map[int]*reaper{9: {}, 19: {}}
	found := pidsOf(below(self, aTable, reapers))
	if !slices.Equal(found, []int{10, 11, 12, 13, 20, 21, 22, 40, 41, 42, 50, 51}) {
		t.Fatal(found)
	}
	if found := pidsOf(below(8, aTable, reapers)); !slices.Equal(found, []int{10, 11, 12, 13, 20, 21, 22}) {
		t.Fatal(found)
	}
	circle := []processStat{{pid: 12, ppid: 13}, {pid: 13, ppid: 12}}
	if found := below(self, circle, nil); len(found) != 0 {
		t.Fatal(found)
	}
}
