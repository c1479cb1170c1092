"""The pool: started sandboxes that a session keeps ready, made before they are asked for."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Coroutine, Iterator

import anyio

from sandboxkit._life import Home, Life
from sandboxkit._line import Line
from sandboxkit._shelf import Shelf, key
from sandboxkit._slots import Leave
from sandboxkit.errors import SandboxError, SandboxNotCleanError
from sandboxkit.provider import Provider
from sandboxkit.types import PoolStats, SandboxSpec

_TICK = 0.5
_AT_ONCE_HERE, _AT_ONCE_ELSEWHERE = 2, 8
"""How many are made at a time in the background: this machine's processors are few."""
_BESIDE_OTHERS = 1
"""The same while somebody waits for a creation."""
_AFTERWARDS = 0.05
"""Seconds after which one that was taken is replaced, or when it has ended: who took it goes first."""
_CHECK_SECONDS = 5.0
_RESET_SECONDS = 40.0
"""After which a sandbox is replaced sooner than reset."""
_CLOSE_SECONDS = 10.0
_RETRY_SECONDS = 10.0
_JOBS = 1000
_AGE = 3600.0
"""After so many jobs, or seconds, a sandbox is replaced."""
_RECENT = 20


class Pool:
    """Ready sandboxes, at most `most` in all; used on the background loop, but for `stats`.

    They are ordinary sandboxes of the session, each with a `Life` and a place under its caps. As
    many are kept of a spec as were wanted of it lately, `least` of the session's own. They are
    made in the background, while nobody waits for room, and few at a time while others are
    created. Where somebody waits for room, one that he cannot use is given up.
    """

    def __init__(self, provider: Provider, home: Home, own: SandboxSpec, bounds: tuple[int, int]):
        self._provider, self._gate = provider, home.gate
        self._least, self.most = bounds
        # Of those in the pool: none of them starts or ends with it.
        self._home = Home(home.slots, home.gate, None, home.lives, home.begins, home.mark)
        self._shelves: dict[tuple[object, ...], Shelf] = {}
        self._own = self._shelf(own, home)
        self._line = Line(home.slots, self._put_back)
        self._leaving = 0
        """How many are being deleted whose room will be free."""
        self._stuck: set[Life] = set()
        """Those that could not be deleted yet."""
        self._retry_at = 0.0
        self._taken: dict[Life, Shelf] = {}
        """By those who took one, or the room for one."""
        self._foreground = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._refilling: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._opened = self._closed = False
        self._counts: Counter[str] = Counter()
        self._thrown: Counter[str] = Counter()
        self._recent: tuple[str, ...] = ()

    # What a life asks of it.

    @staticmethod
    def takes(spec: SandboxSpec) -> bool:
        """Whether such sandboxes can be kept. A command would run before anybody is there, and what
        is detached would be left if this process were killed."""
        return not spec.detach and spec.command is None

    async def take(self, life: Life) -> Life | Leave:
        """A ready sandbox, which is no longer the pool's, or room to make one.

        One that is being made or reset is waited for, where nobody else waits for it: that is
        sooner than another. Cancelled: nothing is taken.
        """
        self.open()
        shelf = self._shelf(life.spec, life.home)
        shelf.ask()
        made_in_vain = False
        while True:
            how = "hits"
            found: Life | Leave | None
            if shelf.ready:
                found = shelf.ready.pop()
                shelf.lent += 1
            elif not made_in_vain and len(shelf.claims) < shelf.coming:
                how = "waits"
                found = await self._claimed(shelf)
                made_in_vain = found is None
            else:
                found = shelf.slots.acquire_now() or await self._line.wait(shelf, self._make_room)
                if not isinstance(found, Life):
                    shelf.lent += 1
            if isinstance(found, Life) and not await self._fit(shelf, found):
                found = None
                shelf.lent -= 1
            if found is not None:
                self._counts[how if isinstance(found, Life) else "misses"] += 1
                self._taken[life] = shelf
                if self._refilling is None:
                    self._refilling = asyncio.create_task(self._refill())
                return found

    async def room(self) -> Leave:
        """Room for a sandbox that is made elsewhere."""
        found = self._home.slots.acquire_now() or await self._line.wait(None, self._make_room)
        assert not isinstance(found, Life)
        return found

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """While a creation that somebody waits for is under way."""
        self._foreground += 1
        try:
            yield
        finally:
            self._foreground -= 1
            self._fill()

    def wants(self, life: Life) -> bool:
        """Whether the sandbox of a life that ends is to be left to the pool."""
        return life in self._taken and not self._closed

    def give_back(self, life: Life, *, idle: bool) -> bool:
        """Take over a sandbox, to reset it; `idle` says that none of its calls is in flight.

        False where the pool was closed meanwhile.
        """
        if not self.wants(life):
            return False
        shelf = self._taken[life]
        heir = Life(self._provider, shelf.spec, self._home, life.id)
        heir.inherit(life)
        heir.jobs += 1
        self._home.lives.add(heir)
        if not idle:
            self._throw(heir, "calls in flight did not end")
        elif heir.renewed < heir.made:
            self._throw(heir, "renewed by its user")
        elif heir.jobs >= _JOBS:
            self._throw(heir, f"{_JOBS} jobs")
        elif time.monotonic() > heir.made + _AGE:
            self._throw(heir, "old")
        else:
            shelf.resetting.add(heir)
            self._spawn(self._reset(shelf, heir))
        return True

    def left(self, life: Life) -> None:
        """A life that asked is over, and has left its room."""
        shelf = self._taken.pop(life, None)
        if shelf is not None:
            shelf.lent -= 1
        self._fill()

    # What its session asks of it.

    def open(self) -> None:
        """Begin to fill it."""
        if not self._opened and not self._closed:
            self._opened = True
            self._own.ask(self.most)
            self._keeper = asyncio.create_task(self._keep())

    async def warm(self, spec: SandboxSpec) -> None:
        """Make as many of a spec as may be ready and as there is room for. Raises what failed."""
        self.open()
        shelf = self._shelf(spec, self._home)
        shelf.ask(max(2, self.most))
        shelf.not_before = 0.0
        failed = shelf.error
        while not self._closed:
            self._fill()
            if shelf.error is not failed and shelf.error is not None:
                raise shelf.error
            lacking = shelf.have < dict(self._allotments()).get(shelf, 0)
            busy = any(each.coming for each in self._shelves.values())
            may_come = busy or self._leaving or self._line or not self._gate.is_open
            if not (shelf.coming or (lacking and may_come)):
                return
            await self._moved.wait()

    def close(self) -> None:
        """Take nothing in and make nothing any more: the session stops all that there is."""
        self._closed = True
        for task in (self._keeper, self._refilling):
            if task is not None:
                task.cancel()
        self._move()

    async def settle(self) -> None:
        """Wait for its work to end, whose sandboxes the session has stopped."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_SECONDS)

    def stats(self) -> PoolStats:
        """What there is now and what has become of the others."""
        shelves = list(self._shelves.values())
        counts = self._counts
        return PoolStats(
            ready=sum(len(shelf.ready) for shelf in shelves),
            making=sum(len(shelf.making) for shelf in shelves),
            resetting=sum(len(shelf.resetting) for shelf in shelves),
            taken=sum(shelf.lent for shelf in shelves),
            waiting=len(self._line) + sum(len(shelf.claims) for shelf in shelves),
            hits=counts["hits"],
            waits=counts["waits"],
            misses=counts["misses"],
            made=counts["made"],
            reset=counts["reset"],
            paused_seconds=self._gate.closed_for,
            thrown_away=dict(self._thrown),
            recent=self._recent,
        )

    # Handing out.

    async def _claimed(self, shelf: Shelf) -> Life | None:
        claim: asyncio.Future[Life | None] = asyncio.get_running_loop().create_future()
        shelf.claims.append(claim)
        try:
            return await claim
        except BaseException:
            if claim in shelf.claims:
                shelf.claims.remove(claim)
            if claim.done() and not claim.cancelled() and (life := claim.result()) is not None:
                self._put_back(shelf, life)
            raise

    async def _fit(self, shelf: Shelf, life: Life) -> bool:
        """Whether it lives, with its lifetime before it; else it is thrown away."""
        assert life.id is not None
        lifetime, now = life.spec.lifetime, time.monotonic()
        try:
            with anyio.fail_after(_CHECK_SECONDS):
                if not await self._provider.ready(life.id):
                    self._throw(life, "dead")
                    return False
                if lifetime is not None and now - life.renewed > min(60.0, lifetime / 10):
                    await self._provider.renew(life.id, lifetime)
                    life.renewed = now
        except (SandboxError, TimeoutError) as error:
            self._throw(life, "its check failed", error)
            return False
        except BaseException:
            self._put_back(shelf, life)
            raise
        return True

    def _make_room(self) -> None:
        """For each who waits, give up one that nobody waits for."""
        short = len(self._line) - self._leaving
        for shelf in sorted(self._counted(), key=lambda each: each.asked_at):
            while short > 0 and shelf.ready:
                self._throw(shelf.ready.popleft(), "room for another")
                short -= 1
            spare = shelf.coming - len(shelf.claims)
            making = [life for life in shelf.making if not life.stopped]
            for life in making[: max(0, min(short, spare))]:
                self._throw(life, "room for another")
                short -= 1

    def _put_back(self, shelf: Shelf, life: Life) -> None:
        """Take back what was found for somebody who gave up."""
        shelf.lent -= 1
        self._put(shelf, life)

    def _put(self, shelf: Shelf, life: Life) -> None:
        """Give a sandbox to who waits for it, or keep it, or give it up."""
        self._move()
        while shelf.claims:
            claim = shelf.claims.popleft()
            if not claim.done():
                shelf.lent += 1
                claim.set_result(life)
                return
        counted = shelf.slots is self._home.slots
        if counted and self._line.give(shelf, life):
            shelf.lent += 1
            return
        if self._closed:
            life.stop()
        elif counted and len(self._line) > self._leaving:
            self._throw(life, "room for another")
        else:
            shelf.ready.append(life)
            if sum(len(each.ready) for each in self._shelves.values()) > self.most:
                least = min(
                    (each for each in self._shelves.values() if each.ready),
                    key=lambda each: each.asked_at,
                )
                self._throw(least.ready.popleft(), f"more than pool={self.most}")

    # Making, keeping and throwing away.

    def _shelf(self, spec: SandboxSpec, home: Home) -> Shelf:
        name = key(spec, home.slots)
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = Shelf(spec, home.slots)
        return shelf

    def _counted(self) -> Iterator[Shelf]:
        return (each for each in self._shelves.values() if each.slots is self._home.slots)

    def _allotments(self) -> Iterator[tuple[Shelf, int]]:
        """How many there are to be of each spec, those first that were asked for last."""
        left = self.most - self._least
        for shelf in sorted(self._shelves.values(), key=lambda each: -each.asked_at):
            base = self._least if shelf is self._own else 0
            # Asked for once, it may be somebody's only one.
            known = shelf is self._own or shelf.asked > 1 or shelf.spec.reuse == "reset"
            wanted = shelf.demand() if known else 0
            more = min(left, max(0, wanted - base))
            left -= more
            yield shelf, base + more

    def _fill(self) -> None:
        if self._closed or not self._opened or self._line or not self._gate.is_open:
            return
        now = time.monotonic()
        for shelf, allowed in self._allotments():
            # Those beyond the caps are kept when they come back, and not made in advance.
            if shelf.slots is not self._home.slots:
                continue
            while shelf.have < allowed and now >= shelf.not_before:
                making = sum(len(each.making) for each in self._shelves.values())
                if making >= self._at_once():
                    return
                try:
                    leave = None if shelf.slots.wanted else shelf.slots.acquire_now()
                except SandboxError as error:
                    shelf.failed(error)  # whoever needs room says it
                    return
                if leave is None:
                    self._spare_one()
                    return
                life = Life(self._provider, shelf.spec, self._home)
                shelf.making.add(life)
                self._spawn(self._make(shelf, life, leave))

    async def _refill(self) -> None:
        await anyio.sleep(_AFTERWARDS)
        self._refilling = None
        self._fill()

    def _spare_one(self) -> None:
        """Give up one of a spec that has more than it is allotted, for another that has fewer."""
        for shelf, allowed in self._allotments():
            if shelf.ready and shelf.have > allowed and not self._leaving:
                self._throw(shelf.ready.popleft(), "room for another")
                return

    def _at_once(self) -> int:
        if self._foreground:
            return _BESIDE_OTHERS
        return _AT_ONCE_HERE if self._provider.on_this_machine else _AT_ONCE_ELSEWHERE

    async def _make(self, shelf: Shelf, life: Life, leave: Leave) -> None:
        await life.take_slot(leave)
        try:
            await life.started()
        except Exception as error:  # noqa: BLE001 - whoever needs one now makes his own attempt
            if not life.stopped:
                failure = error if isinstance(error, SandboxError) else SandboxError(repr(error))
                shelf.failed(failure)
                self._note("could not be made", failure)
        shelf.making.discard(life)
        if life.id is None or life.stopped:
            life.stop()  # of which something may be left
            shelf.withdraw()
        else:
            self._counts["made"] += 1
            shelf.succeeded()
            self._put(shelf, life)
        self._move()
        self._fill()

    async def _reset(self, shelf: Shelf, life: Life) -> None:
        assert life.id is not None
        try:
            with anyio.fail_after(_RESET_SECONDS):
                await self._provider.reset(life.id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the sandbox is not proven clean
            self._throw(
                life, "not clean" if isinstance(error, SandboxNotCleanError) else "no reset", error
            )
        shelf.resetting.discard(life)
        if life.stopped:
            shelf.withdraw()
        else:
            self._counts["reset"] += 1
            self._put(shelf, life)
        self._fill()

    async def _renew(self, shelf: Shelf, life: Life) -> None:
        fit = await self._fit(shelf, life)
        shelf.resetting.discard(life)
        if fit:
            self._put(shelf, life)
        else:
            shelf.withdraw()

    def _throw(self, life: Life, why: str, error: BaseException | None = None) -> None:
        if self._closed or life.stopped:
            life.stop()
            return
        self._thrown[why] += 1
        self._note(f"{life.id or 'one in the making'} thrown away: {why}", error)
        stopping = life.stop()
        assert stopping is not None
        self._leaving += 1
        self._spawn(self._thrown_away(life, stopping))

    async def _thrown_away(self, life: Life, stopping: asyncio.Task[None]) -> None:
        await asyncio.wait([stopping])
        self._leaving -= 1
        if stopping.cancelled() or stopping.exception() is not None:
            self._stuck.add(life)  # its room is taken until the backend removes it
        self._make_room()
        self._move()
        self._fill()

    async def _keep(self) -> None:
        while True:
            self._look()
            self._fill()
            self._move()
            await anyio.sleep(_TICK)

    def _look(self) -> None:
        """Give up what is not wanted, too old or stuck, and renew what has waited for long."""
        now = time.monotonic()
        if now > self._retry_at:
            self._retry_at = now + _RETRY_SECONDS
            self._stuck &= self._home.lives
            for life in self._stuck:
                life.stop()
        for shelf, allowed in tuple(self._allotments()):
            while len(shelf.ready) > allowed:
                self._throw(shelf.ready.popleft(), "not wanted lately")
            lifetime = shelf.spec.lifetime
            for life in tuple(shelf.ready):
                if now > life.made + _AGE:
                    shelf.ready.remove(life)
                    self._throw(life, "old")
                elif lifetime is not None and now > life.renewed + lifetime / 2:
                    shelf.ready.remove(life)
                    shelf.resetting.add(life)  # about to be ready, as those are
                    self._spawn(self._renew(shelf, life))
        idle = next((each for each in self._counted() if each.ready), None)
        if idle is not None and self._home.slots.wanted:
            self._throw(idle.ready.popleft(), "room for another session")
        for name, shelf in tuple(self._shelves.items()):
            if shelf.unused and shelf is not self._own:
                del self._shelves[name]

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
