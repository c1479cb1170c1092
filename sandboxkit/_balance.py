"""The pool's decisions: which start gets a sandbox or room, and which sandbox is evicted or created."""

import asyncio
import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import NamedTuple

from sandboxkit._lifecycle import Lifecycle
from sandboxkit._limiter import Release
from sandboxkit._throttle import AdmissionThrottle
from sandboxkit.types import SandboxSpec

_CAREFULLY = 1
"""How many sandboxes are created at a time in the background while callers create their own, and after
a failure until one succeeds."""
_IDLE_SECONDS = 600.0
"""Time (s) without a start after which the pool drops the sandboxes of a spec."""
_JOBS = 1000
_AGE = 3600.0
"""A sandbox is replaced after this many jobs, or at this age (s)."""
_PAUSE = 5.0
"""Pause (s) after a failed background creation: the pool is full again soon after a fault has gone."""
_APART = ("files", "start_timeout", "egress")
"""The options of a spec that are applied when a sandbox is handed out."""
_FIELDS = [each.name for each in dataclasses.fields(SandboxSpec) if each.name not in _APART]
_numbers = itertools.count()


class PoolRequest:
    """A start that waits for a pooled sandbox, or for room to create its own."""

    def __init__(self, life: Lifecycle) -> None:
        self.life, self.number = life, next(_numbers)
        self.given: asyncio.Future[Lifecycle | Release] = asyncio.get_running_loop().create_future()


class Preparation(Enum):
    """A step that makes a pooled sandbox ready. If it fails, its value is the reason for the eviction."""

    MADE = "could not be made"
    RESET = "no reset"
    CHECKED = "its check failed"


class Bucket:
    """The pool's sandboxes of one spec, and the starts that wait for one or for room."""

    def __init__(self, spec: SandboxSpec | None, counted: bool) -> None:
        """`spec` is None for starts that only need room, because their sandboxes are not pooled.
        `counted`: the sandboxes count towards the session's caps."""
        self.pooled, self.counted = spec is not None, counted
        self.source: SandboxSpec | None = None
        """The spec that was last looked up and found this bucket: finds it again without a comparison."""
        self.spec = dataclasses.replace(
            spec or SandboxSpec(), files={}, start_timeout=None, egress=None
        )
        self.target = 0
        """How many sandboxes of this spec the pool keeps."""
        self.ready: dict[Lifecycle, None] = {}  # in the order in which they got ready
        self.coming: dict[Lifecycle, Preparation] = {}
        self.lent = 0
        """How many sandboxes callers hold, or create in room that this bucket gave them."""
        self.requests: deque[PoolRequest] = deque()
        self.used_at = self.used_before = float("-inf")
        """The times of the last two starts with this spec, the last one first (monotonic seconds)."""
        self.error: Exception | None = None
        """The error of the newest background creation, if it failed."""
        self.not_before = 0.0
        """When the next background creation may begin (monotonic seconds)."""

    @property
    def making(self) -> int:
        """How many sandboxes are being created in the background."""
        return list(self.coming.values()).count(Preparation.MADE)

    @property
    def have(self) -> int:
        """How many sandboxes can be handed out, now or later."""
        back = self.lent if self.spec.reuse == "reset" else 0
        return len(self.ready) + len(self.coming) + back

    @property
    def lacking(self) -> int:
        """How many requests need room because no sandbox is being created or reset for them."""
        return max(0, len(self.requests) - len(self.coming))

    def record_use(self, now: float) -> None:
        """Record a start with this spec at the time `now` (monotonic seconds)."""
        self.used_before, self.used_at = self.used_at, now

    def made(self, error: Exception | None, now: float) -> None:
        """Record how a background creation ended; after an error, delay the next one."""
        self.error = error
        self.not_before = now + _PAUSE if error else 0.0


