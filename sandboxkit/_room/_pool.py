"""The room of a session's sandboxes, and the warm pool: sandboxes that are created ahead of demand.

`PoolState` decides which start gets a sandbox or room, and which sandbox is evicted or created; `Pool` does it.
"""

import asyncio
import dataclasses
import itertools
import random
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import NamedTuple

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._lifecycle import Lifecycle, SessionContext
from sandboxkit._room._limiter import Limiter, Release
from sandboxkit._room._throttle import AdmissionThrottle
from sandboxkit.errors import ConfigurationError, SandboxNotCleanError, SandboxNotFoundError
from sandboxkit.provider import Provider
from sandboxkit.types import PoolStats, SandboxSpec

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


_TICK = 0.5
_POLL_SECONDS = 0.01, 0.05
"""Range of the random poll interval; randomness gives each process a fair chance at a free place."""
_RANDOM = random.SystemRandom()  # processes that were forked must not poll in step
_AT_ONCE_HERE, _AT_ONCE_ELSEWHERE = 2, 8
"""How many sandboxes are created at a time in the background; fewer where this machine runs them."""
_AFTERWARDS = 0.05
"""Delay (s) before a taken sandbox is replaced, so that its taker goes first."""
_SECONDS = {Preparation.RESET: 40.0, Preparation.CHECKED: 5.0}
"""Time limit (s) of a reset and of a check; after it the sandbox is replaced."""
_REASONS: dict[type[Exception], str] = {
    SandboxNotCleanError: "not clean",
    SandboxNotFoundError: "dead",
}
pools: "weakref.WeakSet[Pool]" = weakref.WeakSet()
"""The pools of this process's sessions."""
_CLOSE_SECONDS = 10.0
_RECENT = 20


def poolable(spec: SandboxSpec) -> bool:
    """Return whether sandboxes of this spec can be pooled. A spec with a main command cannot, because
    the command would run too early; a detached one cannot, because it would outlive a killed process."""
    return not spec.detach and spec.command is None


