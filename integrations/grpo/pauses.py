"""How long to wait before each further try at what may come back at once, or in minutes."""

from collections.abc import Iterator

__all__ = ["pauses"]


def pauses() -> Iterator[float]:
    """Seconds: 0.25, and each twice the one before, up to 10."""
    pause = 0.25
    while True:
        yield pause
        pause = min(2 * pause, 10.0)
