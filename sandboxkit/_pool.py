"""The warm pool: started sandboxes that a session creates ahead of demand and keeps ready."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import Coroutine

import anyio

from sandboxkit._bucket import Bucket, Buckets, PoolRequest
from sandboxkit._lifecycle import Lifecycle, SessionContext
from sandboxkit._limiter import Release
from sandboxkit._states import State
from sandboxkit.errors import SandboxError, SandboxNotCleanError
from sandboxkit.provider import Provider
from sandboxkit.types import PoolStats, SandboxSpec

_TICK = 0.5
_AT_ONCE_HERE, _AT_ONCE_ELSEWHERE = 2, 8
"""How many sandboxes are created at a time in the background; fewer where this machine runs them."""
_BESIDE_OTHERS = 1
"""The limit that applies while callers' own creations are running."""
_AFTERWARDS = 0.05
"""Delay (s) before a taken sandbox is replaced, so that its taker goes first."""
_IDLE_SECONDS = 600.0
"""Time (s) without a start after which the pool drops the sandboxes of a spec."""
_CHECK_SECONDS = 5.0
_RESET_SECONDS = 40.0
"""Time limit (s) of a reset; after it the sandbox is replaced."""
_CLOSE_SECONDS = 10.0
_JOBS = 1000
_AGE = 3600.0
"""A sandbox is replaced after this many jobs, or at this age (s)."""
_RECENT = 20


