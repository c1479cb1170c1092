"""A bounded buffer of a terminal's unread output, without the shell's marks."""

from collections import deque

_LONGEST = 64
"""The longest mark, in bytes after its prefix."""
_REMEMBERED = 16


class UnreadOutput:
    """Output in order of arrival; over `limit` bytes it loses its middle.

    A mark consists of `prefix`, at most 63 bytes, and BEL. It is removed from the output, and proves that all output
    before it has arrived.
    """

    def __init__(self, limit: int, prefix: bytes) -> None:
        self._half, self._limit, self._prefix = limit // 2, limit, prefix
        self._data, self._dropped = bytearray(), False
        self._held = b""  # possibly the beginning of a mark
        self._marks: deque[bytes] = deque(maxlen=_REMEMBERED)

    def feed(self, chunk: bytes) -> None:
        """Add a chunk of terminal output, and extract its marks."""
        data, done = self._held + chunk, 0
        while (at := data.find(self._prefix, done)) >= 0:
            begin = at + len(self._prefix)
            end = data.find(b"\a", begin, begin + _LONGEST)
            if end < 0 and len(data) - begin < _LONGEST:
                break
            if end < 0:
                self._add(data[done:begin])  # too long for a mark, so it is output
                done = begin
            else:
                self._marks.append(data[begin:end])
                self._add(data[done:at])
                done = end + 1
        held = _overlap(data[done:], self._prefix) if at < 0 else len(data) - at
        self._add(data[done : len(data) - held])
        self._held = data[len(data) - held :]

    def finish(self) -> None:
        """Add a possible beginning of a mark as output, because no more data follows."""
        self._add(self._held)
        self._held = b""

    def marked(self, mark: bytes) -> bool:
        """Return whether the mark has arrived; if so, forget it and all earlier marks.

        Each mark counts once, because a shell started by `exec` keeps the pid of the shell that it
        replaces and numbers its marks from 1 again.
        """
        if mark not in self._marks:
            return False
        while self._marks.popleft() != mark:
            pass
        return True

    def look(self) -> bytes:
        """Return all output without removing it."""
        self._trim()
        return bytes(self._data)

    def take(self, size: int | None = None) -> tuple[bytes, bool]:
        """Remove and return the first `size` bytes, or all; also return whether output was dropped."""
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
    """Return how many bytes at the end of `data` are the beginning of `prefix`."""
    for size in range(min(len(data), len(prefix) - 1), 0, -1):
        if data.endswith(prefix[:size]):
            return size
    return 0
