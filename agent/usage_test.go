package main

import (
	"os"
	"testing"
	"time"
)

func TestAStatTellsTheProcessorTimeOfAProcessAndItsChildren(t *testing.T) {
	line := "42 (a) R (b) S 7 42 41 0 -1 4194560 1 2 3 4 500 60 7 1 20 0 3 0 99887 1000 200"
	if s, ok := parseStat([]byte(line)); !ok || s.ticks != 568 {
		t.Fatalf("%+v %v", s, ok)
	}
}

func TestStarvedIsTheWaitOfTheMostWaitingThreadFromSampleToSample(t *testing.T) {
	start := time.Now()
	a, b, c := threadKey{1, 5}, threadKey{2, 5}, threadKey{3, 9}
	w := waitTimes{last: start}
	second := uint64(time.Second)
	w.add(map[threadKey]uint64{a: second / 2, b: second / 4}, start.Add(time.Second))
	w.add(map[threadKey]uint64{a: second / 2, b: second}, start.Add(2*time.Second))
	if w.total != second/2+3*second/4 {
		t.Fatal(w.total)
	}
	// The wait never exceeds the elapsed time, whatever a thread reports.
	w.add(map[threadKey]uint64{c: 100 * second}, start.Add(3*time.Second))
	if w.total != second/2+3*second/4+second {
		t.Fatal(w.total)
	}
	w.add(map[threadKey]uint64{c: 1}, start.Add(4*time.Second))
	if w.total != second/2+3*second/4+second {
		t.Fatal(w.total)
	}
}

func TestOnlyAThreadOfOrdinaryPriorityCanBeStarved(t *testing.T) {
	stat := func(nice, policy string) []byte {
		return []byte("42 (a) R 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 " + nice +
			" 3 0 99887 1000 200 1 2 3 4 5 6 7 8 9 10 11 12 13 17 1 0 " + policy + " 0 0 0")
	}
	parsed := func(data []byte) processStat {
		s, ok := parseStat(data)
		if !ok {
			t.Errorf("%s was refused", data)
		}
		return s
	}
	defer func(nice int) { ownNice = nice }(ownNice)
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil || !parsed(own).ordinary || parsed(own).pages == 0 || parsed(own).threads < 2 {
		t.Errorf("%s: %v", own, err)
	}
	ownNice = 5
	if !parsed(stat("5", "0")).ordinary || parsed(stat("6", "0")).ordinary {
		t.Error("the owner's own priority is not what counts")
	}
	ownNice = 0
	for nice, policies := range map[string]map[string]bool{
		"0":  {"0": true, "3": true, "5": false, "1": false},
		"-5": {"0": true},
		"1":  {"0": false},
	} {
		for policy, want := range policies {
			if parsed(stat(nice, policy)).ordinary != want {
				t.Errorf("nice %s policy %s", nice, policy)
			}
		}
	}
}
