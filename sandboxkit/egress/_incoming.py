"""A reader of a connection's bytes: by message head, by line, or by number of bytes."""

import re

import anyio
from anyio.abc import ByteReceiveStream

from sandboxkit.egress._refused import EgressRefusedError

_BAD_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_LINE = 1024
"""The longest line (bytes) with the size of a chunk."""


class Incoming:
    """A reader of the bytes of one stream. Every method raises `anyio.EndOfStream` at its end."""

    def __init__(self, stream: ByteReceiveStream) -> None:
        self._stream, self._rest = stream, b""
        self.watched = True
        """Whether nothing more of it is wanted, so that a program that has gone can be cut off."""

    async def receive(self, most: int = 64 << 10) -> bytes:
        """Return the next bytes, at most `most`."""
        if not self._rest:
            self._rest = await self._stream.receive()
        data, self._rest = self._rest[:most], self._rest[most:]
        return data

    async def exactly(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        while len(self._rest) < size:
            self._rest += await self._stream.receive()
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    async def head(self, limit: int) -> bytes:
        """Return the bytes before the next empty line, and skip that line.

        Raises EgressRefusedError for a line that does not end in CR LF, and past `limit` bytes.
        """
        return await self._until(b"\r\n\r\n", limit)

    async def line(self) -> bytes:
        """Return a line without its CR LF. Raises EgressRefusedError as `head` does."""
        return await self._until(b"\r\n", _LINE)

    async def _until(self, end: bytes, limit: int) -> bytes:
        seen = 0
        while True:
            at = self._rest.find(end, max(0, seen - len(end)), limit + len(end))
            piece = self._rest[: at + len(end)] if at >= 0 else self._rest
            if _BAD_END.search(piece, max(0, seen - 1)):
                raise EgressRefusedError(400, "a line of the request does not end in CR LF")
            if at >= 0:
                self._rest = self._rest[len(piece) :]
                return piece[:at]
            seen = len(self._rest)
            if seen >= limit + len(end):
                raise EgressRefusedError(431, f"a head or a line is longer than {limit} bytes")
            self._rest += await self._stream.receive()


async def drain(stream: ByteReceiveStream, seconds: float, limit: int) -> None:
    """Discard further data until the stream ends, `seconds` pass or `limit` bytes have arrived."""
    with anyio.move_on_after(seconds):
        while limit > 0:
            try:
                limit -= len(await stream.receive())
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return
