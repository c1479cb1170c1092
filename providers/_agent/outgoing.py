"""The queue of frames to write to an agent: short frames first, then the requests' data in turns."""

import asyncio
from collections import deque
from collections.abc import Sequence
from time import monotonic

_SHORT_BYTES = 16 << 10
"""The longest frame (bytes) that overtakes data; a longer one waits for its request's turn."""
_TURN_BYTES = 128 << 10
"""How many bytes of one request are written per turn, and how many may wait before `room` blocks."""
_HOLD_SECONDS = 0.01
"""How long a command counts as starting, and how long data waits for it."""


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

    While commands start, long data is held back, which leaves more of the link and of the processors to
    them: at most 10 ms at a time, and at most half of all time.
    """

    def __init__(self) -> None:
        self._first: deque[bytes] = deque()
        self._queues: dict[int, _RequestQueue] = {}
        """The requests with data to write, the next one first."""
        self._starting: dict[int, float] = {}
        """The commands that start, the oldest first, and the time at which each no longer counts."""
        self._held_since: float | None = None
        self._free_until = 0.0
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
        if queue.size > _SHORT_BYTES:
            self.started(stream)  # otherwise the data would wait for its own command

    def starts(self, command: int) -> None:
        """Hold long data back until `started`, within the bounds that the class describes."""
        self._starting[command] = monotonic() + _HOLD_SECONDS

    def started(self, command: int) -> bool:
        """End what `starts` began, if it did; return whether data that was held back may now be written."""
        known = self._starting.pop(command, None) is not None
        return known and not self._starting and self._held_since is not None

    @property
    def is_beside_commands(self) -> bool:
        """Whether commands start, or started a moment ago."""
        return bool(self._starting) or monotonic() < self._free_until

    def hold(self) -> float:
        """Return for how many seconds long data must still wait; 0 if it may be written."""
        now, since, starting = monotonic(), self._held_since, self._starting
        while starting and starting[oldest := next(iter(starting))] <= now:
            del starting[oldest]
        if since is None:
            if not starting or now < self._free_until:
                return 0.0
            self._held_since = since = now
        end = min(since + _HOLD_SECONDS, next(reversed(starting.values()), now))
        if end > now:
            return end - now
        self._held_since, self._free_until = None, now + min(now - since, _HOLD_SECONDS)
        return 0.0

    async def room(self, stream: int) -> None:
        """Wait while more than 128 KiB of a request are queued, unless the queue is closed."""
        while (queue := self._queues.get(stream)) and queue.size > _TURN_BYTES and not self._closed:
            queue.shrunk.clear()
            await queue.shrunk.wait()

    def take(self) -> Sequence[bytes]:
        """Remove and return the frames to write next: all short ones, or one request's turn.

        Returns none if only data that is held back waits; `hold` returns for how long.
        """
        if self._first:
            first, self._first = self._first, deque()
            return first
        held = any(each.size > _SHORT_BYTES for each in self._queues.values()) and self.hold() > 0
        ready = (
            number
            for number, queue in self._queues.items()
            if not held or queue.begins or queue.size <= _SHORT_BYTES
        )
        stream = next(ready, None)
        if stream is None:
            return ()
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
