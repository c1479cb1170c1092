"""The life cycle of one sandbox: its states, one start and stop for all callers, its pauses, the order of its calls."""

import asyncio
import contextlib
import math
import os
import posixpath
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.lowlevel

from sandboxkit._life import _forks
from sandboxkit._life._work import UndoneError, Work
from sandboxkit._operation import Operation
from sandboxkit._room._limiter import Release
from sandboxkit._room._throttle import AdmissionThrottle
from sandboxkit.errors import (
    CapacityError,
    NoRoomError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Box, FirstCommand, Provider
from sandboxkit.types import Command, Network, SandboxSpec, StreamName


class PauseClock:
    """Whether a sandbox is paused, and the timers that stop meanwhile; background loop only."""

    def __init__(self) -> None:
        self.paused = False
        self.one = anyio.Lock()
        """Held while the sandbox is paused or resumed, or its snapshot is taken."""
        self._left: dict[anyio.CancelScope, float] = {}
        """The timers, each with the seconds that it had left when the sandbox was paused."""

    @contextlib.contextmanager
    def stops(self, timer: anyio.CancelScope) -> Iterator[None]:
        """Stop the timer, a scope that the caller has entered, whenever the sandbox is paused."""
        self._left[timer] = timer.deadline - anyio.current_time()
        if self.paused:  # a resume may be on its way, and let the command begin
            timer.deadline = math.inf
        try:
            yield
        finally:
            del self._left[timer]

    def pause(self) -> None:
        """Stop the timers. Idempotent."""
        if not self.paused:
            self.paused = True
            for timer in self._left:
                self._left[timer] = timer.deadline - anyio.current_time()
                timer.deadline = math.inf

    def resume(self) -> None:
        """Let the timers go on. Idempotent."""
        if self.paused:
            self.paused = False
            for timer, left in self._left.items():
                timer.deadline = anyio.current_time() + left


class Turns:
    """The file calls in flight of one sandbox, in the order in which they were made; background loop only."""

    def __init__(self) -> None:
        self._calls: dict[anyio.Event, tuple[str, bool]] = {}

    @asynccontextmanager
    async def turn(self, *paths: str, changes: bool) -> AsyncIterator[None]:
        """Context in which a call on paths may run, after the earlier ones that must come before it.

        A call that changes a path waits for calls on it, above it and below it; one that reads it, for changes of it
        and of a folder above. So what lists a folder waits for no file in it.
        """
        before = [
            over
            for over, (earlier, changed) in self._calls.items()
            if any(
                (changed and _covers(earlier, path)) or (changes and _overlap(earlier, path))
                for path in paths
            )
        ]
        own = {anyio.Event(): (path, changes) for path in paths}
        self._calls |= own
        try:
            for over in before:
                await over.wait()
            yield
        finally:
            for over in own:
                del self._calls[over]
                over.set()

    async def before_command(self, argv: Sequence[str]) -> None:
        """Wait for the earlier calls that change a path which a command names."""
        changing = {over: path for over, (path, changed) in self._calls.items() if changed}
        for over, path in changing.items():
            if any(path in word for word in argv):
                await over.wait()


def _overlap(one: str, other: str) -> bool:
    return _covers(one, other) or _covers(other, one)


def _covers(one: str, other: str) -> bool:
    """Return whether a path is another or a folder above it; a relative one may be below any folder."""
    return (
        other == one or other.startswith(f"{one.rstrip('/')}/") or f"/{other}".endswith(f"/{one}")
    )


if TYPE_CHECKING:
    from sandboxkit.egress import Egress
    from sandboxkit.egress._control import NetworkControl
    from sandboxkit.ledger._meter import SandboxMeter

T = TypeVar("T")

STOP = "sandboxkit stops a sandbox of "
"""The beginning of the name of a task that stops a sandbox; the snapshot from which it started follows."""
_CALLS_SECONDS = 5.0
"""How long (s) a reset waits for calls in flight."""


class State(Enum):
    """The lifecycle state of a sandbox; messages quote the values."""

    NEW = "is not started"
    QUEUED = "waits for room"
    STARTING = "starts"
    RUNNING = "runs"
    ENDED = "has ended by itself"
    UNDOING = "is being removed, because nothing waits for its start any more"
    LEFT_OVER = "failed to start, and could not be removed yet"
    STOPPING = "is being stopped"
    STUCK = "could not be removed yet"
    STOPPED = "is stopped"

    __hash__ = object.__hash__  # Enum's own is a Python function, called at each look at a state


TRANSITIONS: dict[State, frozenset[State]] = {
    State.NEW: frozenset({State.QUEUED, State.STARTING, State.STOPPING}),
    State.QUEUED: frozenset({State.STARTING, State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.STARTING: frozenset({State.RUNNING, State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.RUNNING: frozenset({State.ENDED, State.UNDOING, State.STOPPING, State.STOPPED}),
    State.ENDED: frozenset({State.UNDOING, State.STOPPING}),
    State.UNDOING: frozenset({State.NEW, State.LEFT_OVER, State.STOPPING}),
    State.LEFT_OVER: frozenset({State.QUEUED, State.STARTING, State.UNDOING, State.STOPPING}),
    State.STOPPING: frozenset({State.STOPPED, State.STUCK}),
    State.STUCK: frozenset({State.STOPPING}),
    State.STOPPED: frozenset(),
}
"""The states that may follow each state. NEW goes directly to STARTING if it already has room.
RUNNING goes directly to STOPPED if another sandbox object takes over the running sandbox."""

STOP_REQUESTED = frozenset({State.STOPPING, State.STUCK, State.STOPPED})
"""The states after `stop()`: new calls are refused."""
WITHOUT_ROOM = frozenset({State.NEW, State.QUEUED, State.ENDED, State.STOPPED})
"""The states that count towards no cap."""


async def _drop(stream: StreamName, data: bytes) -> None:
    """Ignore a piece of output."""


@dataclass(slots=True, eq=False)
class SessionContext:
    """State and callbacks shared by the lifecycles of all sandboxes of one session."""

    counted: bool = True
    """Whether the sandboxes count towards the session's caps."""
    throttle: AdmissionThrottle = field(default_factory=AdmissionThrottle)
    pool: Any = None  # Any: a Pool or None; its module imports this one
    """Grants room. None for sandboxes that another process made: they need no room."""
    attached: set[Work] = field(default_factory=set)
    """Background work that ends when the session is closed, even if its sandbox lives on."""
    lives: "set[Lifecycle]" = field(default_factory=set)
    """Lifecycles whose sandbox may still exist at the backend, except sandboxes reached by their id."""
    begins: "Callable[[Lifecycle], None]" = lambda _: None
    """Called before each start; it raises to refuse the start."""
    look: "Callable[[Lifecycle], None]" = lambda _: None
    """Makes the session's reconciler check a sandbox soon; see `Reconciler.look`."""
    full: Callable[[], str] = str
    """Returns, for error messages, which sandboxes use the session's room."""
    mark: Callable[[SandboxSpec], SandboxSpec] = lambda spec: spec
    """Adds sandboxkit's own tags to the spec of a sandbox that is about to be created."""
    measure: "Callable[[SandboxSpec, Box], SandboxMeter | None]" = lambda *_: None
    """Begins to measure what a new sandbox uses; it returns None if that is not recorded."""
    waited: "Callable[[Lifecycle, float], None]" = lambda *_: None
    """Called after a start has waited for room, with the time in seconds."""
    narrowed: "dict[str, Egress | Network]" = field(default_factory=dict)
    """The network that a sandbox of the session had, or "none", when each of its snapshots was taken."""
    moved: float = field(default_factory=time.monotonic)
    """When a sandbox of the session last started running or ended (monotonic seconds)."""


class Lifecycle:
    """Starts a sandbox on first use and removes it completely when it stops.

    All callers that wait for a start share it. When the last of them gives up, the start is undone
    and its room is released; the next use starts again. If undoing fails, the leftover keeps its
    room until the reconciler or `stop()` removes it. With a pool, a start may take a pooled sandbox,
    and a stop may return it; another Lifecycle object then owns the sandbox.
    """

    def __init__(
        self,
        provider: Provider,
        spec: SandboxSpec,
        context: SessionContext,
        box: Box | None = None,
        made_at: str = "",
    ) -> None:
        self.provider, self.spec, self.context, self.box = provider, spec, context, box
        self.made_at = made_at
        """The caller's line that made the sandbox, such as "train.py:12"; "" for a pooled one."""
        self.state = State.NEW if box is None else State.RUNNING
        self.since = time.monotonic()
        """When the current state began (monotonic seconds)."""
        self.made = self.renewed = 0.0
        """When the sandbox was created, and when its lifetime last began (monotonic seconds)."""
        self.network: NetworkControl | None = None
        """Starts the sandbox's egress proxy as the last step of a start, and knows what it has refused."""
        self.after: Callable[[Lifecycle], Awaitable[None]] | None = None
        """Called at the end of a stop, after the sandbox was removed."""
        self.pooled = True
        """Whether the sandbox may come from a pool."""
        self.jobs = 0
        """How many jobs this sandbox served before."""
        self.failures = 0
        """How many consecutive attempts to delete the sandbox failed."""
        self.room: Release | None = None
        """Releases the sandbox's room under the session's caps; None if it has none."""
        self.meter: SandboxMeter | None = None
        """Measures, from the creation to the deletion, what the sandbox uses."""
        self.clock, self.turns = PauseClock(), Turns()
        self._exists = box
        """The sandbox at the backend, as far as known; None when nothing exists."""
        self._start: Work | None = None
        self._first: FirstCommand | None = None
        """The command of the caller that began the start, until a sandbox is created for it."""
        self._stopping: asyncio.Task[None] | None = None
        self._wanted = 0 if box is None else 1
        """How many callers received the box; one passed to the constructor counts as one."""
        self._calls: set[anyio.CancelScope] = set()
        self._no_calls = asyncio.Event()
        self._attached: set[Work] = set()
        self._pid = os.getpid()

    @property
    def id(self) -> str | None:
        """The sandbox's id; None before the start."""
        return None if self.box is None else self.box.id

    @property
    def stopped(self) -> bool:
        """Whether `stop()` was called."""
        return self.state in STOP_REQUESTED

    def refuse_ended(self) -> None:
        """Raise SandboxTerminatedError after `stop()`, and ConfigurationError in a forked child."""
        _forks.refuse(self._pid, f"sandbox {self._name()}", "reach it with Sandbox.from_id(...)")
        if self.stopped:
            raise self.was_stopped()

    def describe(self) -> str:
        """Return the sandbox's name, state, time in that state, and the line that made it."""
        state, seconds = self.state.value, time.monotonic() - self.since
        made = f", made at {self.made_at}" if self.made_at else ""
        return f"{self._name()} {state} (for {seconds:.0f} s{made})"

    def was_stopped(self) -> SandboxTerminatedError:
        """Return the error for the use of a sandbox that was stopped."""
        return SandboxTerminatedError(
            f"sandbox {self._name()} was stopped; make a new one with session.sandbox()",
            provider=self.provider.name,
            sandbox_id=self.id,
        )

    def _name(self) -> str:
        return self.id or "(never started)"

    # Everything below runs on the background loop: no other thread changes the state in between.

    def _to(self, state: State) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state, self.since = state, time.monotonic()
        if self.box is not None and state in (State.RUNNING, State.ENDED, State.STOPPED):
            self.context.moved = self.since

    async def call(self, work: Callable[[Box], Awaitable[T]]) -> T:
        """Start the sandbox if needed and run `work` with it."""
        return await self.during(await self.started(), work)

    async def on_paths(
        self, work: Callable[..., Awaitable[T]], *paths: str, changes: bool = False
    ) -> T:
        """Run `work` with the sandbox and these paths made absolute, after earlier calls that touch them."""
        async with self.turns.turn(*paths, changes=changes):

            async def run(box: Box) -> T:
                return await work(box, *[await _absolute(box, each) for each in paths])

            return await self.call(run)

    async def during(self, box: Box, work: Callable[[Box], Awaitable[T]]) -> T:
        """Run `work` with the sandbox. If the sandbox may return to a pool, `stop()` cancels the
        work, which then raises SandboxTerminatedError."""
        try:
            if self.spec.reuse == "never":
                return await work(box)
            self.refuse_ended()
            with anyio.CancelScope() as scope:
                self._calls.add(scope)
                try:
                    return await work(box)
                finally:
                    self._calls.discard(scope)
                    if not self._calls and self.stopped:
                        self._no_calls.set()
        except (SandboxNotFoundError, SandboxTerminatedError):
            if self.state is State.RUNNING:
                self.context.look(self)
            raise
        raise self.was_stopped()

    async def attach(
        self, work: Callable[[Box], Awaitable[None]], starting: Box | None = None
    ) -> Work:
        """Run `work` in the background until the sandbox stops or its session closes.

        `starting` is a sandbox whose start is in progress. None: start the sandbox if needed.
        """
        box = await self.started() if starting is None else starting
        attached = Work(lambda: self.during(box, work))
        for attachments in (self._attached, self.context.attached):
            attachments.add(attached)
            attached.on_end(attachments.discard)
        return attached

    async def started(self, command: Command | None = None) -> Box:
        """Wait until the sandbox runs and return it; start it if needed.

        `command` is the caller's next command. If this call begins the start, the command may be sent
        along with it. Raises OutcomeUnknownError if that start fails and the command may have run; other
        callers that waited for the start get the start's error.
        """
        while True:
            self.refuse_ended()
            first: FirstCommand | None = None
            if self.state in (State.RUNNING, State.ENDED):
                assert self.box is not None
                self._wanted += 1
                return self.box
            if self._start is None:
                self.context.begins(self)
                # Unless something else prepares the sandbox before its first command.
                spec, network = self.spec, self.network
                prepared = spec.files or spec.interpreter or network or spec.reuse == "reset"
                if command is not None and not command.setup and not prepared:
                    first = FirstCommand(command)
                self._first = first
                # Now, because the time limit may pass before the task's first step.
                self._to(State.QUEUED if self.room is None else State.STARTING)
                self._start = Work(self._create)
            start = self._start
            try:
                await start.wait()
            except UndoneError:
                pass  # undone by stop(), or because earlier callers gave up: check again
            except SandboxError as error:
                if first is not None and first.sent:
                    raise self._unknown(error) from error
                raise
            except asyncio.CancelledError:
                if first is not None and not first.withdraw():
                    await self._recall(first.command, start)
                elif not start.waiting and not self._wanted:
                    self._undo()
                raise

    def _unknown(self, error: SandboxError) -> OutcomeUnknownError:
        return OutcomeUnknownError(
            f"the command was sent with the start of its sandbox, which failed; whether it ran is unknown: "
            f"{error}",
            provider=self.provider.name,
            sandbox_id=error.sandbox_id,
        )

    async def _recall(self, command: Command, start: Work) -> None:
        """End a command that was sent with the start, after its caller was cancelled."""
        if self.state is not State.RUNNING or self.box is None:
            start.cancel()  # the command ends with the sandbox; other callers start another one
        elif not self._wanted:
            self._undo()
        else:
            with anyio.CancelScope() as scope:
                scope.cancel()  # a cancelled `exec` kills its command
                await self.box.exec(command, _drop)

    def lost(self) -> None:
        """Record that a caller of `started` was cancelled before it received the box."""
        self._wanted -= 1
        if not self._wanted:
            self._undo()

    def _undo(self) -> None:
        # The start succeeded just as the last caller that waited for it gave up.
        if self.state in (State.RUNNING, State.ENDED):
            self.box = None
            self.remove_left_over()

    def remove_left_over(self) -> None:
        """Begin to delete the sandbox of a start that failed or that nobody waits for."""
        if self._start is None:
            self._to(State.UNDOING)
            self._start = Work(self._remove)

    async def _remove(self) -> None:
        try:
            await self._delete()
        finally:
            self._start = None
            self._unstarted()

    def _unstarted(self) -> None:
        """Set the state after an undone or failed start: LEFT_OVER if its sandbox still exists, else NEW."""
        if self.stopped:
            return  # _end() goes on from here
        if self._exists is None:
            self._to(State.NEW)
            self._gone()
        else:
            self._to(State.LEFT_OVER)
            self.failures += 1
            self.context.look(self)

    def ended(self) -> None:
        """Record that the sandbox ended by itself, and release its room; `stop()` removes leftovers."""
        if self.state is State.RUNNING:
            self._to(State.ENDED)
            if self.meter is not None:
                self.meter.stop()
            self._cancel_attached()
            self.context.throttle.room()
            self.leave_room()

    def stop(self) -> asyncio.Task[None] | None:
        """Begin to stop the sandbox and return the task, or None if there is nothing to do.

        A start in flight is undone. In a forked child this does nothing.
        """
        if self._stopping is None and os.getpid() == self._pid and self.state is not State.STOPPED:
            self._to(State.STOPPING)
            self._cancel_attached()
            if self._start is not None:
                self._start.cancel()
            self._stopping = asyncio.create_task(self._end(), name=f"{STOP}{self.spec.snapshot}")
            self._stopping.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._stopping

    def _cancel_attached(self) -> None:
        for attached in self._attached:
            attached.cancel()

    async def take_room(self) -> bool:
        """Wait for room (True), or for a pooled sandbox, which this object then owns (False)."""
        if self.room is None and self.context.pool is not None:
            found = await self.context.pool.take(self)
            if isinstance(found, Lifecycle):
                self.inherit(found)
                return False
            self.room = found
        return True

    def leave_room(self) -> None:
        """Release the room of this sandbox, if it has any."""
        leave, self.room = self.room, None
        if leave is not None:
            leave()
        if self.context.pool is not None:
            self.context.pool.left(self)

    async def end_calls(self) -> bool:
        """Cancel the calls in flight and wait for their end; return whether all ended within 5 s."""
        for scope in tuple(self._calls):
            scope.cancel()
        with anyio.move_on_after(_CALLS_SECONDS):
            while self._calls:
                await self._no_calls.wait()
        return not self._calls

    async def check(self) -> None:
        """Check that the sandbox is alive, else raise SandboxNotFoundError; renew its lifetime if needed."""
        lifetime, now = self.spec.lifetime, time.monotonic()
        assert self.box is not None
        if self.state is not State.RUNNING or not await self.box.ready():
            raise SandboxNotFoundError(f"sandbox {self.id} has ended", sandbox_id=self.id)
        if lifetime is not None and now - self.renewed > min(60.0, lifetime / 10):
            await self.box.renew(lifetime)
            self.renewed = now

    async def reset(self) -> None:
        """Restore the state that the sandbox had before its first command, and verify it."""
        assert self.box is not None
        await self.box.reset()

    def inherit(self, other: "Lifecycle") -> None:
        """Take over the sandbox of another Lifecycle object, which then counts as stopped."""
        self.room, other.room = other.room, None
        self.made, self.renewed, self.jobs = other.made, other.renewed, other.jobs
        self._exists, other._exists = other._exists, None
        self.meter, other.meter = other.meter, None
        other._to(State.STOPPED)
        self.context.lives.discard(other)
        self.context.lives.add(self)

    async def _create(self) -> None:
        seconds = self.spec.start_timeout
        try:
            with nullcontext() if seconds is None else anyio.move_on_after(seconds) as limit:
                await anyio.lowlevel.checkpoint_if_cancelled()  # stop() may have been first
                if fresh := await self._enter():
                    await self._delete()
                    first, self._first = self._first, None
                    self._exists = await self.context.throttle.create(
                        self.provider, self.context.mark(self.spec), first
                    )
                    self.made = self.renewed = time.monotonic()
                    self.meter = self.context.measure(self.spec, self._exists)
                await self._prepare(fresh)
            if limit is not None and limit.cancelled_caught:
                raise self.late(f"start_timeout={seconds:g} s")
        finally:
            self._start = None
            if self.state is not State.RUNNING:
                self._unstarted()

    async def _enter(self) -> bool:
        """Get room or a pooled sandbox; return whether a sandbox must be created."""
        if self.state is State.QUEUED:
            self.context.look(self)
        fresh = await self.take_room()
        if self.state is State.QUEUED:  # after stop(), the next checkpoint undoes the start
            self.context.waited(self, time.monotonic() - self.since)
            self._to(State.STARTING)
        return fresh

    def late(self, limit: str) -> SandboxError:
        """Return the error for a start that exceeded `limit`; its message names the cause of the delay."""
        made = f" made at {self.made_at}" if self.made_at else ""
        what = f"a sandbox{made} did not start within {limit}"
        refused, name = self.context.throttle.refusal, self.provider.name
        if self.state is State.QUEUED:
            return NoRoomError(f"{what}: {self.context.full()}", provider=name)
        if isinstance(refused, CapacityError):
            return NoRoomError(f"{what}: the backend has no room: {refused}", provider=name)
        why = "its creation took longer" if refused is None else str(refused)
        return ProviderUnavailableError(f"{what}: {why}", provider=name)

    async def _prepare(self, fresh: bool) -> None:
        """Run the steps after the creation (`fresh`) or the taking from a pool; if one fails, delete the sandbox."""
        box, spec = self._exists, self.spec
        assert box is not None
        try:
            if fresh and spec.interpreter is not None:
                await box.start_interpreter(spec.interpreter)
            if fresh and spec.reuse == "reset":
                await box.reset()  # the first call only records the state
            for path, data in spec.files.items():
                await box.write_file(path, data, mode=None)
            if self.network is not None:
                await self.network.begin(box)
            # A cancellation that came as the last step finished is still pending.
            await anyio.lowlevel.checkpoint_if_cancelled()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                try:
                    await self._delete()
                except SandboxError as second:
                    error.add_note(f"and it could not be removed yet: {second}")
            raise
        self.box = box
        self._to(State.RUNNING)

    async def _end(self) -> None:
        try:
            if self._start is not None:
                await self._start.undo()
            pool = None if self.clock.paused else self.context.pool
            if self.box is None or pool is None or not await pool.give_back(self):
                await self._delete()
            for attached in tuple(self._attached):
                await attached.undo()
        except BaseException:
            self._stopping = None  # the next stop() retries
            self._to(State.STUCK)
            self.failures += 1
            self.context.look(self)
            raise
        if self.state is not State.STOPPED:
            self._to(State.STOPPED)
        self._gone()
        if self.after is not None:
            await self.after(self)

    async def _delete(self) -> None:
        if self._exists is not None:
            self._cancel_attached()
            meter, self.meter = self.meter, None
            if meter is not None:
                await meter.end()
            # A box whose deletion has failed is forgotten: the next attempt needs a fresh one.
            await self.provider.box(self._exists.id).delete()
            self._exists, self.failures = None, 0
            self.context.throttle.room()

    def _gone(self) -> None:
        self.context.lives.discard(self)
        self.leave_room()


async def _absolute(box: Box, path: str) -> str:
    if path.startswith("/"):
        return path
    return posixpath.normpath(posixpath.join(await box.workdir(), path))


def pause_or_resume(life: Lifecycle, *, paused: bool) -> Operation[None]:
    """Pause or resume a sandbox; see `Sandbox.pause` and `Sandbox.resume`."""
    life.refuse_ended()
    life.provider.check_pause()

    async def run(box: Box) -> None:
        async with life.clock.one:
            # Shielded: a cancelled change would leave it unknown whether the sandbox is paused.
            with anyio.CancelScope(shield=True):
                if paused:
                    await box.pause()
                    life.clock.pause()
                else:
                    await box.resume()
                    life.clock.resume()
                if life.meter is not None:
                    life.meter.hold(paused)

    return Operation(life.call(run), of=life)
