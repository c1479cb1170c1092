"""Deadlines that do not include the time spent in a queue."""

import asyncio
import contextlib
import copy
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

T = TypeVar("T")

_TICK = 1.0
_TICKS = 20
"""The clock is read once a second, but at least 20 times per `deadline`."""


class DeadlineError(Exception):
    """Work did not finish within its deadline."""


@contextlib.asynccontextmanager
async def service_time(deadline: float, queued: Callable[[], float | None]) -> AsyncIterator[None]:
    """Cancel the `with` block after `deadline` seconds outside the queue, and raise DeadlineError.

    `queued()` returns None while the work runs; while it waits, the number of seconds since the queue
    last made progress. Time in the queue does not count, but a queue without progress for `deadline`
    seconds raises DeadlineError as well.
    """
    loop = asyncio.get_running_loop()
    begun = read = loop.time()
    left = deadline
    pending: asyncio.TimerHandle | None = None

    def tick() -> None:
        nonlocal read, left, pending
        if limit.expired():
            return
        now = loop.time()
        still = queued()
        if still is None:
            left -= now - read
            limit.reschedule(now + left)
        else:
            limit.reschedule(now + deadline - min(still, now - begun))
        read = now
        pending = loop.call_later(min(_TICK, deadline / _TICKS), tick)

    limit = asyncio.timeout(deadline)
    try:
        async with limit:
            tick()
            yield
    except TimeoutError as error:
        if limit.expired():
            raise DeadlineError(f"no answer within deadline={deadline:g} s") from error
        raise
    finally:
        if pending is not None:
            pending.cancel()


def within(grader: T, deadline: float) -> T:
    """Return a copy of the grader whose `limits.deadline` is at most `deadline` seconds.

    Each run of the copy ends before the sample's deadline. Returns the grader itself if its deadline is
    not later, or if `limits.timeout` or `limits.wall` is `deadline` or more.
    """
    limits: Any = getattr(grader, "limits", None)  # Any: a grader need not have them
    if not dataclasses.is_dataclass(limits) or getattr(limits, "deadline", 0.0) <= deadline:
        return grader
    if deadline <= max(getattr(limits, "timeout", 0.0), getattr(limits, "wall", None) or 0.0):
        return grader
    changed = copy.copy(grader)
    # A grader may be frozen.
    object.__setattr__(changed, "limits", dataclasses.replace(limits, deadline=deadline))  # type: ignore[type-var]
    return changed
