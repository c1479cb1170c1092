"""Pieces: a queue of bytes in which small pieces are joined, so that it holds few objects."""

from collections import deque
from collections.abc import Iterator

_PIECE = 1 << 16


class Pieces:
    """Bytes in the order in which they came. Every call takes time for the bytes it moves."""

    def __init__(self) -> None:
        self._whole: deque[bytes] = deque()
        self._open = bytearray()
        self.size = 0

    def __iter__(self) -> Iterator[bytes]:
        yield from self._whole
        if self._open:
            yield bytes(self._open)

    def append(self, piece: bytes) -> None:
        """Add one at the end."""
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
        """Take the oldest away; empty when there is none."""
        if not self._whole:
            self._close()
        piece = self._whole.popleft() if self._whole else b""
        self.size -= len(piece)
        return piece

    def keep_last(self, size: int) -> None:
        """Drop from the beginning what is not among the last `size` bytes, in whole pieces."""
        while self._whole and self.size - len(self._whole[0]) >= size:
            self.popleft()

    def last(self, size: int) -> Iterator[bytes]:
        """The last `size` bytes, or all where there are fewer."""
        left = self.size - size
        for piece in self:
            if left < len(piece):
                yield piece[max(0, left) :]
            left -= len(piece)

    def _close(self) -> None:
        if self._open:
            self._whole.append(bytes(self._open))
            self._open.clear()
