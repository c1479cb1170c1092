"""Buckets of the pool: each holds the sandboxes of one spec and the starts that wait for them."""

import asyncio
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Mapping

from sandboxkit._lifecycle import Lifecycle
from sandboxkit._limiter import Limiter, Release
from sandboxkit.errors import SandboxError
from sandboxkit.types import SandboxSpec

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(SandboxSpec)
    if field.name not in ("files", "start_timeout", "egress")
)
_numbers = itertools.count()


class PoolRequest:
    """A start that waits for a pooled sandbox, or for room to create its own."""

    def __init__(self, life: Lifecycle | None) -> None:
        """`life` is the sandbox that starts, or None for a request for room only."""
        self.life = life
        self.number = next(_numbers)
        self.given: asyncio.Future[Lifecycle | Release] = asyncio.get_running_loop().create_future()


class Bucket:
    """The pool's sandboxes and statistics for one spec; used on the background loop only."""

    def __init__(self, spec: SandboxSpec, limiter: Limiter) -> None:
        self.spec = dataclasses.replace(spec, files={}, start_timeout=None, egress=None)
        self.limiter = limiter
        self.target = 0
        """How many sandboxes of this spec the pool keeps."""
        self.ready: deque[Lifecycle] = deque()
        self.making: set[Lifecycle] = set()
        self.resetting: set[Lifecycle] = set()
        self.lent = 0
        """How many sandboxes callers hold, or create in room that this bucket gave them."""
        self.requests: deque[PoolRequest] = deque()
        self.asked = 0
        self.asked_at = self.asked_before = float("-inf")
        """When the last start asked for this spec, and when the start before it did."""
        self.error: SandboxError | None = None
        """The error of the newest background creation, if it failed."""
        self.not_before = 0.0
        self._pause = _FIRST_PAUSE

    @property
    def coming(self) -> int:
        """How many sandboxes are being created or reset."""
        return sum(not life.stopped for life in (*self.making, *self.resetting))

    @property
    def have(self) -> int:
        """How many sandboxes can be handed out, now or later."""
        back = self.lent if self.spec.reuse == "reset" else 0
        return len(self.ready) + self.coming + back

    @property
    def lacking(self) -> int:
        """How many requests need room because no sandbox is being created or reset for them."""
        return max(0, len(self.requests) - self.coming) if self.requests else 0

    @property
    def unused(self) -> bool:
        """Whether the bucket is empty, unwanted and outside a retry pause, so that it can be dropped."""
        busy = self.target or self.have or self.lent or self.requests
        return not busy and time.monotonic() > self.not_before

    def ask(self) -> None:
        """Record that a start asks for this spec."""
        self.asked += 1
        self.asked_before, self.asked_at = self.asked_at, time.monotonic()

    def failed(self, error: SandboxError) -> None:
        """Record a failed creation and delay the next attempt, with exponential back-off."""
        self.error = error
        asked = getattr(error, "retry_after", None) or 0.0
        self.not_before = time.monotonic() + max(asked, self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)

    def succeeded(self) -> None:
        """Record a successful creation and end the back-off."""
        self.error, self.not_before, self._pause = None, 0.0, _FIRST_PAUSE


class Buckets:
    """All buckets of a pool, and the choice between them when room is short."""

    def __init__(self, limiter: Limiter, own: SandboxSpec, bounds: tuple[int, int]) -> None:
        """`own` is the spec of the session. `bounds` are the least number of sandboxes kept of it and
        the most kept of all specs."""
        self._limiter = limiter
        self._least, self._most = bounds
        self._buckets: dict[tuple[object, ...], Bucket] = {}
        self.own = self.of(own, limiter)
        self.unpooled = Bucket(own, limiter)
        """Requests for room only: no pooled sandbox fits them."""

    def of(self, spec: SandboxSpec, limiter: Limiter) -> Bucket:
        """Return the bucket for a spec and its caps; create it if needed."""
        name = _key(spec, limiter)
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(spec, limiter)
        return bucket

    def pooled(self) -> list[Bucket]:
        """Return the buckets that keep sandboxes."""
        return list(self._buckets.values())

    def counted(self) -> list[Bucket]:
        """Return the buckets whose sandboxes count against the caps of the session."""
        buckets = (*self._buckets.values(), self.unpooled)
        return [each for each in buckets if each.limiter is self._limiter]

    def uncounted(self) -> list[Bucket]:
        """Return the buckets whose sandboxes count against no cap."""
        return [each for each in self._buckets.values() if each.limiter is not self._limiter]

    def drop_unused(self) -> None:
        """Drop the unused buckets."""
        for name, bucket in tuple(self._buckets.items()):
            if bucket.unused and bucket is not self.own:
                del self._buckets[name]

    def lacking(self) -> int:
        """Return how many requests need room because no sandbox is being created or reset for them."""
        return sum(bucket.lacking for bucket in self.counted())

    def neediest(self) -> Bucket | None:
        """Return the bucket whose request has waited longest for room, or None."""
        lacking = (each for each in self.counted() if each.lacking)
        return min(lacking, key=lambda each: each.requests[0].number, default=None)

    def least_of(self, bucket: Bucket) -> int:
        """Return the minimum number of sandboxes that a bucket keeps."""
        return self._least if bucket is self.own else 0

    def oldest(self) -> Bucket | None:
        """Return the least recently used bucket that may give up a ready sandbox, or None."""
        may = (each for each in self.counted() if each.ready and each.have > self.least_of(each))
        return min(may, key=lambda each: each.asked_at, default=None)

    def full(self) -> bool:
        """Return whether the pool keeps its maximum number of sandboxes."""
        return sum(each.have for each in self.counted()) >= self._most

    def may_grow(self, bucket: Bucket) -> bool:
        """Return whether a bucket may get another sandbox, possibly in place of one of another spec."""
        if not self.full():
            return True
        oldest = self.oldest()
        if oldest is None or oldest is bucket:
            return False
        return bucket.have < self.least_of(bucket) or oldest.asked_at < bucket.asked_before


def _key(spec: SandboxSpec, limiter: Limiter) -> tuple[object, ...]:
    """Return the bucket key: sandboxes with equal keys are interchangeable."""
    values = (getattr(spec, name) for name in _FIELDS)
    return limiter, *(
        tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values
    )
