"""What a terminal has printed and nobody has taken: bounded, and without the shell's marks."""

from collections import deque

_LONGEST = 64
"""Bytes of a mark after its prefix."""
_REMEMBERED = 16


class Unread:
    """Output in the order it came. Over `limit` bytes its middle goes.

    A mark is `prefix`, a few bytes and BEL. It is no output: it says that all before it has come.
    """

    def __init__(self, limit: int, prefix: bytes) -> None:
        self._half, self._limit, self._prefix = limit // 2, limit, prefix
        self._data, self._dropped = bytearray(), False
        self._held = b""  # what may be the beginning of a mark
        self._marks: deque[bytes] = deque(maxlen=_REMEMBERED)

    def feed(self, chunk: bytes) -> None:
        """Add what came."""
        data, done = self._held + chunk, 0
        while (at := data.find(self._prefix, done)) >= 0:
            begin = at + len(self._prefix)
            end = data.find(b"\a", begin, begin + _LONGEST)
            if end < 0 and len(data) - begin < _LONGEST:
                break
            if end < 0:
                self._add(data[done:begin])  # somebody else's: no mark is as long
                done = begin
            else:
                self._marks.append(data[begin:end])
                self._add(data[done:at])
                done = end + 1
        held = _overlap(data[done:], self._prefix) if at < 0 else len(data) - at
        self._add(data[done : len(data) - held])
        self._held = data[len(data) - held :]

    def finish(self) -> None:
        """No more comes: what looked like the beginning of a mark is output."""
        self._add(self._held)
        self._held = b""

    def marked(self, mark: bytes) -> bool:
        """Whether this mark has come lately."""
        return mark in self._marks

    def look(self) -> bytes:
        """All of it, which stays."""
        self._trim()
        return bytes(self._data)

    def take(self, size: int | None = None) -> tuple[bytes, bool]:
        """The first `size` bytes or all of it, and whether something was dropped from it."""
        self._trim()
        taken, dropped = bytes(self._data[:size]), self._dropped
        del self._data[: len(taken)]
        self._dropped = dropped and bool(self._data)
        return taken, dropped

    def _add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * self._limit:
            self._trim()

    def _trim(self) -> None:
        if len(self._data) > self._limit:
            del self._data[self._limit - self._half : len(self._data) - self._half]
            self._dropped = True


def _overlap(data: bytes, prefix: bytes) -> int:
    """How many of the last bytes are the beginning of the prefix."""
    for size in range(min(len(data), len(prefix) - 1), 0, -1):
        if data.endswith(prefix[:size]):
            return size
    return 0
