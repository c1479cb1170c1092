"""Killing a whole process tree of this machine, for FakeProvider."""

import os
import signal

import anyio

MARKER = "SANDBOXKIT_FAKE"


async def kill_tree(mark: str, leader: int | None) -> None:
    """Kill every process whose environment carries `mark`, and the descendants and session of
    `leader`; return when all are dead."""
    while members := _members(mark, leader):
        for pid in members:
            _signal(pid, signal.SIGSTOP)
        for pid in _members(mark, leader):
            _signal(pid, signal.SIGKILL)
        await anyio.sleep(0.001)


def _members(mark: str, leader: int | None) -> set[int]:
    parents: dict[int, int] = {}
    members: set[int] = set()
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
            members.add(pid)
    while True:
        more = {pid for pid, parent in parents.items() if parent in members} - members
        if not more:
            return members - {os.getpid()}
        members |= more


def _signal(pid: int, signum: signal.Signals) -> None:
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        pass
