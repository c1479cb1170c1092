"""The progress line of a long copy; shown only if stderr is a terminal."""

import sys
import time
from typing import Self

_AFTER, _EVERY = 1.0, 0.1
_UNITS = ("B", "kB", "MB", "GB", "TB")


class ProgressLine:
    """One line that is updated in place; it appears one second after the start and is erased at the end."""

    def __init__(self, total: int | None = None) -> None:
        self._total = total
        self._done = 0
        self._began = self._shown = time.monotonic()
        self._visible = sys.stderr.isatty()
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._width:
            self._write("\r" + " " * self._width + "\r")

    def add(self, count: int) -> None:
        """Record that this many more bytes were copied."""
        self._done += count
        now = time.monotonic()
        if self._visible and now - self._began > _AFTER and now - self._shown > _EVERY:
            self._shown = now
            line = self._line(now - self._began)
            self._write("\r" + line.ljust(self._width))
            self._width = max(self._width, len(line))

    def _line(self, seconds: float) -> str:
        speed = f"{size(self._done / seconds)}/s"
        if not self._total:
            return f"copied {size(self._done)}, {speed}"
        # The archive that carries a file is a little longer than the file.
        share = min(100, 100 * self._done // self._total)
        return f"copied {size(self._done)} of {size(self._total)}, {share} %, {speed}"

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def size(count: float) -> str:
    """Format a number of bytes with a suitable unit."""
    power = 0
    while count >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 else f"{count:.3g} {_UNITS[power]}"
