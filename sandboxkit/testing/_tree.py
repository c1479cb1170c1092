"""Killing a whole process tree of this machine, for FakeProvider."""

import os
import signal

import anyio

MARKER = "SANDBOXKIT_FAKE"


async def kill_tree(mark: str, leader: int | None) -> None:
    """Kill every process whose environment carries `mark`, and the descendants and session of
    `leader`; return when all are dead."""
    while found := members(mark, leader):
        for pid in found:
            signal_process(pid, signal.SIGSTOP)
        for pid in members(mark, leader):
            signal_process(pid, signal.SIGKILL)
        await anyio.sleep(0.001)


def members(mark: str, leader: int | None) -> set[int]:
    """The processes that `kill_tree` would kill now."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    needle = mark.encode()
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
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


def signal_process(pid: int, signum: signal.Signals) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
