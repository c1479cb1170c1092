"""What an agent's steps print: cut at the marks between them, and bounded."""

import asyncio


class Log:
    """A stream of output in which marks end what belongs to a step.

    Of a step's output the first half of `limit` bytes and its end are kept.
    """

    def __init__(self, limit: int) -> None:
        self._head, self._limit = limit // 2, limit
        self._data = bytearray()
        self._left_out = 0
        self._mark = b""
        self._whole = b""
        self.marked = asyncio.Event()

    def expect(self, mark: str) -> None:
        """The next step ends with `mark`, which is in no output yet."""
        self._mark = mark.encode()
        self.marked.clear()

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the stream."""
        searched = max(0, len(self._data) - len(self._mark))
        self._data += chunk
        at = self._data.find(self._mark, searched) if self._mark else -1
        if at >= 0:
            self._whole = self._cut(at)
            del self._data[: len(self._mark)]
            self._mark = b""
            self.marked.set()
        excess = len(self._data) - self._head - self._limit
        if excess > self._limit:
            del self._data[self._head : self._head + excess]
            self._left_out += excess

    def text(self) -> str:
        """What the step has printed: up to its mark, or all that has come."""
        whole = self._whole if self.marked.is_set() else self._cut(len(self._data))
        return whole.decode(errors="replace")

    def _cut(self, at: int) -> bytes:
        data = bytes(self._data[:at])
        del self._data[:at]
        if self._left_out:
            note = f"\n[{self._left_out} bytes left out]\n".encode()
            data = data[: self._head] + note + data[self._head :]
            self._left_out = 0
        return data