class Pool:
    """Gives each start a ready sandbox, or room under the caps; background loop only, except `stats`.

    The pool keeps at most `most` sandboxes ready; 0 means no warm pool. They are ordinary sandboxes of
    the session, each with a `Lifecycle`, and count against its caps. Each spec has a target size: `most`
    for the session's own spec; for any other spec, it grows by one with each miss from the second start
    on. When `most` or a cap is reached, a spec may replace a sandbox of another spec whose last start
    is older than its own last two starts. After ten minutes without a start, the target drops to 0, or
    to `least` for the session's own spec. Background creation pauses while a start waits for room, and
    slows down while callers create sandboxes. `PoolState` decides; `balance`, called after every event,
    carries out the decisions.
    """

    def __init__(
        self,
        provider: Provider,
        context: SessionContext,
        limiter: Limiter,
        own: SandboxSpec,
        bounds: tuple[int, int] = (0, 0),
    ):
        self._provider, self._context = provider, context
        self._limiters = {True: limiter, False: Limiter()}
        self.most = bounds[1]
        at_once = _AT_ONCE_HERE if provider.on_this_machine else _AT_ONCE_ELSEWHERE
        self._state = PoolState(own, bounds, at_once, context.throttle)
        self._taken: dict[Lifecycle, Bucket] = {}
        """The bucket from which each lifecycle took a sandbox or room."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._poll: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        self._closed = False
        pools.add(self)
        self._counts: Counter[str] = Counter()
        self._thrown: Counter[str] = Counter()
        self._recent: tuple[str, ...] = ()

    async def take(self, life: Lifecycle) -> Lifecycle | Release:
        """Take a ready sandbox out of the pool, or get room to create one.

        If a sandbox is being created or reset and no other start waits for it, this call waits for it,
        because that is faster than a new creation. A `life` whose sandbox exists already only gets room.
        A cancelled call takes nothing.
        """
        self.open()
        pooled = self.most > 0 and life.pooled and life.box is None and poolable(life.spec)
        bucket = self._state.of(life.spec if pooled else None, counted=life.context.counted)
        bucket.record_use(time.monotonic())
        while True:
            request = PoolRequest(life)
            bucket.requests.append(request)
            try:
                self.balance(fill=False)
                how = "hits" if request.given.done() else "waits"
                found = await request.given
                if not isinstance(found, Lifecycle):
                    how = "misses"
                    break
                if await self._succeeds(bucket, found, Preparation.CHECKED):
                    break
            except BaseException:
                self._take_back(bucket, request)
                raise
            self.left(life)
        if pooled:
            again = bucket.spec.reuse == "reset" or bucket.used_before > 0
            if how == "misses" and again:
                bucket.target = min(bucket.target + 1, self.most)
            self._counts[how] += 1
            asyncio.get_running_loop().call_later(_AFTERWARDS, self.balance)
        return found

    async def give_back(self, life: Lifecycle) -> bool:
        """Take back the sandbox of a lifecycle that ends: end its calls and reset it for the next job.

        Return False if the sandbox may not be reused; the caller must then delete it.
        """
        bucket = self._taken.get(life)
        if bucket is None or bucket.spec.reuse == "never" or self._closed:
            return False
        idle = await life.end_calls()
        if self._closed:
            return False
        heir = Lifecycle(self._provider, bucket.spec, life.context, life.box)
        heir.inherit(life)
        heir.jobs += 1
        why = worn(heir, time.monotonic()) if idle else "calls in flight did not end"
        if why:
            self._evict(bucket, heir, why)
        else:
            self._begin(bucket, heir, Preparation.RESET)
        return True

    def left(self, life: Lifecycle) -> None:
        """Record that a lifecycle has neither a sandbox nor room any more."""
        bucket = self._taken.pop(life, None)
        if bucket is not None:
            bucket.lent -= 1
        self.balance()

    def open(self) -> None:
        """Begin to fill the pool."""
        if self._keeper is None and not self._closed and self.most:
            self._state.own.record_use(time.monotonic())
            self._state.own.target = self.most
            self._keeper = asyncio.create_task(self._keep())

    async def warm(self, spec: SandboxSpec) -> None:
        """Fill the pool with sandboxes of a spec, as far as the caps allow, and wait until they are ready.

        Raises the error of a failed creation.
        """
        self.open()
        bucket, now = self._state.of(spec, counted=True), time.monotonic()
        bucket.record_use(now)
        bucket.record_use(now)  # two uses give the spec precedence over others
        bucket.target, bucket.not_before, bucket.error = self.most, 0.0, None
        self.balance()
        while self._state.may_come(bucket) and not self._closed:
            self._moved.clear()
            await self._moved.wait()
            if bucket.error is not None:
                raise bucket.error

    def forget(self, snapshot: str) -> None:
        """Stop the pooled sandboxes that started from a snapshot, except those of the session's own spec."""
        for bucket in self._state.all():
            if bucket.spec.snapshot == snapshot and bucket is not self._state.own:
                bucket.target = 0
                for life in (*bucket.ready, *bucket.coming):
                    self._evict(bucket, life, "its snapshot is deleted")

    def close(self) -> None:
        """Stop creating and taking back sandboxes; the session stops those that exist."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
        self.balance()

    async def settle(self) -> None:
        """Wait for background tasks to end, after the session stopped their sandboxes."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)

    def stats(self) -> PoolStats:
        """Return the current numbers of sandboxes and the counters since the pool was opened."""
        buckets = self._state.all()
        making = sum(bucket.making for bucket in buckets)
        counts = ("hits", "waits", "misses", "made", "reset")
        return PoolStats(
            ready=sum(len(bucket.ready) for bucket in buckets),
            making=making,
            resetting=sum(len(bucket.coming) for bucket in buckets) - making,
            taken=sum(bucket.lent for bucket in buckets if bucket.pooled),
            waiting=sum(len(bucket.requests) for bucket in buckets),
            paused_seconds=self._context.throttle.closed_for,
            thrown_away=dict(self._thrown),
            recent=self._recent,
            **{name: self._counts[name] for name in counts},
        )

    def balance(self, *, fill: bool = True) -> None:
        """Carry out all steps that the state requires now; with `fill`, also create missing sandboxes."""
        limiter, state = self._limiters[True], self._state
        state.room = self._poll is None
        fill = fill and self._keeper is not None and not self._closed and not limiter.wanted()
        self._do(state.balance(time.monotonic(), fill=fill))
        shared = limiter.places is not None and limiter.wait(state.lacking > 0)
        if shared and self._poll is None:
            pause = _RANDOM.uniform(*_POLL_SECONDS)
            self._poll = asyncio.get_running_loop().call_later(pause, self._polled)
        self._moved.set()

    def _polled(self) -> None:
        self._poll = None
        self.balance()

    async def _keep(self) -> None:
        while True:
            wanted = self._limiters[True].wanted()
            self._do(self._state.aged(time.monotonic(), wanted=wanted))
            self.balance()
            await anyio.sleep(_TICK)

    def _do(self, steps: Iterable[PoolStep]) -> None:
        for do, bucket, life, why in steps:
            if do is Do.SERVE:
                self._serve(bucket)
            elif life is None:
                self._create(bucket)
            elif do is Do.CHECK:
                self._begin(bucket, life, Preparation.CHECKED)
            else:
                self._evict(bucket, life, why)

    def _serve(self, bucket: Bucket) -> None:
        request = bucket.requests[0]
        if not request.given.done():  # otherwise its start was cancelled
            found = bucket.ready.popitem()[0] if bucket.ready else self._room(bucket)
            if found is None:
                return
            self._taken[request.life] = bucket
            bucket.lent += 1
            request.given.set_result(found)
        bucket.requests.popleft()

    def _room(self, bucket: Bucket) -> Release | None:
        leave = self._limiters[bucket.counted].acquire()
        if leave is None:
            self._state.room = False
        return leave

    def _create(self, bucket: Bucket) -> None:
        if (leave := self._room(bucket)) is not None:
            life = Lifecycle(self._provider, bucket.spec, self._context)
            life.room = leave
            self._begin(bucket, life, Preparation.MADE)

    def _begin(self, bucket: Bucket, life: Lifecycle, how: Preparation) -> None:
        """Create, reset or check a sandbox in the background; then mark it ready, or evict it."""

        async def work() -> None:
            ready = await self._succeeds(bucket, life, how)
            bucket.coming.pop(life, None)
            if ready:
                self._counts[how.name.lower()] += 1
                bucket.ready[life] = None
            self.balance()

        bucket.ready.pop(life, None)
        bucket.coming[life] = how
        task = asyncio.create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _succeeds(self, bucket: Bucket, life: Lifecycle, how: Preparation) -> bool:
        """Create, reset or check a sandbox, and return whether it can be used; otherwise evict it."""
        failure: Exception | None = None
        try:
            if how is Preparation.MADE:
                await life.started()
            else:
                with anyio.fail_after(_SECONDS[how]):
                    await (life.reset() if how is Preparation.RESET else life.check())
        except Exception as error:  # noqa: BLE001 - after any error another sandbox takes its place
            failure = error
        if life.stopped:
            return False
        if how is Preparation.MADE:
            bucket.made(failure, time.monotonic())
        if failure is not None:
            self._evict(bucket, life, _REASONS.get(type(failure), how.value), failure)
        return failure is None

    def _take_back(self, bucket: Bucket, request: PoolRequest) -> None:
        """Undo a cancelled start: remove its request, or return the sandbox or place that it got to the pool."""
        if request in bucket.requests:
            bucket.requests.remove(request)
        elif not request.given.cancelled():
            found = request.given.result()
            if not isinstance(found, Lifecycle):
                found()
            elif not found.stopped:
                bucket.ready[found] = None
        self.left(request.life)

    def _evict(
        self, bucket: Bucket, life: Lifecycle, why: str, error: BaseException | None = None
    ) -> None:
        bucket.ready.pop(life, None)
        bucket.coming.pop(life, None)
        if life.stopped or (stopping := life.stop()) is None or self._closed:
            return
        self._thrown[why] += 1
        detail = "" if error is None else f" ({type(error).__name__}: {error})"
        line = f"{time.strftime('%H:%M:%S')} {life.id or 'a sandbox'} thrown away: {why}{detail}"
        self._recent = (*self._recent, line)[-_RECENT:]
        self._state.leaving += 1
        stopping.add_done_callback(self._gone)

    def _gone(self, _: asyncio.Task[None]) -> None:
        self._state.leaving -= 1
        self.balance()


def bounds(
    pool: int | tuple[int, int], max_concurrency: int | None, spec: SandboxSpec
) -> tuple[int, int]:
    """Return the option `pool` as (least, most) ready sandboxes.

    Raises ConfigurationError for a bad value, and for a spec whose sandboxes cannot be pooled.
    """
    name = "pool"
    least, most = pool if isinstance(pool, tuple) and len(pool) == 2 else (0, pool)
    is_least = isinstance(least, int) and not isinstance(least, bool) and least >= 0
    if not is_least or not isinstance(most, int) or _arguments.integer(name, most) < least:
        _arguments.refuse(name, pool, "a number, or a tuple (least, most)")
    if max_concurrency is not None and most > max_concurrency:
        raise ConfigurationError(
            f"pool={pool!r} with max_concurrency={max_concurrency}: sandboxes in the pool count towards "
            "max_concurrency; raise it to the pool's size"
        )
    if not poolable(spec):
        raise ConfigurationError(
            f"pool={pool!r} cannot be combined with detach=True or a command among the session's options; "
            "give these to sandbox()"
        )
    return least, most
