"""A byte queue that joins small pieces, so that it holds few objects."""

from collections import deque
from collections.abc import Iterator

_PIECE = 1 << 16


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