class Do(Enum):
    """The kinds of pool steps; the values describe them."""

    SERVE = "give the first request the newest ready sandbox, or else room under the caps"
    CREATE = "acquire room under the caps and create a sandbox in it"
    CHECK = "check a ready sandbox and renew its lifetime"
    EVICT = "delete a sandbox that no caller uses"


class PoolStep(NamedTuple):
    """One step in a bucket. `life` is the sandbox to check or evict, and `why` the reason."""

    do: Do
    bucket: Bucket
    life: Lifecycle | None = None
    why: str = ""


class PoolState:
    """The buckets of a session, and the decisions about them; used on the background loop only.

    `balance` and `aged` only decide. The caller does each step before it asks for the next one, which
    is decided on the new state.
    """

    def __init__(
        self, own: SandboxSpec, bounds: tuple[int, int], at_once: int, throttle: AdmissionThrottle
    ) -> None:
        """`own` is the session's spec. `bounds` are the minimum of pooled sandboxes of this spec and
        the maximum over all specs. `at_once` caps concurrent background creations."""
        self._least, self.most = bounds
        self._at_once, self._throttle = at_once, throttle
        self._buckets: dict[tuple[object, ...], Bucket] = {}
        self.own = self.of(own, counted=True)
        self.leaving = 0
        """How many evicted sandboxes are being deleted; each will free its room."""
        self.room = True
        """Whether the caps may have room. A step that finds none sets it to False."""

    def of(self, spec: SandboxSpec | None, *, counted: bool) -> Bucket:
        """Return the bucket for a spec, or for starts that only need room; create it if needed."""
        for each in self._buckets.values():
            if spec is not None and each.source is spec and each.counted == counted:
                return each
        values = () if spec is None else (getattr(spec, name) for name in _FIELDS)
        plain = (tuple(sorted(v.items())) if isinstance(v, Mapping) else v for v in values)
        key = (counted, *plain)  # sandboxes with equal keys are interchangeable
        bucket = self._buckets.get(key) or self._buckets.setdefault(key, Bucket(spec, counted))
        if spec is not None and not spec.files:  # they could be large
            bucket.source = spec
        return bucket

    def all(self) -> list[Bucket]:
        """Return all buckets."""
        return list(self._buckets.values())

    @property
    def lacking(self) -> int:
        """How many requests need room under the caps."""
        return sum(
            each.lacking for each in self._buckets.values() if each.requests and each.counted
        )

    def balance(self, now: float, *, fill: bool) -> Iterator[PoolStep]:
        """Serve requests, make room for those that wait, and create missing sandboxes if `fill`."""
        buckets = self.all()
        if any(each.requests for each in buckets):
            yield from self._serve(buckets)
        while sum([len(each.ready) for each in buckets]) > self.most and (most := self._oldest()):
            yield _evict(most, f"more than pool={self.most}")
        if fill and not self.lacking and self._throttle.is_open:
            yield from self._fill(now)

    def aged(self, now: float, *, wanted: bool) -> Iterator[PoolStep]:
        """Evict unwanted and old sandboxes, and check those past half their lifetime.

        `wanted`: another session waits for room that this session could free.
        """
        ready = [each for each in self._buckets.values() if each.counted and each.ready]
        if wanted and ready:  # before a check of that sandbox makes it busy
            yield _evict(ready[0], "room for another session")
        for key, bucket in tuple(self._buckets.items()):
            idle, lifetime = now > bucket.used_at + _IDLE_SECONDS, bucket.spec.lifetime
            if idle:
                bucket.target = self._least_of(bucket)
            for life in tuple(bucket.ready):
                if idle and len(bucket.ready) > bucket.target:
                    yield PoolStep(Do.EVICT, bucket, life, "not wanted lately")
                elif why := worn(life, now):
                    yield PoolStep(Do.EVICT, bucket, life, why)
                elif lifetime is not None and now > life.renewed + lifetime / 2:
                    yield PoolStep(Do.CHECK, bucket, life)
            used = bucket.target or bucket.have or bucket.lent or bucket.requests
            if not used and bucket is not self.own and now > bucket.not_before:
                del self._buckets[key]

    def may_come(self, bucket: Bucket) -> bool:
        """Return whether a bucket can still get more sandboxes, now or after the steps in progress."""
        busy = self.leaving or self.lacking or any(each.coming for each in self.all())
        short = bucket.have < bucket.target and (not self._full() or self._replaceable(bucket))
        return bool(bucket.coming or (short and (busy or not self._throttle.is_open)))

    def _serve(self, buckets: list[Bucket]) -> Iterator[PoolStep]:
        """Give sandboxes and room to requests in order of arrival; then make room for the rest."""
        for bucket in buckets:
            while bucket.requests and (bucket.ready or (bucket.lacking and not bucket.counted)):
                yield PoolStep(Do.SERVE, bucket)
        while self.room and (short := [each for each in buckets if each.counted and each.lacking]):
            yield PoolStep(Do.SERVE, min(short, key=lambda each: each.requests[0].number))
        if self.lacking > self.leaving:
            yield from self._make_room()

    def _make_room(self) -> Iterator[PoolStep]:
        """Evict sandboxes that no request waits for, starting with the least recently used specs."""
        spare = [each for each in self.all() if each.counted and (each.ready or each.coming)]
        for bucket in sorted(spare, key=lambda each: each.used_at):
            making = [life for life, why in bucket.coming.items() if why is Preparation.MADE]
            unclaimed = max(0, len(bucket.coming) - len(bucket.requests))
            for life in (*bucket.ready, *making[:unclaimed]):
                if self.lacking <= self.leaving:
                    return
                yield PoolStep(Do.EVICT, bucket, life, "room for another")

    def _fill(self, now: float) -> Iterator[PoolStep]:
        """Create missing sandboxes, starting with the most recently used specs."""
        short = [each for each in self.all() if each.counted and each.have < each.target]
        for bucket in sorted(short, key=lambda each: -each.used_at):
            while bucket.have < bucket.target and now >= bucket.not_before:
                making = sum(each.making for each in self.all())
                careful = bucket.error is not None or self._throttle.running > making
                if making >= (_CAREFULLY if careful else self._at_once):
                    return
                if self.room and not self._full():
                    yield PoolStep(Do.CREATE, bucket)
                    continue
                oldest = self._replaceable(bucket)
                if oldest is None:
                    break
                if not self.leaving:
                    yield _evict(oldest, "not wanted lately")
                return

    def _full(self) -> bool:
        return sum(each.have for each in self._buckets.values()) >= self.most

    def _least_of(self, bucket: Bucket) -> int:
        return self._least if bucket is self.own else 0

    def _oldest(self) -> Bucket | None:
        """Return the least recently used bucket that may give up a ready sandbox, or None."""
        may = [each for each in self.all() if each.ready and each.have > self._least_of(each)]
        return min(may, key=lambda each: each.used_at, default=None)

    def _replaceable(self, bucket: Bucket) -> Bucket | None:
        """Return the bucket that gives up a ready sandbox so that `bucket` gets another one, or None."""
        oldest = self._oldest()
        if oldest is None or oldest is bucket:
            return None
        lower = oldest.used_at < bucket.used_before or bucket.have < self._least_of(bucket)
        return oldest if lower else None


def _evict(bucket: Bucket, why: str) -> PoolStep:
    return PoolStep(Do.EVICT, bucket, next(iter(bucket.ready)), why)


def worn(life: Lifecycle, now: float) -> str:
    """Return why a sandbox must be replaced, or "" if it can serve further jobs."""
    if life.renewed < life.made:
        return "renewed by its user"  # its end is unknown
    if life.jobs >= _JOBS:
        return f"{_JOBS} jobs"
    return "old" if now > life.made + _AGE else ""
