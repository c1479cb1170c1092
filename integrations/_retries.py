"""Retries with exponential backoff."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def pauses(first: float = 0.25) -> Iterator[float]:
    """Yield an endless series of pauses in seconds: `first`, then doubled each time, up to 10."""
    while True:
        yield first
        first = min(2 * first, 10.0)


async def retry(
    once: Callable[[], Awaitable[T]],
    again: Callable[[Exception, int], bool],
    *,
    first: float = 0.2,
) -> T:
    """Return the result of `once()`; if it raises, retry while `again(error, failures)` is true.

    `failures` is the number of failures so far. Sleeps before each retry: `first` seconds, doubled each
    time up to 10, or the error's `retry_after` if that is longer. Raises the last error.
    """
    failures = 0
    for pause in pauses(first):
        try:
            return await once()
        except Exception as error:
            failures += 1
            if not again(error, failures):
                raise
            least = getattr(error, "retry_after", None) or 0.0
        await asyncio.sleep(max(pause, least))
    raise AssertionError("unreachable")
