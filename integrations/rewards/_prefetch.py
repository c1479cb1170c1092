"""Starts a submission's runs ahead of their turn while the session's pool has idle sandboxes."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

import anyio

from sandboxkit import Session

T = TypeVar("T")


class PrefetchQueue:
    """Limits how many runs of a session start ahead of their turn. Thread-safe, in any event loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._running = capacity, 0
        self._lock = threading.Lock()

    async def in_order(
        self, runs: Iterable[Callable[[], Awaitable[T]]], *, inside: bool = False
    ) -> AsyncGenerator[T, None]:
        """Yield the results of the runs, in their order. Closing it cancels the runs in progress.

        Only the next run in order may wait in the session's queue. The others start early only in
        idle sandboxes, since an earlier result may make them unnecessary. With `inside` the caller is such a
        run itself, and needs no sandbox meanwhile.
        """
        waiting, begun = deque(runs), deque[asyncio.Task[T]]()
        if inside:
            self._leave()
        try:
            while waiting or begun:
                while waiting and self._enter(ahead=bool(begun)):
                    task = asyncio.ensure_future(waiting.popleft()())
                    task.add_done_callback(lambda _: self._leave())
                    begun.append(task)
                yield await begun[0]
                begun.popleft()
        finally:
            for task in begun:
                task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.gather(*begun, return_exceptions=True)
            if inside:
                self._enter(ahead=False)

    def _enter(self, *, ahead: bool) -> bool:
        with self._lock:
            if ahead and self._running >= self._capacity:
                return False
            self._running += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1


_of: "weakref.WeakKeyDictionary[Session, PrefetchQueue]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def prefetch_queue(session: Session) -> PrefetchQueue:
    """Return a session's queue: up to one early run per sandbox of its pool; none without a pool."""
    with _lock:
        if session not in _of:
            _of[session] = PrefetchQueue(session.pool if session.resets else 0)
        return _of[session]
