"""The streams of a command: output with a size limit and live reading, and stdin."""

import builtins
import codecs
import io
import os
import warnings
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, NoReturn, TypeVar

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import NoValueYet
from sandboxkit._calls._foreign_names import replacement, used
from sandboxkit._life import _forks, _loop
from sandboxkit._operation import Operation
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import PtySize, StdinItem, WholeInput

T = TypeVar("T")

LINE_LIMIT = 1 << 20  # characters
_WHOLE = "iterate over it as it arrives, or take all of it from result().stdout and result().stderr"
_OF_TEXT = {*dir(str), *dir(builtins.bytes)}
_UNREAD_LIMIT = 1 << 20  # bytes a live reader may lag behind before back-pressure begins
_PIECE = 1 << 16


class Chunks(Generic[T]):
    """The pieces of one output stream, for a single `for` or `async for`."""

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


class OutputStream(NoValueYet):
    """One output stream of a command, readable while the command runs.

    Iterating yields text as it arrives, decoded as UTF-8; undecodable bytes become U+FFFD.
    `lines()` yields whole lines, `bytes()` the exact bytes. During iteration, back-pressure
    slows a command that writes faster; otherwise output over the limit loses its middle. Ctrl-C
    during a `for` that waits for output kills the command.
    """

    def __init__(
        self, limit: int | None, waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`limit` is in bytes, None for no limit. A thread waits for output inside `waiting()`."""
        self._waiting = waiting
        self._tail_limit = 0 if limit is None else limit // 2
        self._head_limit = None if limit is None else limit - self._tail_limit
        self._head, self._tail, self._unread = Pieces(), Pieces(), Pieces()
        self._attached = False  # True while something iterates
        self._ended = False
        self._changed: anyio.Event | None = None
        self._pid = os.getpid()
        self.truncated = False

    def __iter__(self) -> Iterator[str]:
        return iter(Chunks(self, _text()))

    def __aiter__(self) -> AsyncIterator[str]:
        return Chunks(self, _text()).__aiter__()

    def read(self, *size: object) -> NoReturn:
        """Raise ConfigurationError: an output stream is not a file."""
        self._refuse_use()

    def _no_value(self) -> str:
        return f"a command's live output is no text yet: {_WHOLE}"

    def __repr__(self) -> str:
        return f"<a command's live output; {_WHOLE}>"

    def __str__(self) -> str:
        warnings.warn(
            f"this prints no output of the command: {_WHOLE}", RuntimeWarning, stacklevel=2
        )
        return repr(self)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise AttributeError; the message says where to find the whole text."""
        ours = replacement("Process", name)
        remedy = f"; {used(ours)}" if ours else ""
        if name in _OF_TEXT:
            remedy = "; the whole output is the str result().stdout"
        raise AttributeError(
            f"a command's live output has no attribute {name!r}{remedy}", name=name, obj=self
        )

    def lines(self, *, max_length: int = LINE_LIMIT) -> Chunks[str]:
        """Return an iterator over text lines, without their line ends.

        A line of more than `max_length` characters is split into pieces of that length, so that
        a program that never ends a line cannot fill this machine's memory.
        """
        return Chunks(self, _lines(_arguments.integer("max_length", max_length)))

    def bytes(self) -> Chunks[builtins.bytes]:
        """Return an iterator over the exact bytes as they arrive; small pieces may be joined."""
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

        if not _loop.halted():  # a halted loop delivers no more output
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
    """The standard input of a running command, open if `exec` was given `stdin=True` or a pty."""

    def __init__(self) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[StdinItem](16)
        self._pid = os.getpid()

    def write(self, data: _arguments.Content) -> Operation[None]:
        """Send data to the command; the Operation is done once the data is queued.

        Raises BrokenPipeError if the command has ended or its stdin was closed.
        """
        self._refuse_fork()
        return Operation(self._put(_arguments.content("data", data)))

    def resize(self, size: PtySize) -> Operation[None]:
        """Set the size of the command's terminal."""
        self._refuse_fork()
        return Operation(self._put(_arguments.pty_size("size", size)))

    def close(self) -> Operation[None]:
        """Close the command's stdin; the command then reads end of file."""
        self._refuse_fork()
        return Operation(self._send.aclose())

    def _refuse_fork(self) -> None:
        _forks.refuse(self._pid, "this command's stdin", "write to it there")

    async def _put(self, item: StdinItem) -> None:
        try:
            await self._send.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            raise BrokenPipeError("the command has ended or its stdin was closed") from None

    def _end(self) -> None:
        self._receive.close()
        self._send.close()


class NoStdin:
    """The placeholder for a stdin that is not open; its methods raise errors with the remedy."""

    def write(self, data: _arguments.Content) -> Operation[None]:
        """Raise ConfigurationError: stdin was not opened."""
        raise ConfigurationError("this command's stdin is not open; pass stdin=True to exec()")

    def resize(self, size: PtySize) -> Operation[None]:
        """Raise ConfigurationError: the command has no terminal."""
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
    line, cut = io.StringIO(), False  # the unfinished line, without pieces already split off

    def add(text: str, found: list[str]) -> None:
        nonlocal cut
        line.write(text)
        if line.tell() > max_length:
            whole = line.getvalue()
            # Keep the last piece: it may end with the CR of a CR LF, which is not part of the line.
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


def command_input(
    given: _arguments.Content | bool | None, *, open_: bool = False
) -> tuple[Stdin | None, AsyncIterable[StdinItem] | None]:
    """Return the writable stdin, if any, and the items that the command reads.

    With `open_`, stdin is writable unless content is given.
    """
    checked = _arguments.stdin(given)
    if checked is True or (open_ and not checked):
        live = Stdin()
        return live, live._receive
    return None, WholeInput(checked) if isinstance(checked, bytes) else None


class Pieces:
    """A FIFO queue of bytes; each call takes time proportional to the bytes it moves."""

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._open = bytearray()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        yield from self._whole
        if self._open:
            yield bytes(self._open)

    def append(self, piece: bytes) -> None:
        """Add a piece at the end."""
        self.size += len(piece)
        if len(self._open) + len(piece) < _PIECE:
            self._open += piece
            return
        self._close()
        if len(piece) < _PIECE // 2:
            self._open += piece
        else:
            self._whole.append(piece)

    def popleft(self) -> bytes:
        """Remove and return the oldest piece; b"" when the queue is empty."""
        if not self._whole:
            self._close()
        piece = self._whole.popleft() if self._whole else b""
        self.size -= len(piece)
        return piece

    def keep_last(self, size: int) -> None:
        """Drop old pieces that lie entirely before the last `size` bytes."""
        while self._whole and self.size - len(self._whole[0]) >= size:
            self.popleft()

    def last(self, size: int) -> Iterator[bytes]:
        """Iterate over the last `size` bytes, or over all if there are fewer."""
        left = self.size - size
        for piece in self:
            if left < len(piece):
                yield piece[max(0, left) :]
            left -= len(piece)

    def _close(self) -> None:
        if self._open:
            self._whole.append(bytes(self._open))
            self._open.clear()
