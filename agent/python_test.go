package main

import (
	"maps"
	"slices"
	"testing"
)

// A job's processes are distinguished from others by their parents and start times.
func TestMembersOfAJob(t *testing.T) {
	const server, other = 20, 90
	table := []processStat{
		{pid: server, ppid: self, start: 1},
		{pid: 30, ppid: server, start: 100}, // its main process
		{pid: 31, ppid: 30, start: 101},
		{pid: 32, ppid: server, start: 102}, // an orphan
		{pid: 40, ppid: server, start: 50},  // left by an earlier job
		{pid: 41, ppid: 40, start: 103},
		{pid: other, ppid: 12, start: 104}, // below a command's reaper
		{pid: 91, ppid: other, start: 105},
		{pid: 92, ppid: self, start: 106},
	}
	forks.pid.Store(server)
	defer forks.pid.Store(0)
	j := &job{start: 100, launch: launch{id: identity{uid: ^uint32(0)}}} // the uid of no process
	pids := func(known map[int]uint64, mains map[int]bool) []int {
		found := map[int]bool{}
		for _, p := range j.members(table, known, mains) {
			found[p.pid] = true
		}
		return slices.Sorted(maps.Keys(found))
	}
	if got := pids(nil, nil); !slices.Equal(got, []int{30, 31, 32}) {
		t.Errorf("members %v", got)
	}
	if got := pids(map[int]uint64{41: 103}, nil); !slices.Equal(got, []int{30, 31, 32, 41}) {
		t.Errorf("members with one known before %v", got)
	}
	forks.gone.Store(true)
	defer forks.gone.Store(false)
	if got := pids(nil, map[int]bool{other: true}); !slices.Equal(got, []int{30, 31, 32, 92}) {
		t.Errorf("members without the interpreter %v", got)
	}
}

func TestAJobsFileTakesNoNUL(t *testing.T) {
	if _, err := memoryFile([]string{"a", "b\x00c"}); err == nil {
		t.Error("a text with a NUL was taken")
	}
	f, err := memoryFile([]string{"a", "", "c"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 64)
	n, _ := f.ReadAt(data, answerBytes)
	if string(data[:n]) != "a\x00\x00c" {
		t.Errorf("content %q", data[:n])
	}
}

func TestWhyAJobDidNotStart(t *testing.T) {
	f, err := memoryFile(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	j := &job{file: f, launch: launch{argv: []string{"-c"}, cwd: "/gone"}}
	if err := j.notStarted(); err != nil {
		t.Errorf("it did start: %v", err)
	}
	if _, err := f.WriteAt([]byte("4 2"), 0); err != nil {
		t.Fatal(err)
	}
	if err := j.notStarted(); err == nil || errnoOf(err) != 2 {
		t.Errorf("the reason is %v", err)
	}
}
