// A series: one command that runs once for each of several inputs, with a reset between two runs.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"time"
)

// A seriesInput is the stdin of one run, and the arguments that are added to the command's.
type seriesInput struct {
	args  []string
	stdin []byte
}

type series struct {
	inputs []seriesInput
	// A run may take at most this elapsed time, and so may the CPU time of everything in the sandbox.
	each time.Duration
	// No run begins once the series has taken this long.
	whole time.Duration
	// output is the most bytes that a run may print, stdout and stderr together.
	output int
}

func parseSeries(in *fields) *series {
	millis := func() time.Duration { return time.Duration(in.u32()) * time.Millisecond }
	r := &series{each: millis(), whole: millis(), output: int(in.u32())}
	for n := in.u32(); n > 0 && in.err == nil; n-- {
		r.inputs = append(r.inputs, seriesInput{in.list(), in.bytes()})
	}
	return r
}

// mostRecords is how many bytes of records a series collects before it ends.
const mostRecords = 1 << 20

// A seriesExecution runs the series of a request. The fields below mu say what a kill must end.
type seriesExecution struct {
	stream  *stream
	request execRequest

	mu      sync.Mutex
	current *execution
	killed  bool
}

// run sends a record for each run that ended within its limits, in the order of the inputs, and then EXIT.
// It ends before the first run that exceeds a limit, which the client must repeat by itself.
func (r *seriesExecution) run(box *sandbox) {
	defer r.stream.begun()
	if err := r.runAll(box); err != nil && !errors.Is(err, errKilled) {
		r.stream.fail(err)
		return
	}
	r.stream.end(kExit, outcome{ending: ending{peak: unknown}, throttled: unknown, oomKills: uint64(^uint32(0))}.payload())
}

func (r *seriesExecution) runAll(box *sandbox) error {
	box.jobs.mu.Lock()
	resets := box.jobs.taken
	box.jobs.mu.Unlock()
	if !resets {
		return &startError{"a series needs a sandbox that is reset", 0}
	}
	if left := box.othersOpen(r.stream); len(left) > 0 {
		return &startError{"no other request may be open beside a series, which resets the sandbox: " + left[0], 0}
	}
	limits, began, records := r.request.series, time.Now(), []byte(nil)
	used := processorTime()
	for i, input := range limits.inputs {
		record, err := r.runOne(box, input)
		if err != nil {
			return err
		}
		var left []string
		if record != nil && i+1 < len(limits.inputs) {
			if left, err = box.clear(r.stream); err != nil {
				return err
			}
		}
		before := used
		if used = processorTime(); record == nil || used-min(before, used) >= uint64(limits.each) {
			break
		}
		records = append(records, record...)
		if len(left) > 0 || len(records) > mostRecords || time.Since(began) > limits.whole {
			break
		}
	}
	return r.stream.send(kStdout, records)
}

// runOne runs the command once. It returns no record if the run exceeded a limit.
func (r *seriesExecution) runOne(box *sandbox, input seriesInput) ([]byte, error) {
	limits, request := r.request.series, r.request
	request.argv = append(request.argv[:len(request.argv):len(request.argv)], input.args...)
	request.stdin = true
	e := &execution{stream: r.stream, request: request}
	printed := printedOutput{left: limits.output, exceeded: e.kill}
	e.output = printed.add
	r.mu.Lock()
	killed := r.killed
	r.current = e
	r.mu.Unlock()
	if killed {
		return nil, errKilled
	}
	began := time.Now()
	files, err := e.start(box)
	if err != nil {
		return nil, err
	}
	timer := time.AfterFunc(limits.each, e.kill)
	o, err := e.finish(files, bytes.NewReader(input.stdin))
	timer.Stop()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	ended := e.killed
	e.mu.Unlock()
	if ended || printed.left < 0 {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.killed {
			return nil, errKilled
		}
		return nil, nil
	}
	record := binary.BigEndian.AppendUint64(o.payload(), uint64(time.Since(began)))
	record = putString(record, string(printed.stdout))
	return putString(record, string(printed.stderr)), nil
}

// kill ends the series: the command that runs now, and all that follow.
func (r *seriesExecution) kill() {
	r.mu.Lock()
	r.killed = true
	current := r.current
	r.mu.Unlock()
	if current != nil {
		current.kill()
	}
}

// printedOutput collects a run's output, and calls exceeded once there is too much of it.
type printedOutput struct {
	mu             sync.Mutex
	stdout, stderr []byte
	left           int
	exceeded       func()
}

func (p *printedOutput) add(k kind, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left < 0 {
		return errCancelled
	}
	if p.left -= len(data); p.left < 0 {
		go p.exceeded()
		return errCancelled
	}
	if k == kStdout {
		p.stdout = append(p.stdout, data...)
	} else {
		p.stderr = append(p.stderr, data...)
	}
	return nil
}

// processorTime returns the nanoseconds of CPU time of everything in the sandbox but the agent, so far.
func processorTime() uint64 {
	const processorAt = 12 // behind the number of processes and their memory
	return binary.BigEndian.Uint64(stats()[processorAt:])
}
