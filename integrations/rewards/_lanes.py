"""Runs of one submission that begin before their turn, where a session's pool would be idle."""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TypeVar

from sandboxkit import Session

T = TypeVar("T")


class Lanes:
    """How many runs a session has under way. Usable from any thread and loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self._running = capacity, 0
        self._lock = threading.Lock()

    async def in_order(self, runs: Iterable[Callable[[], Awaitable[T]]]) -> AsyncGenerator[T, None]:
        """What the runs return, in their order. Closing it cancels those that have begun.

        Only the first of them waits for room: the others would take it from submissions of which
        nothing is known yet, for what the first one's result may make needless.
        """
        waiting, begun = deque(runs), deque[asyncio.Task[T]]()
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
            await asyncio.gather(*begun, return_exceptions=True)

    def _enter(self, *, ahead: bool) -> bool:
        with self._lock:
            if ahead and self._running >= self._capacity:
                return False
            self._running += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1


_of: "weakref.WeakKeyDictionary[Session, Lanes]" = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def lanes(session: Session) -> Lanes:
    """Those of a session: as many as its pool has sandboxes, none ahead where it has no pool."""
    with _lock:
        if session not in _of:
            _of[session] = Lanes(session.pool if session.resets else 0)
        return _of[session]
