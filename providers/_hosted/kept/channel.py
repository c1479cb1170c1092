"""What comes over a line, taken apart: output, and the records of our scripts."""

from collections.abc import Iterator
from typing import Literal

__all__ = ["Channel", "Part"]

Part = tuple[Literal["stdout", "stderr", "record"], bytes]


class Channel:
    """Cuts records, and the standard error between two, from bytes that arrive in pieces."""

    def __init__(self, mark: str, stream: Literal["stdout", "stderr"] = "stdout") -> None:
        """`stream`: what comes outside of records."""
        self._start = f"\036-{mark}:".encode()
        self._stream: Literal["stdout", "stderr"] = stream
        self.held = b""
        """What may be the beginning of a record."""

    def feed(self, data: bytes) -> Iterator[Part]:
        """Take a piece; yield what is certain by now, in order."""
        self.held += data
        while self.held:
            at = self.held.find(self._start)
            if at < 0:
                at = self._partial()
                if at:
                    yield self._stream, self._take(at)
                return
            if at:
                yield self._stream, self._take(at)
            end = self.held.find(b"\036", len(self._start))
            if end < 0:
                return
            match self._take(end + 1)[len(self._start) : -1]:
                case b"e":
                    self._stream = "stderr"
                case b"s":
                    self._stream = "stdout"
                case word:
                    yield "record", word

    def _take(self, size: int) -> bytes:
        taken, self.held = self.held[:size], self.held[size:]
        return taken

    def _partial(self) -> int:
        """Where a record may begin at the end of what is held, or its length."""
        at = self.held.find(b"\036", max(0, len(self.held) - len(self._start) + 1))
        while at >= 0 and not self._start.startswith(self.held[at:]):
            at = self.held.find(b"\036", at + 1)
        return len(self.held) if at < 0 else at
