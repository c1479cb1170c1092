"""Places that the sandboxes of this process share: open files and threads."""

import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0
_LOOKUPS, _LOOKUPS_OF_ONE = 64, 8
"""How many names are looked up at a time, for all sandboxes and for one; each lookup occupies a thread."""


class SharedPlaces:
    """Places of which one sandbox may have fewer, the more are taken; one that has its share waits.

    Such a dynamic threshold, as switches use for shared buffers, leaves places for a sandbox that has few. Used
    on the background loop only.
    """

    def __init__(self, most: Callable[[int], float]) -> None:
        """`most` returns how many places one sandbox may have while so many are taken in all."""
        self._most, self._taken = most, Counter[object]()
        os.register_at_fork(after_in_child=self._taken.clear)

    async def take(self, sandbox: object) -> None:
        """Take a place for a sandbox, and wait while it has its share."""
        pause = _FIRST_PAUSE
        while self._taken[sandbox] >= self._most(self._taken.total()):
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        self._taken[sandbox] += 1

    def give_back(self, sandbox: object) -> None:
        """Give back a place that a sandbox has taken."""
        self._taken[sandbox] -= 1
        if not self._taken[sandbox]:
            del self._taken[sandbox]

    @asynccontextmanager
    async def place(self, sandbox: object) -> AsyncIterator[None]:
        """Have a place in the `async with` block."""
        await self.take(sandbox)
        try:
            yield
        finally:
            self.give_back(sandbox)


def _files_of_one(taken: int) -> float:
    """Return how many files one sandbox may have: a quarter of the free ones, without a reserve for starts."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.open(os.devnull, os.O_RDONLY)  # about as many are open
    except OSError:
        return 0
    os.close(lowest)
    return min(soft * 7 // 8 - lowest, soft * 3 // 4 - taken) / 4


FILES = SharedPlaces(_files_of_one)
"""The connections to servers, of `Egress` and of `Sandbox.serve`: whatever sandboxes open, this process can start further ones."""
LOOKUPS = SharedPlaces(lambda taken: min(_LOOKUPS_OF_ONE, _LOOKUPS - taken))
"""The lookups of names. One that was given up keeps its place until its thread ends."""
