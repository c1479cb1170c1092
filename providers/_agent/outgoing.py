"""The frames that wait to be written to an agent: short ones first, then data of the requests in turns."""

import asyncio
from collections import deque

__all__ = ["SendQueue"]

_SHORT_BYTES = 16 << 10
"""A longer frame waits for its turn, as data does."""
_TURN_BYTES = 128 << 10
"""How many bytes of one request are written before the next request's turn; also how many may wait."""


class _RequestQueue:
    """The frames of one request that wait for their turn."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.size = 0
        self.begins = False
        """Whether the frame that begins the request is among them: nothing may overtake it."""
        self.shrunk = asyncio.Event()


class SendQueue:
    """Orders frames so that no request waits for the data of another one to be written.

    The frames of one request keep their order, except that a short frame overtakes its data. It never
    overtakes the request itself: an agent ignores what it receives for a request that it does not know.
    """

    def __init__(self) -> None:
        self._first: deque[bytes] = deque()
        self._lanes: dict[int, _RequestQueue] = {}
        """The requests with data to write, the next one first."""
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._first or self._lanes)

    def put(self, frame: bytes, stream: int) -> None:
        """Add a frame that begins or controls a request; a short one overtakes all data."""
        lane = self._lanes.get(stream)
        if len(frame) <= _SHORT_BYTES and not (lane and lane.begins):
            self._first.append(frame)
        else:
            self.put_data(frame, stream)
            self._lanes[stream].begins = True

    def put_data(self, frame: bytes, stream: int) -> None:
        """Add a frame behind all data of its request."""
        lane = self._lanes.setdefault(stream, _RequestQueue())
        lane.frames.append(frame)
        lane.size += len(frame)

    async def room(self, stream: int) -> None:
        """Wait while more than 128 KiB of a request wait, and the queue is open."""
        while (lane := self._lanes.get(stream)) and lane.size > _TURN_BYTES and not self._closed:
            lane.shrunk.clear()
            await lane.shrunk.wait()

    def take(self) -> bytes:
        """Remove and return what to write next: all short frames, or one request's turn."""
        if self._first:
            data = b"".join(self._first)
            self._first.clear()
            return data
        stream = next(iter(self._lanes))
        lane = self._lanes.pop(stream)
        lane.begins = False  # the frame that begins the request is the first of this turn
        taken: list[bytes] = []
        size = 0
        while lane.frames and size < _TURN_BYTES:
            taken.append(lane.frames.popleft())
            size += len(taken[-1])
        if lane.frames:
            lane.size -= size
            self._lanes[stream] = lane
        lane.shrunk.set()
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def close(self) -> None:
        """Wake all that wait for room, now and later."""
        self._closed = True
        for lane in self._lanes.values():
            lane.shrunk.set()
