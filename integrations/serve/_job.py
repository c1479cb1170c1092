"""Jobs: work whose results arrive one by one, shared by all requests with the same idempotency key."""

import asyncio
import contextlib
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from typing import Generic, TypeVar

from sandboxkit import ConfigurationError

T = TypeVar("T")

_MOST = 256
"""Maximum number of ended jobs of a client that are kept for requests with the same key."""
_SECONDS = 600.0
"""Seconds after its start during which a job serves further requests with its key."""


class Job(Generic[T]):
    """Runs a generator while at least one request follows it, and keeps its results."""

    def __init__(self, work: AsyncGenerator[T, None], done: Callable[[], None]) -> None:
        """`done` is called once, when the work has ended, failed or been cancelled."""
        self._results: list[T] = []
        self._followers = 0
        self._abandoned = False
        self._changed = asyncio.Event()
        self._task = asyncio.create_task(self._run(work))
        self._task.add_done_callback(lambda _: done())

    async def _run(self, work: AsyncGenerator[T, None]) -> None:
        try:
            async with contextlib.aclosing(work) as results:
                async for result in results:
                    self._results.append(result)
                    self._wake()
        finally:
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self) -> AsyncGenerator[T, None]:
        """Yield all results, beginning with those that exist already. Raises the work's error.

        The work is cancelled if its last follower leaves before the end.
        """
        self._followers += 1
        try:
            sent = 0
            while True:
                changed = self._changed
                while sent < len(self._results):
                    yield self._results[sent]
                    sent += 1
                if self._task.done():
                    break
                await changed.wait()
            self._task.result()
        finally:
            self._followers -= 1
            if not self._followers and not self._task.done():
                self._abandoned = True
                self._task.cancel()
                await asyncio.wait([self._task])

    @property
    def runs(self) -> bool:
        """Whether the work goes on."""
        return not self._task.done()

    def may_answer(self, final: Callable[[list[T]], bool]) -> bool:
        """Return whether another request may follow: the work runs, or `final` accepts its results."""
        if self._abandoned or not self._task.done():
            return not self._abandoned
        return not self._task.cancelled() and not self._task.exception() and final(self._results)


class Jobs(Generic[T]):
    """The jobs of a replica by client and idempotency key."""

    def __init__(self, final: Callable[[list[T]], bool]) -> None:
        """`final` returns whether a job's results may be sent again; if not, the work is repeated."""
        self._final = final
        self._kept: dict[str, OrderedDict[str, tuple[str, float, Job[T]]]] = {}

    def get(self, client: str, key: str, request: bytes, begin: Callable[[], Job[T]]) -> Job[T]:
        """Return the job that has this key if it may be followed, else start one with `begin`.

        Raises ConfigurationError if the client used the key with another request.
        """
        digest = hashlib.sha256(request).hexdigest()
        kept = self._kept.setdefault(client, OrderedDict())
        entry = kept.get(key)
        if entry is not None:
            known, made, job = entry
            if known != digest:
                raise ConfigurationError(
                    f"Idempotency-Key {key!r} was used with another request; give each its own"
                )
            if time.monotonic() < made + _SECONDS and job.may_answer(self._final):
                return job
        job = begin()
        kept[key] = (digest, time.monotonic(), job)
        kept.move_to_end(key)
        ended = [name for name, (_, _, other) in kept.items() if not other.runs]
        late = time.monotonic() - _SECONDS
        for name in ended[:-_MOST] + [name for name in ended[-_MOST:] if kept[name][1] < late]:
            del kept[name]
        return job
