"""One output stream of a process on the worker, buffered by offset and with back-pressure."""

import asyncio
from collections.abc import AsyncIterator

_AHEAD = 4 << 20
"""Maximum bytes that are buffered before a client reads them; then the program blocks."""
_BEHIND = 4 << 20
"""Bytes that are kept after they were sent, for a reader that resumes at an earlier offset."""
_CHUNK = 256 << 10


class Stdio:
    """The bytes of one stream, readable from any offset that is still buffered."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._base = 0
        self._sent = 0
        self._ended = False
        self._changed = asyncio.Condition()

    async def feed(self, chunk: bytes) -> None:
        """Add output; wait while the buffer of unread output is full."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._end - self._sent < _AHEAD or self._ended)
            self._data += chunk
            self._changed.notify_all()

    async def end(self) -> None:
        async with self._changed:
            self._ended = True
            self._changed.notify_all()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yield the bytes from `offset` to the end of the stream. Raises LookupError if some are dropped."""

        def ready() -> bool:
            return self._end > offset or self._ended

        while True:
            async with self._changed:
                await self._changed.wait_for(ready)
                if offset < self._base:
                    raise LookupError(offset)
                start = offset - self._base
                chunk = bytes(self._data[start : start + _CHUNK])
            if not chunk:
                return
            yield chunk
            offset += len(chunk)
            async with self._changed:
                self._sent = max(self._sent, offset)
                drop = self._sent - _BEHIND - self._base
                if drop > 0:
                    del self._data[:drop]
                    self._base += drop
                self._changed.notify_all()

    @property
    def _end(self) -> int:
        return self._base + len(self._data)
