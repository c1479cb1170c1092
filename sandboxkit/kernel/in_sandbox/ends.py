"""Kill all processes that a kernel started, and remove its folder."""

import contextlib
import glob
import os
import shutil
import signal
import tempfile
import time

VARIABLE = "SANDBOXKIT_KERNEL"
ROUNDS = 200


def end_all(mark: str, root: int = 0) -> bool:
    """Kill the descendants of `root` and all processes with the kernel's mark in their environment;
    remove the kernel's folders. Returns whether no such process is left.

    A process that clears its environment is found only while it is a descendant.
    """
    found: list[int] = []
    for _ in range(ROUNDS):
        found = _found(f"{VARIABLE}={mark}".encode(), root)
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            break
        time.sleep(0.005)
    for folder in glob.glob(os.path.join(tempfile.gettempdir(), f".sandboxkit-{mark}-*")):
        shutil.rmtree(folder, ignore_errors=True)
    return not found


def _found(mark: bytes, root: int) -> "list[int]":
    parents = {}
    marked = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        pid = int(name)
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            if state in (b"Z", b"X") or pid == os.getpid():
                continue
            parents[pid] = int(parent)
            with open(f"/proc/{pid}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    marked.append(pid)
    below = {root} - {0}
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return [*(below - {root}), *marked]
