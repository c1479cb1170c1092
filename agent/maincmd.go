// The main command, which starts with the sandbox: its newest output and its exit status are kept.
package main

import (
	"fmt"
	"sync"
)

const logSize = 1 << 20

type mainCommand struct {
	mu      sync.Mutex
	log     []byte // at most twice logSize, so that trimming is rare
	started bool
	done    chan struct{}
	status  int
}

// start starts the main command. If this fails, the sandbox fails to start, too.
func (m *mainCommand) start(b *sandbox, argv []string) error {
	e := &execution{request: execRequest{argv: argv}, output: m.append}
	files, err := e.start(b)
	if err != nil {
		return fmt.Errorf("the main command was not started: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.started = true
	m.done = make(chan struct{})
	go func() {
		o, err := e.finish(files, nil)
		if err != nil {
			b.end("the main command was not started: " + err.Error())
		}
		m.mu.Lock()
		m.status = o.status
		m.mu.Unlock()
		close(m.done)
	}()
	return nil
}

func (m *mainCommand) append(_ kind, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.log)+len(data) > 2*logSize {
		keep := min(len(m.log), logSize)
		m.log = append(m.log[:0], m.log[len(m.log)-keep:]...)
	}
	m.log = append(m.log, data...)
	return nil
}

func (m *mainCommand) logs() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]byte(nil), m.log...)
}

// wait waits for the main command and returns its exit status; ok is false if there is no main command.
func (m *mainCommand) wait(cancelled <-chan struct{}) (status int, ok bool, err error) {
	m.mu.Lock()
	started, done := m.started, m.done
	m.mu.Unlock()
	if !started {
		return 0, false, nil
	}
	select {
	case <-done:
		return m.status, true, nil
	case <-cancelled:
		return 0, true, errCancelled
	}
}
