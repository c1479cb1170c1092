"""Stops all programs of a sandbox, except its agent, for as long as its files are read (see `_copier`)."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_PATIENCE = 30.0
"""How long (s) the processes may take to stop: each needs the processor for that, which others may hold."""
_SHORTEST, _LONGEST = 0.0005, 0.005
"""The delays (s) between two looks, which grow: looking takes the processor from those that are to stop."""
_BLOCKED = 0.1
"""How long (s) to wait for processes that are blocked in the kernel. A parent in vfork is, until its child,
which may be stopped, executes another program; it stops before it runs again."""
_CONTINUE = 'while read -r pid && [ "$pid" ]; do all="$all $pid"; done; kill -CONT $all 2>/dev/null'


@contextmanager
def frozen(init: int, between: Callable[[], object]) -> Iterator[None]:
    """Stop every process in the pid namespace of the process `init`, except `init`; continue them at the end.

    The agent's reapers, one above each command, run on as it does: they touch no file, and it continues them.
    A process that cannot stop because the kernel blocks it runs no instruction either. A helper continues
    them if this process dies meanwhile. `between` is called before each process; it raises to give up. Raises
    TimeoutError if a process does not stop within 30 s.
    """
    namespace = os.stat(f"/proc/{init}/ns/pid").st_ino
    stopped: set[int] = set()
    read, helper = os.pipe()
    stdin = [(os.POSIX_SPAWN_DUP2, read, 0)]
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", _CONTINUE], {}, file_actions=stdin)
    os.close(read)
    try:
        end, delay = time.monotonic() + _PATIENCE, _SHORTEST
        while states := {
            each: _state_of(each, each in stopped) for each in _members(namespace, init, between)
        }:
            running = [pid for pid, state in states.items() if state == "runs"]
            late = time.monotonic() > end - _PATIENCE + _BLOCKED
            if not running and (late or "blocked" not in states.values()):
                break
            if time.monotonic() > end:
                raise TimeoutError(f"process {running[0]} of the sandbox does not stop; try again")
            for each in running:
                if each not in stopped:
                    stopped.add(each)
                    os.write(helper, b"%d\n" % each)
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGSTOP)
            time.sleep(delay)
            delay = min(2 * delay, _LONGEST)
        yield
    finally:
        with suppress(ChildProcessError, BrokenPipeError):  # its end is ignored, or it was killed
            os.write(helper, b"\n")  # a fork of this process may hold the pipe open
            os.waitpid(pid, 0)
        os.close(helper)


def _members(namespace: int, init: int, between: Callable[[], object]) -> Iterator[int]:
    program = _program(init)
    for entry in os.listdir("/proc"):
        between()
        if entry.isdigit() and int(entry) != init:
            with suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/pid").st_ino != namespace:
                    continue
                if _parent(int(entry)) != init or _program(int(entry)) != program:
                    yield int(entry)


def _program(pid: int) -> tuple[int, int]:
    found = os.stat(f"/proc/{pid}/exe")
    return found.st_dev, found.st_ino


def _parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


def _state_of(pid: int, signalled: bool) -> str:
    """Return "runs", "blocked" in the kernel before it can obey the signal, or "still"."""
    found = "still"
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                state = file.read().rpartition(b")")[2].split()[0]
            if state in (b"T", b"t", b"Z", b"X"):
                continue
            if state != b"D" or not signalled:
                return "runs"
            found = "blocked"
    return found
