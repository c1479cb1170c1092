"""The workplace of a rollout's tools: its own sandbox, or that of an SWE task.

A workplace starts while the model generates its first turn, and is stopped when its context ends.
The semaphore `room` limits their number; deadlines do not run while a rollout waits for it.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sandboxkit import Sandbox, SandboxFileError, Session
from sandboxkit.integrations._tools import Toolbox, ToolResult
from sandboxkit.integrations._training.clock import Timer
from sandboxkit.integrations.grpo.config import RolloutConfig as Settings
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.rewards import Phase, Verdict, verdict_of
from sandboxkit.integrations.swe import Step, SweConfig, SweEnv, Task

__all__ = ["Workplace", "own_sandbox", "swe_task"]

T = TypeVar("T")
_MAX_ARTEFACT = 4 * 1024 * 1024
"""Maximum size of an artefact in bytes. Many rollouts may hold theirs in memory at a time."""


class Workplace(Protocol):
    """Provides bash, editor and submit. Every call may raise infrastructure errors."""

    leaves_work: bool
    """Whether the workplace holds the submission; otherwise the completion is graded."""
    deadline: float
    """Time limit in seconds of `call` and `work`; beyond it the infrastructure failed."""

    async def ready(self, timer: Timer) -> None:
        """Wait for the start; call this first. From then on the workplace updates `timer`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:  # Any: JSON
        """Make a tool call. Do not call this again after a result with `submitted`."""
        ...

    async def work(self) -> str | Verdict:
        """Return the submission to grade, or its verdict."""
        ...


@contextlib.asynccontextmanager
async def own_sandbox(
    session: Session, row: Row, settings: Settings, room: asyncio.Semaphore
) -> AsyncIterator[Workplace]:
    """Yield a sandbox with the row's files; the artefact is graded, if one is configured."""
    files = {p: str(text).encode() for p, text in dict(row.task.get("files") or {}).items()}
    sandbox = session.sandbox(files=files)

    async def start() -> None:
        async with asyncio.timeout(settings.deadline):
            await sandbox.start()

    async with _meanwhile(start, sandbox.stop, room) as started:
        yield _OwnSandbox(sandbox, settings, started)


@contextlib.asynccontextmanager
async def swe_task(
    session: Session,
    tasks: Mapping[str, Task],
    row: Row,
    settings: Settings,
    room: asyncio.Semaphore,
) -> AsyncIterator[Workplace]:
    """Yield the SWE task of the row's `task_id`; its tests grade, in a fresh sandbox unless `in_place`."""
    config = SweConfig(
        max_steps=settings.max_turns,
        tool_timeout=settings.tool_timeout,
        start_timeout=settings.deadline,
    )
    env, task_id = SweEnv(session, tasks, config), str(row.task["task_id"])
    # Tests that hang are the policy's failure, and may use their timeout in each grading attempt.
    deadline = settings.deadline + 3 * tasks[task_id].test_timeout
    async with _meanwhile(lambda: env.reset(task_id), env.close, room) as first:
        yield _SweTask(env, first, deadline)


@contextlib.asynccontextmanager
async def _meanwhile(
    begin: Callable[[], Awaitable[T]],
    end: Callable[[], Awaitable[None]],
    room: asyncio.Semaphore,
) -> AsyncIterator["_Started[T]"]:
    """Run `begin` in a background task once `room` is acquired; release `room` after `end`."""
    held, over = False, asyncio.Event()

    async def run() -> T:
        nonlocal held
        try:
            await room.acquire()
            held = True
        finally:
            over.set()
        return await begin()

    begun = asyncio.create_task(run())
    try:
        yield _Started(begun, over)
    finally:
        begun.cancel()
        try:
            await asyncio.gather(begun, return_exceptions=True)
        finally:
            try:
                await end()
            finally:
                if held:
                    room.release()


@dataclass(frozen=True, slots=True)
class _Started(Generic[T]):
    task: "asyncio.Task[T]"
    over: asyncio.Event
    """Set when the task no longer waits for `room`."""

    async def ready(self, timer: Timer) -> T:
        if not self.task.done():
            timer.enter("queue")
            await self.over.wait()
            timer.enter("start")
        made = await self.task
        timer.enter("tools")
        return made


class _OwnSandbox:
    def __init__(self, sandbox: Sandbox, settings: Settings, started: _Started[None]) -> None:
        self._sandbox, self._artefact, self._started = sandbox, settings.artefact, started
        self._toolbox = Toolbox(sandbox, timeout=settings.tool_timeout)
        self.leaves_work, self.deadline = bool(settings.artefact), settings.deadline

    async def ready(self, timer: Timer) -> None:
        await self._started.ready(timer)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._toolbox.call(name, arguments)

    async def work(self) -> str | Verdict:
        try:
            data = await self._sandbox.read_file(self._artefact, max_bytes=_MAX_ARTEFACT)
        except SandboxFileError as error:
            return verdict_of(error, Phase.EXPORTED)
        return data.decode(errors="replace")


class _SweTask:
    """An SWE task. Its tests are timed as grading, unless the last allowed call triggers them."""

    leaves_work = True

    def __init__(self, env: SweEnv, first: _Started[Step], deadline: float) -> None:
        self._env, self._first, self.deadline = env, first, deadline
        self._last: Step | None = None
        self._timer: Timer | None = None

    async def ready(self, timer: Timer) -> None:
        self._timer, first = timer, await self._first.ready(timer)
        self._last = self._last or first

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        assert self._last is not None
        assert self._timer is not None
        if not self._last.done:
            if name == "submit":
                self._timer.enter("grading")
            self._last = await self._env.step(name, arguments)
        return ToolResult(self._last.observation, self._last.error, submitted=self._last.done)

    async def work(self) -> str | Verdict:
        assert self._last is not None
        assert self._timer is not None
        if not self._last.done:
            self._timer.enter("grading")
            self._last = await self._env.finish()
            self._timer.enter("tools")
        assert self._last.verdict is not None
        return self._last.verdict
