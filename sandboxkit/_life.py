"""One sandbox's life: a start and an end, each shared by all who want it."""

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import anyio
import anyio.lowlevel

from sandboxkit import _forks
from sandboxkit._gate import Gate
from sandboxkit._slots import Leave, Slots
from sandboxkit._work import UndoneError, Work
from sandboxkit.errors import SandboxError, SandboxTerminatedError
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxSpec

T = TypeVar("T")

_CALLS_SECONDS = 5.0
"""For the calls that are in flight when their sandbox is to be reset."""


def _refuse_none(_: "Life") -> None:
    """Let every start begin."""


def _unmarked(spec: SandboxSpec) -> SandboxSpec:
    return spec


class Reserve(Protocol):
    """A pool, as lives know it."""

    def takes(self, spec: SandboxSpec) -> bool:
        """Whether such sandboxes can be kept."""
        ...

    async def take(self, life: "Life") -> "Life | Leave":
        """A ready sandbox, which is no longer the pool's, or room to make one."""
        ...

    async def room(self) -> Leave:
        """Room for a sandbox that is made elsewhere."""
        ...

    def beside(self) -> AbstractContextManager[None]:
        """While a creation that somebody waits for is under way."""
        ...

    def wants(self, life: "Life") -> bool:
        """Whether the sandbox of a life that ends is to be left to the pool."""
        ...

    def give_back(self, life: "Life", *, idle: bool) -> bool:
        """Take over a sandbox, none of whose calls is in flight if `idle`; whether that is done."""
        ...

    def left(self, life: "Life") -> None:
        """A life is over, and has left its room."""
        ...


@dataclass(slots=True, eq=False)
class Home:
    """What the lives of one session have in common."""

    slots: Slots = field(default_factory=Slots)
    gate: Gate = field(default_factory=Gate)
    pool: "Reserve | None" = None
    lives: "set[Life]" = field(default_factory=set)
    """All of which something may be left, but for those that were made elsewhere."""
    begins: "Callable[[Life], None]" = _refuse_none
    """Told before each start, which it may refuse."""
    mark: Callable[[SandboxSpec], SandboxSpec] = _unmarked
    """Adds the tags of sandboxkit itself to those of a sandbox that is about to be created."""


