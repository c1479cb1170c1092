"""Killing and stopping a whole process tree on this machine, for FakeProvider."""

import os
import signal

import anyio

MARKER = "SANDBOXKIT_FAKE"


async def kill_tree(mark: str, leader: int | None) -> None:
    """Kill every process whose environment carries `mark`, and the descendants and session of
    `leader`; return when all are dead."""
    struck: dict[int, bytes] = {}
    while found := members(mark, leader):
        for pid in found:
            signal_process(pid, signal.SIGSTOP)
        for pid in members(mark, leader):
            struck[pid] = began(pid)
            signal_process(pid, signal.SIGKILL)
        await anyio.sleep(0.001)
    # Wait for killed processes too that left the tree when their parents died.
    while any(start and began(pid) == start for pid, start in struck.items()):  # noqa: ASYNC110
        await anyio.sleep(0.001)


async def stop_tree(mark: str) -> None:
    """Stop every process whose environment carries `mark`; return when all have stopped."""
    stopped: set[int] = set()
    while more := members(mark, None) - stopped:
        for pid in more:
            signal_process(pid, signal.SIGSTOP)
        stopped |= more
        await anyio.sleep(0.001)


def continue_tree(mark: str) -> None:
    """Undo `stop_tree`."""
    for pid in members(mark, None):
        signal_process(pid, signal.SIGCONT)


def members(mark: str, leader: int | None) -> set[int]:
    """Return the processes that `kill_tree` would kill now."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    needle = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = _fields(name)
            if fields[0] == b"Z":
                continue
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = needle in file.read()
        except OSError:
            continue  # gone meanwhile, or another user's
        pid = int(name)
        parents[pid] = int(fields[1])
        if marked or (leader is not None and (pid == leader or int(fields[3]) == leader)):
            found.add(pid)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found - {os.getpid()}
        found |= more


def began(pid: int) -> bytes:
    """Return a process's start time from /proc; empty if it has ended."""
    try:
        fields = _fields(str(pid))
    except OSError:
        return b""
    return b"" if fields[0] in (b"Z", b"X") else fields[19]


def _fields(pid: str) -> list[bytes]:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def signal_process(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
