"""Counts of what a process holds and waits for, and the speed at which its session starts sandboxes."""

import asyncio
import concurrent.futures
import gc
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from sandboxkit import SandboxError, Session
from sandboxkit._life import _loop

_SECONDS = 30.0
"""For what is about to end to do so, on a busy machine too."""
_IDLE = ("Queue.get", "_worker")
"""Where a worker waits for work, after which it ends by itself: anyio's, and asyncio's own executor's."""
BACK_SECONDS = 30.0
"""Within which a session is as fast as before, once a fault has healed."""
_RUNS = 4
_PATIENCE = 60.0
_SLOWER, _SLACK = 3.0, 6.0
"""The same runs may take so many times as long as before, and so many seconds more: other work goes on
beside them."""


def census() -> Counter[str]:
    """Count descriptors, threads that do something, and tasks of the background loop, by what they are."""
    gc.collect()
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            kind = os.readlink(f"/proc/self/fd/{name}").partition(":")[0]
        except OSError:  # the one with which the folder was read
            continue
        found[f"descriptor {kind}"] += 1
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        above = [each.f_code.co_qualname for each in (frame, frame and frame.f_back) if each]
        if not set(above) & set(_IDLE):
            found[f"thread {thread.name.partition('_')[0]}"] += 1
    for task in asyncio.all_tasks(_loop.get()):
        found[f"task {task.get_coro()!r:.60}"] += 1
    return found


def growth(before: Counter[str]) -> Counter[str]:
    """What there is more of than before, once it has stopped to become less."""
    deadline = time.monotonic() + _SECONDS
    while (grown := census() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    return grown


def visits(visit: Callable[[], object], seconds: float, wrong: list[str]) -> list[float]:
    """Visit again and again for so many seconds; return how long each visit took, the longest last."""
    times, end = list[float](), time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        try:
            visit()
        except (AssertionError, SandboxError, TimeoutError) as error:
            wrong.append(f"an honest visit: {error!r}")
        times.append(time.monotonic() - began)
    return sorted(times)


class Pace:
    """Compares the time for a few `run(["true"])` with what it was at first, without faults."""

    def __init__(self, session: Session) -> None:
        """Measure twice; the first time also warms up. Raises what a run raises."""
        self._session = session
        self._measure(_PATIENCE)
        self.mark()

    def mark(self) -> None:
        """Measure again, with nothing wrong: other work on the machine may be more or less by now."""
        self.usual = self._measure(_PATIENCE)

    def back(self) -> tuple[float, str]:
        """Seconds until the session was as fast as before, and "", or else what was wrong."""
        began, wrong = time.monotonic(), ""
        allowed = _SLOWER * self.usual + _SLACK
        while (passed := time.monotonic() - began) < BACK_SECONDS:
            try:
                took = self._measure(BACK_SECONDS + allowed - passed)
            except (SandboxError, concurrent.futures.TimeoutError) as error:
                wrong = repr(error)
                continue
            if took <= allowed:
                return time.monotonic() - began - took, ""
            wrong = f"{_RUNS} runs took {took:.1f} s, {allowed:.1f} s are allowed"
        return passed, f"not as fast as before {BACK_SECONDS:g} s after the fault: {wrong}"

    def _measure(self, patience: float) -> float:
        began = time.monotonic()
        runs = [self._session.run(["true"]) for _ in range(_RUNS)]
        try:
            for run in runs:
                run.result(max(0.0, began + patience - time.monotonic()))
        finally:
            for run in runs:
                run.cancel()
        return time.monotonic() - began