class Life:
    """Starts a sandbox on first use, and removes everything of it at its end.

    A start belongs to those who wait for it: when the last of them has given up, it is undone
    and its slot is free; the next use starts again. What an undone start could not remove keeps
    its slot, and the end removes it. Where its session has a pool it may start with a sandbox of
    that, and leave it to that at its end: another life then has it.
    """

    def __init__(
        self, provider: Provider, spec: SandboxSpec, home: Home, sandbox_id: str | None = None
    ) -> None:
        self.provider, self.spec, self.home, self.id = provider, spec, home, sandbox_id
        self.stopped = False
        self.made = self.renewed = 0.0
        """When its sandbox was created, and when its lifetime began to count."""
        self.jobs = 0
        """How many lives before this one had the sandbox to themselves."""
        self._leave_slot: Leave | None = None
        self._start: Work | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._remains: str | None = None
        self._wanted = 0  # how many have been given its id
        self._calls: set[anyio.CancelScope] = set()
        self._no_calls = asyncio.Event()
        self._pid = os.getpid()

    def refuse_ended(self) -> None:
        """Raise SandboxTerminatedError once it is stopped, ConfigurationError in a fork."""
        _forks.refuse(self._pid, f"sandbox {self._name()}", "reach it with Sandbox.from_id(...)")
        if self.stopped:
            raise self._ended()

    def _ended(self) -> SandboxTerminatedError:
        return SandboxTerminatedError(
            f"sandbox {self._name()} was stopped; make a new one with session.sandbox()",
            provider=self.provider.name,
            sandbox_id=self.id,
        )

    def _name(self) -> str:
        return self.id or "(never started)"

    # Everything below runs on the background loop, so checks and assignments do not interleave.

    async def call(self, work: Callable[[str], Awaitable[T]]) -> T:
        """Start it if nobody has, and do `work` with its id."""
        return await self.during(await self.started(), work)

    async def during(self, sandbox_id: str, work: Callable[[str], Awaitable[T]]) -> T:
        """Do `work`, which the end of this life cancels where its sandbox lives on."""
        if self.spec.reuse == "never":
            return await work(sandbox_id)
        self.refuse_ended()
        with anyio.CancelScope() as scope:
            self._calls.add(scope)
            try:
                return await work(sandbox_id)
            finally:
                self._calls.discard(scope)
                if not self._calls and self.stopped:
                    self._no_calls.set()
        raise self._ended()

    async def started(self) -> str:
        """Its id, once it runs; start it if nobody has."""
        while True:
            self.refuse_ended()
            if self.id is not None:
                self._wanted += 1
                return self.id
            if self._start is None:
                self.home.begins(self)
                self._start = Work(self._create)
            start = self._start
            try:
                await start.wait()
            except UndoneError:
                pass  # by stop(), or before this caller came
            except asyncio.CancelledError:
                if not start.waited_for and not self._wanted:
                    self._undo()
                raise

    def lost(self) -> None:
        """Whoever was given its id last was cancelled before the id got there."""
        self._wanted -= 1
        if not self._wanted:
            self._undo()

    def _undo(self) -> None:
        # The start has ended, in the moment in which the last who waited for it gave up.
        if self.id is not None and self._stopping is None:
            self._remains, self.id = self.id, None
            self._start = Work(self._remove)

    async def _remove(self) -> None:
        try:
            await self._remove_remains()
        finally:
            self._start = None
            if self._remains is None:
                self._gone()

    def stop(self) -> asyncio.Task[None] | None:
        """Begin to end it; a start in flight is undone. In a forked child it does nothing."""
        if self._stopping is None and os.getpid() == self._pid:
            self.stopped = True
            self._stopping = asyncio.create_task(self._end())
            self._stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._stopping

    async def take_slot(self, leave: Leave | None = None) -> None:
        """Count it among the sandboxes of its session, with room that was found for it if any."""
        pool = self.home.pool
        if leave is None:
            leave = await (self.home.slots.acquire() if pool is None else pool.room())
        self._leave_slot = leave

    def leave_slot(self) -> None:
        """Make room for another sandbox, if it had any."""
        leave, self._leave_slot = self._leave_slot, None
        if leave is not None:
            leave()
            self.home.gate.room()
        if self.home.pool is not None:
            self.home.pool.left(self)

    def inherit(self, other: "Life") -> str:
        """Take over the sandbox of another life, which is over; its id."""
        assert other.id is not None
        self._leave_slot, other._leave_slot = other._leave_slot, None
        self.made, self.renewed, self.jobs = other.made, other.renewed, other.jobs
        other.stopped = True
        self.home.lives.discard(other)
        return other.id

    async def _create(self) -> None:
        pool = self.home.pool
        fresh = True
        try:
            if self._leave_slot is None:
                if pool is None or not pool.takes(self.spec):
                    await self.take_slot()
                elif isinstance(found := await pool.take(self), Life):
                    self._remains, fresh = self.inherit(found), False
                else:
                    self._leave_slot = found
            if fresh:
                await self._remove_remains()
                with contextlib.nullcontext() if pool is None else pool.beside():
                    await self._make()
                    await self._prepared(self._begin_jobs)
            await self._prepared(self._write_files)
            self.id, self._remains = self._remains, None
        finally:
            self._start = None
            if self.id is None and self._remains is None:
                self._gone()

    async def _make(self) -> None:
        self._remains = await self.home.gate.create(self.provider, self.home.mark(self.spec))
        self.made = self.renewed = time.monotonic()

    async def _begin_jobs(self, sandbox_id: str) -> None:
        if self.spec.interpreter is not None:
            await self.provider.start_interpreter(sandbox_id, self.spec.interpreter)
        if self.spec.reuse == "reset":
            await self.provider.reset(sandbox_id)  # which only takes down what there is

    async def _write_files(self, sandbox_id: str) -> None:
        for path, data in self.spec.files.items():
            await self.provider.write_file(sandbox_id, path, data, mode=None)

    async def _prepared(self, prepare: Callable[[str], Awaitable[None]]) -> None:
        assert self._remains is not None
        try:
            await prepare(self._remains)
            # A create that ended as it was cancelled has not noticed.
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                try:
                    await self._remove_remains()
                except SandboxError as second:
                    error.add_note(f"and it could not be removed yet: {second}")
            raise

    async def _end(self) -> None:
        try:
            if self._start is not None:
                await self._start.undo()
            await self._remove_remains()
            if self.id is not None and not await self._given_back():
                await self.provider.delete(self.id)
        except BaseException:
            self._stopping = None  # so that the next stop() tries again
            raise
        self._gone()

    async def _given_back(self) -> bool:
        """Leave the sandbox to the pool; False where it is to be deleted."""
        pool = self.home.pool
        if pool is None or self.spec.reuse == "never" or not pool.wants(self):
            return False
        for scope in tuple(self._calls):
            scope.cancel()
        with anyio.move_on_after(_CALLS_SECONDS):
            while self._calls:
                await self._no_calls.wait()
        return pool.give_back(self, idle=not self._calls)

    async def _remove_remains(self) -> None:
        if self._remains is not None:
            await self.provider.delete(self._remains)
            self._remains = None

    def _gone(self) -> None:
        self.home.lives.discard(self)
        self.leave_slot()
