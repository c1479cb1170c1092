"""Room for work that clients share: whoever holds the fewest places gets the next free one."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator


class FairRoom:
    """A semaphore with `places`, and one more for each client that would hold none.

    So a client never waits because of what others hold, only because of what it holds itself.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._held: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The clients that wait, in the order of their turns."""

    @contextlib.asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[None]:
        """Hold a place of a client's."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._held -= Counter((client,))
            self._grant()

    def _grant(self) -> None:
        while self._waiting:
            client = min(self._waiting, key=self._held.__getitem__)
            if self._held[client] and self._held.total() >= self._places:
                break
            waiting = self._waiting.pop(client)
            turn = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting  # behind the others
            if not turn.cancelled():  # its request was given up
                self._held[client] += 1
                turn.set_result(None)
