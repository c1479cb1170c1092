"""Byte streams that break: after a number of bytes, or by falling silent."""

from collections.abc import Callable, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream

__all__ = ["Breaking", "Repeating", "Silent"]


class Breaking(ByteStream):
    """Carries `sends` bytes one way and `receives` bytes the other, and then breaks, mid-record."""

    def __init__(self, stream: ByteStream, sends: float, receives: float) -> None:
        self._stream, self._sends, self._receives = stream, sends, receives

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._receives <= 0:
            await self._break()
        data = await self._stream.receive(int(min(max_bytes, self._receives)))
        self._receives -= len(data)
        return data

    async def send(self, item: bytes) -> None:
        if len(item) > self._sends:
            await self._stream.send(item[: int(self._sends)])
            self._sends = 0
            await self._break()
        self._sends -= len(item)
        await self._stream.send(item)

    async def _break(self) -> None:
        await self._stream.aclose()
        raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:  # anyio's own signature
        return self._stream.extra_attributes


class Repeating(ByteStream):
    """Delivers everything that is sent twice, as a router does that missed an answer."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        await self._stream.send(item + item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Silent(ByteStream):
    """Carries everything until it is told to fall silent; it never breaks."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.silent = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await self._stream.receive(max_bytes)
        if self.silent:
            await anyio.sleep_forever()
        return data

    async def send(self, item: bytes) -> None:
        if not self.silent:
            await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()
