// Lookup of a command's program file, and the errors of a failed start.
package main

import (
	"fmt"
	"strings"
	"syscall"
)

// A startError is the reason why a command was not started. errno is 0 if the request itself is wrong, for
// example if it names a user that the sandbox does not have.
type startError struct {
	text  string
	errno syscall.Errno
}

func (e *startError) Error() string { return e.text }
func (e *startError) Unwrap() error { return e.errno }

func cannotEnter(cwd string, e error) *startError {
	return &startError{fmt.Sprintf("cannot enter %s: %v", cwd, e), errnoOf(e)}
}

func cannotExecute(program string, e error) *startError {
	return &startError{fmt.Sprintf("cannot execute %s: %v", program, e), errnoOf(e)}
}

// explain returns the error for the step at which a command's start failed.
func explain(step int32, errno syscall.Errno, program, cwd string) *startError {
	switch step {
	case stepCwd:
		return cannotEnter(cwd, errno)
	case stepExec:
		if errno == syscall.ENOENT {
			return &startError{fmt.Sprintf(
				"cannot execute %s: the interpreter that it names is not there", program), errno}
		}
		return cannotExecute(program, errno)
	case stepUser:
		return &startError{fmt.Sprintf("cannot become the user: %v", errno), errno}
	case stepLimits:
		return &startError{fmt.Sprintf("cannot lower its resource limits: %v", errno), errno}
	case stepTerminal, stepSession, stepFiles:
		return &startError{fmt.Sprintf("cannot connect its input and output: %v", errno), errno}
	}
	return &startError{fmt.Sprintf("cannot start another process: %v", errno), errno}
}

// findProgram writes the files and then looks up argv[0] as execvp does, with the rights of the command's user
// and in the command's PATH.
func findProgram(id identity, name, cwd string, env []string, files []setupFile) (path string, err error) {
	as := filesAs.run
	if id.isAgent() && len(files) == 0 {
		// A lookup as the agent's own user needs no separate thread, which saves two context switches.
		as = func(_ identity, job func()) error { job(); return nil }
	}
	failed := as(id, func() {
		if err = writeFiles(files); err == nil {
			path, err = lookUp(name, cwd, env)
		}
	})
	if failed != nil {
		return "", failed
	}
	return path, err
}

func lookUp(name, cwd string, env []string) (string, error) {
	const pathOnly = 0x200000
	fd, e := syscall.Open(cwd+"/.", pathOnly|syscall.O_CLOEXEC, 0)
	if e != nil {
		return "", cannotEnter(cwd, e)
	}
	syscall.Close(fd)
	candidates := []string{name}
	err := cannotExecute(name, syscall.ENOENT)
	if !strings.Contains(name, "/") {
		search := lookupEnv(env, "PATH")
		err = &startError{fmt.Sprintf("no program %q in PATH, which is %s", name, search), syscall.ENOENT}
		candidates = candidates[:0]
		for _, dir := range strings.Split(search, ":") {
			if name != "" {
				candidates = append(candidates, dir+"/"+name)
			}
		}
	}
	for _, candidate := range candidates {
		full := candidate
		if !strings.HasPrefix(candidate, "/") {
			full = cwd + "/" + candidate
		}
		var st syscall.Stat_t
		if e := syscall.Stat(full, &st); e != nil {
			if e != syscall.ENOENT && e != syscall.ENOTDIR {
				err = cannotExecute(name, e)
			}
			continue
		}
		if st.Mode&syscall.S_IFMT != syscall.S_IFREG || st.Mode&0o111 == 0 {
			err = cannotExecute(name, syscall.EACCES)
			continue
		}
		return candidate, nil
	}
	return "", err
}

func lookupEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(env[i], name+"="); ok {
			return value
		}
	}
	return ""
}
