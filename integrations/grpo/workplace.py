"""Where the tools of a rollout work: a sandbox of its own, or that of an SWE task.

It starts while the model writes its first turn, once there is room, and is gone when the context
ends. `room` bounds how many there are, so that nobody's deadline runs while they wait for others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from sandboxkit import Sandbox, SandboxFileError, Session
from sandboxkit.integrations._tools import Toolbox, ToolResult
from sandboxkit.integrations.grpo.clock import Timer
from sandboxkit.integrations.grpo.config import Rollout as Settings
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.rewards import Phase, Verdict, verdict_of
from sandboxkit.integrations.swe import Step, SweConfig, SweEnv, Task

__all__ = ["Workplace", "own_sandbox", "swe_task"]

T = TypeVar("T")
_MAX_ARTEFACT = 4 * 1024 * 1024
"""Bytes: it is code or text, and as many are in memory as rollouts end at once."""


class Workplace(Protocol):
    """Bash, editor and submit. Every call may raise the infrastructure's errors."""

    leaves_work: bool
    """Whether what is graded is here, and not the completion."""
    deadline: float
    """Seconds past which a call or the work is a failure of the infrastructure."""

    async def ready(self, timer: Timer) -> None:
        """Return once it has started; before any other call. It keeps the timer, and tells it."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:  # Any: JSON
        """Make a tool call; after one that `submitted` there is no other."""
        ...

    async def work(self) -> str | Verdict:
        """What is to be graded, or its grade."""
        ...


@contextlib.asynccontextmanager
async def own_sandbox(
    session: Session, row: Row, settings: Settings, room: asyncio.Semaphore
) -> AsyncIterator[Workplace]:
    """One with the files of the row; what is graded is the artefact, where there is to be one."""
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
    """That of the row's `task_id`, graded by the task's tests, in a fresh sandbox if not `in_place`."""
    config = SweConfig(
        max_steps=settings.max_turns,
        tool_timeout=settings.tool_timeout,
        start_timeout=settings.deadline,
    )
    env, task_id = SweEnv(session, tasks, config), str(row.task["task_id"])
    # Tests that hang are the policy's failure, and last as long in each attempt at grading.
    deadline = settings.deadline + 3 * tasks[task_id].test_timeout
    async with _meanwhile(lambda: env.reset(task_id), env.close, room) as first:
        yield _SweTask(env, first, deadline)


@contextlib.asynccontextmanager
async def _meanwhile(
    begin: Callable[[], Awaitable[T]],
    end: Callable[[], Awaitable[None]],
    room: asyncio.Semaphore,
) -> AsyncIterator["_Started[T]"]:
    """`begin` on a task of its own once there is room, which is held until `end` has returned."""
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
    """Set when it no longer waits for room."""

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
    """Its tests are timed as grading, but for those that a call sets off as the last allowed one."""

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
