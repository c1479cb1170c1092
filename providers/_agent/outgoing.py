"""The queue of frames to write to an agent: short frames first, then the requests' data in turns."""

import asyncio
from collections import deque
from collections.abc import Sequence

__all__ = ["SendQueue"]

_SHORT_BYTES = 16 << 10
"""The longest frame (bytes) that overtakes data; a longer one waits for its request's turn."""
_TURN_BYTES = 128 << 10
"""How many bytes of one request are written per turn, and how many may wait before `room` blocks."""


class _RequestQueue:
    """The frames of one request that wait for their turn."""

    def __init__(self) -> None:
        self.frames: deque[bytes] = deque()
        self.size = 0
        self.begins = False
        """Whether the frame that begins the request is among them; no frame may overtake it."""
        self.shrunk = asyncio.Event()


class SendQueue:
    """Orders frames so that no request waits for the data of another one to be written.

    The frames of one request keep their order, except that a short frame overtakes its data. It never
    overtakes the frame that begins the request, because agents ignore frames of unknown requests.
    """

    def __init__(self) -> None:
        self._first: deque[bytes] = deque()
        self._queues: dict[int, _RequestQueue] = {}
        """The requests with data to write, the next one first."""
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._first or self._queues)

    def put(self, frame: bytes, stream: int) -> None:
        """Add a frame that begins or controls a request; a short one overtakes all data."""
        queue = self._queues.get(stream)
        if len(frame) <= _SHORT_BYTES and not (queue and queue.begins):
            self._first.append(frame)
        else:
            self.put_data(frame, stream)
            self._queues[stream].begins = True

    def put_data(self, frame: bytes, stream: int) -> None:
        """Add a frame behind all data of its request."""
        queue = self._queues.setdefault(stream, _RequestQueue())
        queue.frames.append(frame)
        queue.size += len(frame)

    async def room(self, stream: int) -> None:
        """Wait while more than 128 KiB of a request are queued, unless the queue is closed."""
        while (queue := self._queues.get(stream)) and queue.size > _TURN_BYTES and not self._closed:
            queue.shrunk.clear()
            await queue.shrunk.wait()

    def take(self) -> Sequence[bytes]:
        """Remove and return the frames to write next: all short ones, or one request's turn."""
        if self._first:
            first, self._first = self._first, deque()
            return first
        stream = next(iter(self._queues))
        queue = self._queues.pop(stream)
        queue.begins = False  # the frame that begins the request is the first of this turn
        taken: list[bytes] = []
        size = 0
        while queue.frames and size < _TURN_BYTES:
            taken.append(queue.frames.popleft())
            size += len(taken[-1])
        if queue.frames:
            queue.size -= size
            self._queues[stream] = queue
        queue.shrunk.set()
        return taken

    def close(self) -> None:
        """Wake all waiting `room` calls, and let later ones return at once."""
        self._closed = True
        for queue in self._queues.values():
            queue.shrunk.set()
