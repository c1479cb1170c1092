"""Parts of the streams of programs: a bounded byte buffer between two tasks, and tasks that end programs."""

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any

import anyio


class BytePipe:
    """A byte queue: one task puts bytes and another takes them; any task may close it."""

    def __init__(self, limit: int) -> None:
        """`put` waits while `limit` bytes or more are queued."""
        self._limit = limit
        self._held: deque[bytes | memoryview] = deque()
        self._size = 0
        self._changed = asyncio.Event()
        self.closed = False

    async def put(self, data: bytes | memoryview) -> None:
        """Add bytes, which the caller must not modify later. Raises BrokenResourceError when closed."""
        while self._size >= self._limit and not self.closed:
            await self._change()
        if self.closed:
            raise anyio.BrokenResourceError
        if data:
            self._held.append(data)
            self._size += len(data)
            self._changed.set()

    async def take(self, most: int) -> bytes:
        """Wait for and remove 1 to `most` bytes; return b"" once the pipe is closed and empty."""
        while not self._held and not self.closed:
            await self._change()
        parts: list[bytes | memoryview] = []
        while self._held and most:
            part = self._held.popleft()
            if len(part) > most:
                view = memoryview(part)
                self._held.appendleft(view[most:])
                part = view[:most]
            parts.append(part)
            most -= len(part)
            self._size -= len(part)
        self._changed.set()
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)

    def close(self) -> None:
        """Refuse further `put` calls; queued bytes can still be taken. Idempotent."""
        self.closed = True
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Endings:
    """Background tasks that end programs; each takes a bounded time."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, ending: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run `ending` in a task that the caller's cancellation does not stop."""
        task = asyncio.create_task(ending)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def settle(self, *, cancel: bool = False) -> None:
        """Wait for all tasks, which are cancelled first if `cancel`."""
        for task in self._tasks if cancel else ():
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
