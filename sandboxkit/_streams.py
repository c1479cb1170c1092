"""A command's streams: output that is kept within a limit and can be read live, and stdin."""

import builtins
import codecs
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

import anyio

from sandboxkit._operation import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import PtySize, StdinItem

T = TypeVar("T")

_UNREAD_LIMIT = 1 << 20  # bytes a live reader may lag behind before the command is held up


class Chunks(Generic[T]):
    """Pieces of one output stream; iterate with `for` or `async for`, once."""

    def __init__(self, stream: "OutputStream", convert: Callable[[bytes | None], list[T]]) -> None:
        self._stream, self._convert = stream, convert

    def __iter__(self) -> Iterator[T]:
        stream = self._stream
        try:
            while True:
                chunk = Operation(stream._next()).result()
                yield from self._convert(chunk)
                if chunk is None:
                    return
        finally:
            stream._background_detach()

    async def __aiter__(self) -> AsyncIterator[T]:
        stream = self._stream
        try:
            while True:
                chunk = await Operation(stream._next())
                for item in self._convert(chunk):
                    yield item
                if chunk is None:
                    return
        finally:
            stream._background_detach()


class OutputStream:
    """One output stream of a command.

    Iterating gives text as it arrives, decoded as UTF-8 with U+FFFD for what is not;
    `lines()` gives whole lines, `bytes()` the exact bytes. While somebody iterates, a command
    that writes faster is held up; otherwise output beyond the limit drops its middle.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._head: list[builtins.bytes] = []
        self._tail: deque[builtins.bytes] = deque()
        self._head_size = self._tail_size = 0
        self._unread: deque[builtins.bytes] = deque()
        self._unread_size = 0
        self._attached = self._ended = False
        self._changed: anyio.Event | None = None
        self.truncated = False

    def __iter__(self) -> Iterator[str]:
        return iter(Chunks(self, _text()))

    def __aiter__(self) -> AsyncIterator[str]:
        return Chunks(self, _text()).__aiter__()

    def lines(self) -> Chunks[str]:
        """Whole lines of text, without their line ends."""
        return Chunks(self, _lines())

    def bytes(self) -> Chunks[builtins.bytes]:
        """The exact bytes, in the pieces they arrived in."""
        return Chunks(self, lambda chunk: [] if chunk is None else [chunk])

    def _value(self) -> builtins.bytes:
        return b"".join([*self._head, *self._tail])

    # Everything below runs on the background loop only.

    async def _feed(self, chunk: builtins.bytes) -> None:
        self._keep(chunk)
        if not self._attached:
            return
        self._unread.append(chunk)
        self._unread_size += len(chunk)
        self._notify()
        while self._attached and self._unread_size > _UNREAD_LIMIT:
            await self._change()

    def _end(self) -> None:
        self._ended = True
        self._notify()

    async def _next(self) -> builtins.bytes | None:
        if not self._attached:
            self._attached = True
            self._unread.extend([*self._head, *self._tail])
            self._unread_size = self._head_size + self._tail_size
        while not self._unread and not self._ended:
            await self._change()
        if not self._unread:
            return None
        chunk = self._unread.popleft()
        self._unread_size -= len(chunk)
        self._notify()
        return chunk

    def _background_detach(self) -> None:
        async def detach() -> None:
            self._attached, self._unread_size = False, 0
            self._unread.clear()
            self._notify()

        Operation(detach())

    def _keep(self, chunk: builtins.bytes) -> None:
        if self._limit is None:
            self._head.append(chunk)
            self._head_size += len(chunk)
            return
        room = self._limit - self._limit // 2 - self._head_size
        if room > 0:
            self._head.append(chunk[:room])
            self._head_size += len(chunk[:room])
            chunk = chunk[room:]
        if not chunk:
            return
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while (excess := self._tail_size - self._limit // 2) > 0:
            self.truncated = True
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
            self._tail_size -= min(len(first), excess)

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _change(self) -> None:
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()


class Stdin:
    """A running command's standard input, open when exec was given `stdin=True` or a pty."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[StdinItem](16)

    def write(self, data: "bytes | str") -> Operation[None]:
        """Send data; done when it is on its way. Raises BrokenPipeError after the command's end."""
        return Operation(self._put(data.encode() if isinstance(data, str) else data))

    def resize(self, size: PtySize) -> Operation[None]:
        """Tell the command's terminal its new size."""
        return Operation(self._put(size))

    def close(self) -> Operation[None]:
        """Close the command's stdin; it then reads end of file."""
        return Operation(self._send.aclose())

    async def _put(self, item: StdinItem) -> None:
        try:
            await self._send.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise BrokenPipeError("the command has ended or its stdin was closed") from None

    async def _items(self) -> AsyncIterator[StdinItem]:
        async for item in self._receive:
            yield item

    def _end(self) -> None:
        self._receive.close()
        self._send.close()


class NoStdin:
    """Stands where a command has no open stdin; using it says how to open one."""

    def write(self, data: "bytes | str") -> Operation[None]:
        """Raise ConfigurationError: stdin was not opened."""
        raise ConfigurationError("this command's stdin is not open; pass stdin=True to exec()")

    def resize(self, size: PtySize) -> Operation[None]:
        """Raise ConfigurationError: there is no terminal."""
        raise ConfigurationError("this command has no terminal; pass pty=True to exec()")

    def close(self) -> Operation[None]:
        """Raise ConfigurationError: stdin was not opened."""
        raise ConfigurationError("this command's stdin is not open; pass stdin=True to exec()")


def _text() -> Callable[[bytes | None], list[str]]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def convert(chunk: bytes | None) -> list[str]:
        text = decoder.decode(chunk or b"", final=chunk is None)
        return [text] if text else []

    return convert


def _lines() -> Callable[[bytes | None], list[str]]:
    decode, rest = _text(), ""

    def convert(chunk: bytes | None) -> list[str]:
        nonlocal rest
        parts = (rest + "".join(decode(chunk))).split("\n")
        rest = parts.pop()
        if chunk is None and rest:
            parts, rest = [*parts, rest], ""
        return [part.removesuffix("\r") for part in parts]

    return convert
