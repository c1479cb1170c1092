"""What comes from Daytona's terminal, taken apart: output, and the records of our scripts."""

from collections.abc import Iterator
from typing import Literal

__all__ = ["Channel", "Part"]

Part = tuple[Literal["stdout", "stderr", "record"], bytes]


class Channel:
    """Cuts records, and the standard error in them, from bytes that arrive in pieces."""

    def __init__(self, mark: str) -> None:
        self._start = f"\036-{mark}:".encode()
        self._held = b""
        self._missing = 0
        """Bytes of standard error that are still to come."""

    def feed(self, data: bytes) -> Iterator[Part]:
        """Take a piece; yield what is certain by now, in order."""
        self._held += data
        while self._held:
            if self._missing:
                piece, self._held = self._held[: self._missing], self._held[self._missing :]
                self._missing -= len(piece)
                yield "stderr", piece
                continue
            at = self._held.find(self._start)
            if at < 0:
                at = self._partial()
                if at:
                    yield "stdout", self._take(at)
                return
            if at:
                yield "stdout", self._take(at)
            end = self._held.find(b"\036", len(self._start))
            if end < 0:
                return
            word = self._take(end + 1)[len(self._start) : -1]
            if word.startswith(b"e"):
                self._missing = int(word[1:])
            else:
                yield "record", word

    def _take(self, size: int) -> bytes:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _partial(self) -> int:
        """Where a record may begin at the end of what is held, or its length."""
        at = self._held.find(b"\036", max(0, len(self._held) - len(self._start) + 1))
        while at >= 0 and not self._start.startswith(self._held[at:]):
            at = self._held.find(b"\036", at + 1)
        return len(self._held) if at < 0 else at