class Pool:
    """At most `most` ready sandboxes; used on the background loop, except `stats`.

    They are ordinary sandboxes of the session, each with a `Lifecycle`, and count against its caps. The
    pool has a target for each spec: `most` for the session's own; for another spec, one more with
    each miss from the second start on. When `most` is reached, a spec replaces sandboxes of a spec
    whose last start is older than its own last two. After ten minutes without a start, the target
    of a spec is 0, or `least` for the session's own. Sandboxes are created in the background while
    no start waits for room, and fewer at a time while callers create their own.
    """

    def __init__(
        self, provider: Provider, context: SessionContext, own: SandboxSpec, bounds: tuple[int, int]
    ):
        self._provider, self._throttle, self._limiter = provider, context.throttle, context.limiter
        self._least, self.most = bounds
        self._at_once = _AT_ONCE_HERE if provider.on_this_machine else _AT_ONCE_ELSEWHERE
        # For lives inside the pool, which must not use the pool themselves.
        self._context = dataclasses.replace(context, pool=None)
        self._buckets = Buckets(context.limiter, own, bounds)
        self._seeking: anyio.CancelScope | None = None
        self._leaving = 0
        """How many sandboxes are being deleted, whose room will be free."""
        self._taken: dict[Lifecycle, Bucket] = {}
        """The bucket from which each life took a sandbox or room."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._opened = self._closed = False
        self._counts: Counter[str] = Counter()
        self._thrown: Counter[str] = Counter()
        self._recent: tuple[str, ...] = ()

    # Called by lives.

    @staticmethod
    def takes(spec: SandboxSpec) -> bool:
        """Return whether sandboxes of this spec can be pooled. A main command would run too early, and
        pooled detached sandboxes would survive if this process were killed."""
        return not spec.detach and spec.command is None

    async def take(self, life: Lifecycle) -> Lifecycle | Release:
        """Take a ready sandbox out of the pool, or get room to create one.

        It waits for a sandbox that is being created or reset if no other start waits for that one,
        because this is faster than a new creation. When cancelled, nothing is taken.
        """
        self.open()
        bucket = self._buckets.of(life.spec, life.context.limiter)
        bucket.ask()
        while True:
            request = self._request(bucket, life)
            how = "hits" if request.given.done() else "waits"
            found = await self._given(bucket, request)
            if not isinstance(found, Lifecycle):
                how = "misses"
                if bucket.spec.reuse == "reset" or bucket.asked > 1:
                    bucket.target = min(bucket.target + 1, self.most)
            elif not await self._fit(bucket, found, life):
                continue
            self._counts[how] += 1
            if self._refilling is None:
                self._refilling = asyncio.create_task(self._refill())
            return found

    async def room(self) -> Release:
        """Wait for room for a sandbox that is created outside the pool."""
        found = await self._given(
            self._buckets.unpooled, self._request(self._buckets.unpooled, None)
        )
        assert not isinstance(found, Lifecycle)
        return found

    def wants(self, life: Lifecycle) -> bool:
        """Return whether the pool takes the sandbox of a life that ends."""
        return life in self._taken and not self._closed

    def give_back(self, life: Lifecycle, *, idle: bool) -> bool:
        """Take over a sandbox to reset it; `idle` says that no call on it is in flight.

        Return False if the pool was closed meanwhile.
        """
        if not self.wants(life):
            return False
        bucket = self._taken[life]
        heir = Lifecycle(self._provider, bucket.spec, self._context, life.id)
        heir.inherit(life)
        heir.jobs += 1
        self._context.lives.add(heir)
        if not idle:
            self._throw(heir, "calls in flight did not end")
        elif heir.renewed < heir.made:
            self._throw(heir, "renewed by its user")
        elif heir.jobs >= _JOBS:
            self._throw(heir, f"{_JOBS} jobs")
        elif time.monotonic() > heir.made + _AGE:
            self._throw(heir, "old")
        else:
            bucket.resetting.add(heir)
            self._spawn(self._reset(bucket, heir))
        return True

    def left(self, life: Lifecycle) -> None:
        """Note that a life has ended and released its room."""
        self._no_longer_lent(life)
        self._fill()

    # Called by the session.

    def open(self) -> None:
        """Begin to fill the pool."""
        if not self._opened and not self._closed:
            self._opened = True
            self._buckets.own.ask()
            self._buckets.own.target = self.most
            self._keeper = asyncio.create_task(self._keep())

    async def warm(self, spec: SandboxSpec) -> None:
        """Create as many sandboxes of a spec as the caps allow. Raises the error of a failed creation."""
        self.open()
        bucket = self._buckets.of(spec, self._limiter)
        bucket.ask()
        bucket.ask()  # two requests give the spec precedence over others
        bucket.target, bucket.not_before = self.most, 0.0
        failed = bucket.error
        while not self._closed:
            self._fill()
            if bucket.error is not failed and bucket.error is not None:
                raise bucket.error
            lacking = bucket.have < bucket.target and self._buckets.may_grow(bucket)
            busy = any(each.coming for each in self._buckets.pooled())
            may_come = (
                busy or self._leaving or self._buckets.lacking() or not self._throttle.is_open
            )
            if not (bucket.coming or (lacking and may_come)):
                return
            await self._moved.wait()

    def close(self) -> None:
        """Stop filling and taking back; the session stops the sandboxes."""
        self._closed = True
        for task in (self._keeper, self._refilling):
            if task is not None:
                task.cancel()
        self._move()

    async def settle(self) -> None:
        """Wait for background tasks to end, after the session stopped their sandboxes."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)

    def stats(self) -> PoolStats:
        """Return the current numbers of sandboxes and the counters since the pool was opened."""
        buckets = self._buckets.pooled()
        counts = self._counts
        return PoolStats(
            ready=sum(len(bucket.ready) for bucket in buckets),
            making=sum(len(bucket.making) for bucket in buckets),
            resetting=sum(len(bucket.resetting) for bucket in buckets),
            taken=sum(bucket.lent for bucket in buckets),
            waiting=sum(len(bucket.requests) for bucket in (*buckets, self._buckets.unpooled)),
            hits=counts["hits"],
            waits=counts["waits"],
            misses=counts["misses"],
            made=counts["made"],
            reset=counts["reset"],
            paused_seconds=self._throttle.closed_for,
            thrown_away=dict(self._thrown),
            recent=self._recent,
        )

    # Handing out: a request gets a sandbox of its bucket or room, whichever is available first.

    def _request(self, bucket: Bucket, life: Lifecycle | None) -> PoolRequest:
        request = PoolRequest(life)
        bucket.requests.append(request)
        if bucket.ready:
            self._give(bucket, bucket.ready.pop())
        else:
            self._find_room()
        return request

    async def _given(self, bucket: Bucket, request: PoolRequest) -> Lifecycle | Release:
        try:
            return await request.given
        except BaseException:
            if request in bucket.requests:
                bucket.requests.remove(request)
                self._find_room()
            elif not request.given.cancelled() and request.given.exception() is None:
                self._take_back(bucket, request.life, request.given.result())
            raise

    def _give(self, bucket: Bucket, found: Lifecycle | Release) -> bool:
        """Give a sandbox or room to the first waiting request; return False if none waits."""
        while bucket.requests:
            request = bucket.requests.popleft()
            if not request.given.done():
                if request.life is not None:
                    self._taken[request.life] = bucket
                    bucket.lent += 1
                request.given.set_result(found)
                return True
        return False

    def _take_back(
        self, bucket: Bucket, taker: Lifecycle | None, found: Lifecycle | Release
    ) -> None:
        """Take back a sandbox or room from a start that was cancelled."""
        if taker is not None:
            self._no_longer_lent(taker)
        if isinstance(found, Lifecycle):
            self._put(bucket, found)
        else:
            found()

    def _no_longer_lent(self, taker: Lifecycle) -> None:
        bucket = self._taken.pop(taker, None)
        if bucket is not None:
            bucket.lent -= 1

    async def _fit(self, bucket: Bucket, life: Lifecycle, taker: Lifecycle | None = None) -> bool:
        """Check that a sandbox is alive and renew its lifetime; throw it away if that fails."""
        assert life.id is not None
        lifetime, now = life.spec.lifetime, time.monotonic()
        try:
            with anyio.fail_after(_CHECK_SECONDS):
                if life.state is not State.RUNNING or not await self._provider.ready(life.id):
                    self._throw(life, "dead")
                elif lifetime is not None and now - life.renewed > min(60.0, lifetime / 10):
                    await self._provider.renew(life.id, lifetime)
                    life.renewed = now
        except (SandboxError, TimeoutError) as error:
            self._throw(life, "its check failed", error)
        except BaseException:
            self._take_back(bucket, taker, life)
            raise
        if life.stopped and taker is not None:
            self._no_longer_lent(taker)
        return not life.stopped

    def _give_room(self, leave: Release) -> None:
        bucket = self._buckets.neediest()
        if bucket is None or not self._give(bucket, leave):
            leave()

    def _find_room(self) -> None:
        """Give free room to waiting requests; if it is short, wait for more and evict idle sandboxes."""
        for bucket in self._buckets.uncounted():
            while bucket.lacking and (leave := bucket.limiter.acquire_now()) is not None:
                self._give(bucket, leave)  # there is no cap, so there always is room
        try:
            while self._buckets.lacking() and (leave := self._limiter.acquire_now()) is not None:
                self._give_room(leave)
        except SandboxError as error:
            self._fail(error)
        short = self._buckets.lacking()
        if not short and self._seeking is not None:
            self._seeking.cancel()
            self._seeking = None
        elif short and self._seeking is None:
            self._seeking = anyio.CancelScope()
            self._spawn(self._seek(self._seeking))
        self._make_room(short - self._leaving)

    async def _seek(self, scope: anyio.CancelScope) -> None:
        """Acquire room for waiting requests until none is left; only one such task runs."""
        with scope:
            try:
                while self._buckets.lacking():
                    leave = await self._limiter.acquire()
                    self._give_room(leave)
            except SandboxError as error:
                self._fail(error)
        if self._seeking is scope:
            self._seeking = None

    def _fail(self, error: SandboxError) -> None:
        for bucket in self._buckets.counted():
            while bucket.lacking:  # the others wait for a sandbox that is coming
                request = bucket.requests.pop()
                if not request.given.done():
                    request.given.set_exception(error)

    def _make_room(self, short: int) -> None:
        """Throw away up to `short` unclaimed sandboxes, least recently used specs first."""
        if short <= 0:
            return
        for bucket in sorted(self._buckets.counted(), key=lambda each: each.asked_at):
            spare = max(0, bucket.coming - len(bucket.requests))
            making = [life for life in bucket.making if not life.stopped][:spare]
            idle = [bucket.ready.popleft() for _ in range(min(short, len(bucket.ready)))]
            for life in (*idle, *making)[:short]:
                self._throw(life, "room for another")
                short -= 1

    def _put(self, bucket: Bucket, life: Lifecycle) -> None:
        """Give a sandbox to a waiting request; otherwise keep it ready or throw it away."""
        self._move()
        if self._give(bucket, life):
            return
        if self._closed:
            life.stop()
        elif bucket.limiter is self._limiter and self._buckets.lacking() > self._leaving:
            self._throw(life, "room for another")
        else:
            bucket.ready.append(life)
            if sum(len(each.ready) for each in self._buckets.pooled()) > self.most:
                self._throw(
                    (self._buckets.oldest() or bucket).ready.popleft(),
                    f"more than pool={self.most}",
                )

    # Making, keeping and throwing away.

    def _fill(self) -> None:
        """Create missing sandboxes, most recently used specs first."""
        if (
            self._closed
            or not self._opened
            or self._buckets.lacking()
            or not self._throttle.is_open
        ):
            return
        now = time.monotonic()
        short = [each for each in self._buckets.counted() if each.have < each.target]
        for bucket in sorted(short, key=lambda each: -each.asked_at):
            while bucket.have < bucket.target and now >= bucket.not_before:
                making = sum(len(each.making) for each in self._buckets.pooled())
                others = self._throttle.running > making
                if making >= (_BESIDE_OTHERS if others else self._at_once):
                    return
                if not self._buckets.may_grow(bucket):
                    break
                try:
                    leave = (
                        None
                        if self._buckets.full() or self._limiter.wanted
                        else self._limiter.acquire_now()
                    )
                except SandboxError as error:
                    bucket.failed(error)  # a start that needs room raises it
                    return
                if leave is None:
                    oldest = self._buckets.oldest()
                    if oldest not in (None, bucket) and not self._leaving:
                        self._throw(oldest.ready.popleft(), "not wanted lately")
                    return
                life = Lifecycle(self._provider, bucket.spec, self._context)
                bucket.making.add(life)
                self._spawn(self._make(bucket, life, leave))

    async def _refill(self) -> None:
        await anyio.sleep(_AFTERWARDS)
        self._refilling = None
        self._fill()

    async def _make(self, bucket: Bucket, life: Lifecycle, leave: Release) -> None:
        await life.take_room(leave)
        try:
            await life.started()
        except Exception as error:  # noqa: BLE001 - a start that needs a sandbox now creates its own
            if not life.stopped:
                failure = error if isinstance(error, SandboxError) else SandboxError(repr(error))
                bucket.failed(failure)
                self._note("could not be made", failure)
        bucket.making.discard(life)
        if life.id is None or life.stopped:
            life.stop()  # the failed start may have left something
            self._find_room()
        else:
            self._counts["made"] += 1
            bucket.succeeded()
            self._put(bucket, life)
        self._move()
        self._fill()

    async def _reset(self, bucket: Bucket, life: Lifecycle) -> None:
        assert life.id is not None
        try:
            with anyio.fail_after(_RESET_SECONDS):
                await self._provider.reset(life.id)
        except Exception as error:  # noqa: BLE001 - after any error the sandbox is not proven clean
            self._throw(
                life, "not clean" if isinstance(error, SandboxNotCleanError) else "no reset", error
            )
        bucket.resetting.discard(life)
        if life.stopped:
            self._find_room()
        else:
            self._counts["reset"] += 1
            self._put(bucket, life)
        self._fill()

    async def _renew(self, bucket: Bucket, life: Lifecycle) -> None:
        fit = await self._fit(bucket, life)
        bucket.resetting.discard(life)
        if fit:
            self._put(bucket, life)
        else:
            self._find_room()

    def _throw(self, life: Lifecycle, why: str, error: BaseException | None = None) -> None:
        if self._closed or life.stopped:
            life.stop()
            return
        self._thrown[why] += 1
        self._note(f"{life.id or 'a starting sandbox'} thrown away: {why}", error)
        stopping = life.stop()
        assert stopping is not None
        self._leaving += 1
        self._spawn(self._thrown_away(stopping))

    async def _thrown_away(self, stopping: asyncio.Task[None]) -> None:
        await asyncio.wait([stopping])
        self._leaving -= 1
        self._find_room()
        self._move()
        self._fill()

    async def _keep(self) -> None:
        while True:
            self._look()
            self._fill()
            self._move()
            await anyio.sleep(_TICK)

    def _look(self) -> None:
        """Throw away unwanted and old sandboxes, and renew those past half their lifetime."""
        now = time.monotonic()
        for bucket in self._buckets.pooled():
            if now > bucket.asked_at + _IDLE_SECONDS:
                bucket.target = self._buckets.least_of(bucket)
                while len(bucket.ready) > bucket.target:
                    self._throw(bucket.ready.popleft(), "not wanted lately")
            lifetime = bucket.spec.lifetime
            for life in tuple(bucket.ready):
                if now > life.made + _AGE:
                    bucket.ready.remove(life)
                    self._throw(life, "old")
                elif lifetime is not None and now > life.renewed + lifetime / 2:
                    bucket.ready.remove(life)
                    bucket.resetting.add(life)  # counts as coming meanwhile
                    self._spawn(self._renew(bucket, life))
        self._buckets.drop_unused()
        idle = next((each for each in self._buckets.counted() if each.ready), None)
        if idle is not None and self._limiter.wanted:
            self._throw(idle.ready.popleft(), "room for another session")

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note(self, what: str, error: BaseException | None) -> None:
        detail = "" if error is None else f" ({type(error).__name__}: {error})"
        line = f"{time.strftime('%H:%M:%S')} {what}{detail}"
        self._recent = (*self._recent, line)[-_RECENT:]

    def _move(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()
