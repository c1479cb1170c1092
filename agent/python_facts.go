// Detection of changes that a job has made to the interpreter process.
package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// factLines are the fields of /proc/PID/status that do not change over time.
var factLines = []string{"Umask", "TracerPid", "Uid", "Gid", "Groups", "Threads", "SigPnd",
	"ShdPnd", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb",
	"NoNewPrivs", "Seccomp", "Seccomp_filters", "Cpus_allowed", "Mems_allowed"}

// factsOf returns a process's limits, priorities, signals and rights by name.
func factsOf(pid int) map[string]string {
	facts := map[string]string{}
	folder := "/proc/" + strconv.Itoa(pid) + "/"
	status, _ := os.ReadFile(folder + "status")
	for _, line := range strings.Split(string(status), "\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && slices.Contains(factLines, name) {
			facts[name] = strings.TrimSpace(value)
		}
	}
	limits, _ := os.ReadFile(folder + "limits")
	for _, line := range strings.Split(string(limits), "\n") {
		if name, value, ok := strings.Cut(line, "  "); ok {
			facts["limit of "+strings.ToLower(name)] = strings.Join(strings.Fields(value), " ")
		}
	}
	stat, _ := os.ReadFile(folder + "stat")
	if _, after, ok := strings.Cut(string(stat), ") "); ok {
		if f := strings.Fields(after); len(f) > 38 {
			facts["nice value"], facts["real-time priority"], facts["scheduling policy"] = f[16], f[37], f[38]
		}
	}
	for _, name := range []string{"oom_score_adj", "autogroup"} {
		if data, err := os.ReadFile(folder + name); err == nil {
			facts[name] = strings.TrimSpace(string(data))
		}
	}
	const ofProcess = 1
	priority, _, e := syscall.RawSyscall(ioprioCall[runtime.GOARCH], ofProcess, uintptr(pid), 0)
	facts["input and output priority"] = fmt.Sprint(priority, int(e))
	return facts
}

// changed returns one sentence for each difference from the interpreter's state after its start. Call
// it while no job runs and all processes of earlier jobs are dead.
func (f *interpreter) changed() (findings []string) {
	pid := int(f.pid.Load())
	if pid == 0 {
		return nil
	}
	if f.gone.Load() {
		return []string{"the interpreter has ended"}
	}
	now := factsOf(pid)
	for name, before := range f.facts {
		if name != "descriptors" && now[name] != before {
			findings = append(findings,
				fmt.Sprintf("the interpreter's %s is %q and was %q", name, now[name], before))
		}
	}
	slices.Sort(findings)
	return append(findings, f.ping()...)
}

func (f *interpreter) ping() []string {
	said, err := f.ask("ping")
	if err != nil {
		return []string{err.Error()}
	}
	words := strings.Fields(said)
	if len(words) != 3 || words[0] != "pong" {
		return []string{fmt.Sprintf("the interpreter answers %q", said)}
	}
	var findings []string
	if words[1] != "0" {
		findings = append(findings, "the interpreter has a child left")
	}
	if before := f.facts["descriptors"]; before == "" {
		f.facts["descriptors"] = words[2]
	} else if words[2] != before {
		findings = append(findings,
			fmt.Sprintf("the interpreter has the descriptors %s open and had %s", words[2], before))
	}
	return findings
}
