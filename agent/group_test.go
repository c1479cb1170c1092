package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheGroupsCountersAreFoundOnlyWhereTheyAreTheSandboxsOwn(t *testing.T) {
	v1 := "9:pids:/docker/ab\n4:memory:/docker/ab\n2:cpu,cpuacct:/docker/ab\n0::/docker/ab\n"
	v1Mounts := "121 1 0:53 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
		"122 121 0:28 /docker/ab /sys/fs/cgroup/unified ro - cgroup2 cgroup rw\n" +
		"123 121 0:29 /docker/ab /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n" +
		"124 121 0:30 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro,nosuid shared:1 - cgroup cgroup rw,cpu,cpuacct\n"
	v2, v2Mounts := "0::/\n", "31 1 0:27 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n"
	const one = "/sys/fs/cgroup/cpu,cpuacct/"
	for _, each := range []struct {
		mounts, groups string
		found          [3]string
	}{
		{v1Mounts, v1, [3]string{one + "cpuacct.usage", one + "cpu.stat", "/sys/fs/cgroup/memory/memory.oom_control"}},
		{v2Mounts, v2, [3]string{"/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/memory.events"}},
		{v2Mounts, "0::/docker/ab\n", [3]string{}},
		{strings.ReplaceAll(v1Mounts, "/docker/ab", "/"), v1, [3]string{}},
		{"", v2, [3]string{}},
	} {
		g := findGroup(each.mounts, each.groups)
		if found := [3]string{g.processor.path, g.throttled.path, g.oomKills.path}; found != each.found {
			t.Errorf("%q: %q", each.found, found)
		}
	}
}

func TestCountersAreReadInTheirUnit(t *testing.T) {
	folder := t.TempDir()
	for name, content := range map[string]string{
		"cpuacct.usage":      "1234567000\n",
		"cpu.stat":           "usage_usec 1234567\nuser_usec 99\nthrottled_usec 12\n",
		"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		"other":              "nothing\n",
	} {
		_ = os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600)
	}
	for _, each := range []struct {
		c     counter
		value uint64
		ok    bool
	}{
		{counter{path: "cpuacct.usage", scale: 1}, 1_234_567_000, true},
		{counter{path: "cpu.stat", prefix: "usage_usec ", scale: 1000}, 1_234_567_000, true},
		{counter{path: "cpu.stat", prefix: "throttled_usec ", scale: 1000}, 12_000, true},
		{counter{path: "memory.oom_control", prefix: "oom_kill ", scale: 1}, 3, true},
		{counter{path: "other", scale: 1}, 0, false},
		{counter{path: "other", prefix: "oom_kill ", scale: 1}, 0, false},
		{counter{path: "missing", scale: 1}, 0, false},
	} {
		each.c.path = filepath.Join(folder, each.c.path)
		each.c.open()
		if value, ok := each.c.read(); value != each.value || ok != each.ok {
			t.Errorf("%+v: %d %v", each, value, ok)
		}
	}
}

func TestWhatACounterGrewByIsUnknownWhereOneEndIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counter")
	_ = os.WriteFile(path, []byte("oom_kill 5\n"), 0o600)
	c := counter{path: path, prefix: "oom_kill ", scale: 1}
	c.open()
	if grown := c.since(3, true); grown != 2 {
		t.Error(grown)
	}
	for _, before := range []struct {
		value uint64
		known bool
	}{{3, false}, {6, true}} {
		if grown := c.since(before.value, before.known); grown != unknown {
			t.Errorf("%+v: %d", before, grown)
		}
	}
	hidden := counter{}
	hidden.open()
	if grown := hidden.since(0, true); grown != unknown {
		t.Error(grown)
	}
}
