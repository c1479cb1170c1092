"""One output stream of a wrapped command, up to the mark that says it has ended."""

__all__ = ["MarkedStream"]


class MarkedStream:
    """Cuts the mark and the exit status from a stream that arrives in pieces."""

    def __init__(self, mark: str) -> None:
        self._mark = f"\036{mark}:".encode()
        self._held = b""
        self.status: int | None = None
        """The command's exit status, once the stream has said it."""

    def feed(self, chunk: bytes) -> bytes:
        """Take a piece of the stream; return what of the output is certain by now.

        What comes after the mark is of others who hold the stream, and is dropped.
        """
        if self.status is not None:
            return b""
        held = self._held + chunk
        at = held.find(self._mark)
        if at >= 0:
            end = held.find(b";", at + len(self._mark))
            if end >= 0:
                self.status = int(held[at + len(self._mark) : end])
                self._held = b""
                return held[:at]
        else:
            at = self._partial(held)
        self._held = held[at:]
        return held[:at]

    def rest(self) -> bytes:
        """What is held back, for a stream that ended without the mark."""
        held, self._held = self._held, b""
        return held

    def _partial(self, held: bytes) -> int:
        """Where a mark may begin at the end of `held`, or its length."""
        at = held.find(b"\036", max(0, len(held) - len(self._mark) + 1))
        while at >= 0 and not self._mark.startswith(held[at:]):
            at = held.find(b"\036", at + 1)
        return len(held) if at < 0 else at
