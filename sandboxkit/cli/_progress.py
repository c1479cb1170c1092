"""Lines that show progress on stderr, if that is a terminal."""

import sys
import time
from typing import Self

_AFTER, _EVERY = 1.0, 0.1
_UNITS = ("B", "kB", "MB", "GB", "TB")


class StatusLine:
    """One line that is updated in place, and erased at the end of the `with` block."""

    def __init__(self) -> None:
        self._visible, self._width = sys.stderr.isatty(), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Update the line."""
        if self._visible:
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = max(self._width, len(text))

    def clear(self) -> None:
        """Erase the line."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


class ProgressLine(StatusLine):
    """The progress of a long copy; it appears one second after the start."""

    def __init__(self, total: int | None = None) -> None:
        super().__init__()
        self._total = total
        self._done = 0
        self._began = self._shown = time.monotonic()

    def add(self, count: int) -> None:
        """Record that this many more bytes were copied."""
        self._done += count
        now = time.monotonic()
        if now - self._began > _AFTER and now - self._shown > _EVERY:
            self._shown = now
            self.show(self._line(now - self._began))

    def _line(self, seconds: float) -> str:
        speed = f"{size(self._done / seconds)}/s"
        if not self._total:
            return f"copied {size(self._done)}, {speed}"
        # The archive that carries a file is a little longer than the file.
        share = min(100, 100 * self._done // self._total)
        return f"copied {size(self._done)} of {size(self._total)}, {share} %, {speed}"


def size(count: float) -> str:
    """Format a number of bytes with a suitable unit."""
    power = 0
    while count >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 else f"{count:.3g} {_UNITS[power]}"
