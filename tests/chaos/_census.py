"""What a process holds: descriptors, threads that do something, and tasks of the background loop."""

import asyncio
import gc
import os
import socket
import sys
import threading
import time
from collections import Counter
from typing import Any

from sandboxkit import _loop

__all__ = ["census", "growth", "waiting"]

_SECONDS = 30.0
"""For what is about to end to do so, on a busy machine too."""


def census() -> Counter[str]:
    """Count them, each by what it is."""
    gc.collect()
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the one with which the folder was read
            continue
        kind = target.partition(":")[0]
        found[f"descriptor {kind}{_peer(int(name)) if kind == 'socket' else ''}"] += 1
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        # A worker that waits for work ends by itself, in time.
        idle = (
            frame is not None
            and frame.f_back is not None
            and (
                frame.f_back.f_code.co_qualname == "Queue.get"
                or frame.f_code.co_qualname == "Queue.get"
                or frame.f_code.co_qualname == "_worker"  # of asyncio's own executor
            )
        )
        if not idle:
            found[f"thread {thread.name.partition('_')[0]}"] += 1
    for task in asyncio.all_tasks(_loop.get()):
        found[f"task {task.get_coro()!r:.60}"] += 1
    return found


def _peer(descriptor: int) -> str:
    """Where a socket leads, for whoever has to find out whose it is."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as end:
            name = end.getpeername()
    except OSError:
        return ""
    return f" to {name}" if name else " to a pair"


def growth(before: Counter[str]) -> Counter[str]:
    """What there is more of than before, once it has stopped to become less."""
    deadline = time.monotonic() + _SECONDS
    while (grown := census() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return grown


def waiting() -> list[str]:
    """What each task of the background loop waits for, outermost first."""
    found: list[str] = []
    for task in asyncio.all_tasks(_loop.get()):
        # Any: coroutines, and what else can be awaited.
        inner: Any = task.get_coro()
        steps: list[str] = []
        while inner is not None:
            frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
            if frame is not None:
                steps.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
        found.append("task: " + " > ".join(steps))
    return found
