"""A command's streams: output that is kept within a limit and can be read live, and stdin."""

import builtins
import codecs
import io
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, NoReturn, TypeVar

import anyio

from sandboxkit import _arguments, _forks
from sandboxkit._operation import Operation
from sandboxkit._pieces import Pieces
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import PtySize, StdinItem

T = TypeVar("T")

LINE_LIMIT = 1 << 20  # characters
_UNREAD_LIMIT = 1 << 20  # bytes a live reader may lag behind before the command is held up


class Chunks(Generic[T]):
    """Pieces of one output stream; iterate with `for` or `async for`, once."""

    def __init__(self, stream: "OutputStream", convert: Callable[[bytes | None], list[T]]) -> None:
        self._stream, self._convert = stream, convert

    def __iter__(self) -> Iterator[T]:
        stream = self._stream
        try:
            while True:
                with stream._waiting():
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
    that writes faster is held up; otherwise output beyond the limit drops its middle. Ctrl-C while
    waiting for more in a `for` kills the command.
    """

    def __init__(
        self, limit: int | None, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`waiting` surrounds each wait of a thread for more."""
        self._waiting = waiting
        self._tail_limit = 0 if limit is None else limit // 2
        self._head_limit = None if limit is None else limit - self._tail_limit
        self._head, self._tail, self._unread = Pieces(), Pieces(), Pieces()
        self._attached = False  # somebody iterates
        self._ended = False
        self._changed: anyio.Event | None = None
        self._pid = os.getpid()
        self.truncated = False

    def __iter__(self) -> Iterator[str]:
        return iter(Chunks(self, _text()))

    def __aiter__(self) -> AsyncIterator[str]:
        return Chunks(self, _text()).__aiter__()

    def read(self, *size: object) -> NoReturn:
        """Raise ConfigurationError: it is not a file."""
        raise ConfigurationError(
            "a command's output has no read(): iterate over it as it arrives, or take all of it "
            "from the command's result(), as .stdout and .stderr"
        )

    def lines(self, *, max_length: int = LINE_LIMIT) -> Chunks[str]:
        """Lines of text, without their line ends.

        One of more than `max_length` characters comes in pieces of that many and a last one, so
        that a program that ends no line cannot fill this machine's memory.
        """
        return Chunks(self, _lines(_arguments.whole("max_length", max_length)))

    def bytes(self) -> Chunks[builtins.bytes]:
        """The exact bytes, as they arrive; small pieces may come joined."""
        return Chunks(self, lambda chunk: [] if chunk is None else [chunk])

    def _value(self) -> builtins.bytes:
        return b"".join([*self._head, *self._tail.last(self._tail_limit)])

    # Everything below runs on the background loop only.

    async def _feed(self, chunk: builtins.bytes) -> None:
        self._keep(chunk)
        if not self._attached:
            return
        self._unread.append(chunk)
        self._notify()
        while self._attached and self._unread.size > _UNREAD_LIMIT:
            await self._change()

    def _end(self) -> None:
        self._ended = True
        self._notify()

    async def _next(self) -> builtins.bytes | None:
        if not self._ended:
            _forks.refuse(self._pid, "this output", "read it there")
        if not self._attached:
            self._attached = True
            for piece in (*self._head, *self._tail.last(self._tail_limit)):
                self._unread.append(piece)
        while not self._unread.size and not self._ended:
            await self._change()
        if not self._unread.size:
            return None
        chunk = self._unread.popleft()
        self._notify()
        return chunk

    def _background_detach(self) -> None:
        async def detach() -> None:
            self._attached, self._unread = False, Pieces()
            self._notify()

        Operation(detach())

    def _keep(self, chunk: builtins.bytes) -> None:
        if self._head_limit is None:
            self._head.append(chunk)
            return
        room = self._head_limit - self._head.size
        if room > 0:
            self._head.append(chunk[:room])
            chunk = chunk[room:]
        if not chunk:
            return
        self.truncated = self.truncated or self._tail.size + len(chunk) > self._tail_limit
        if self._tail_limit:
            self._tail.append(chunk[-self._tail_limit :])
            self._tail.keep_last(self._tail_limit)

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
        self._pid = os.getpid()

    def write(self, data: _arguments.Content) -> Operation[None]:
        """Send data; done when it is on its way. Raises BrokenPipeError after the command's end."""
        self._refuse_fork()
        return Operation(self._put(_arguments.content("data", data)))

    def resize(self, size: PtySize) -> Operation[None]:
        """Tell the command's terminal its new size."""
        self._refuse_fork()
        return Operation(self._put(_arguments.pty_size("size", size)))

    def close(self) -> Operation[None]:
        """Close the command's stdin; it then reads end of file."""
        self._refuse_fork()
        return Operation(self._send.aclose())

    def _refuse_fork(self) -> None:
        _forks.refuse(self._pid, "this command's stdin", "write to it there")

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

    def write(self, data: _arguments.Content) -> Operation[None]:
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


def _lines(max_length: int) -> Callable[[bytes | None], list[str]]:
    decode = _text()
    line, cut = io.StringIO(), False  # what has come of a line, but for the pieces cut off it

    def add(text: str, found: list[str]) -> None:
        nonlocal cut
        line.write(text)
        if line.tell() > max_length:
            whole = line.getvalue()
            # The last piece waits: it may end with half a line end, which is no part of the line.
            kept = (len(whole) - 1) // max_length * max_length
            found += [whole[at : at + max_length] for at in range(0, kept, max_length)]
            line.seek(0)
            line.truncate()
            line.write(whole[kept:])
            cut = True

    def end(found: list[str]) -> None:
        nonlocal cut
        text = line.getvalue().removesuffix("\r")
        if text or not cut:
            found.append(text)
        line.seek(0)
        line.truncate()
        cut = False

    def convert(chunk: bytes | None) -> list[str]:
        found: list[str] = []
        *ended, rest = "".join(decode(chunk)).split("\n")
        for text in ended:
            add(text, found)
            end(found)
        add(rest, found)
        if chunk is None and line.tell():
            end(found)
        return found

    return convert
