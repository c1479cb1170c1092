"""The workplace of a rollout's tools: its own sandbox, or that of an SWE task."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

from sandboxkit import SandboxFileError, Session
from sandboxkit.integrations._tools import Toolbox, ToolResult
from sandboxkit.integrations._training.clock import Timer
from sandboxkit.integrations.grpo.config import RolloutConfig as Settings
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.rewards import Phase, Verdict, verdict_of
from sandboxkit.integrations.swe import Step, SweConfig, SweEnv, Task

__all__ = ["OwnSandbox", "SweTask", "Workplace"]

_MAX_ARTEFACT = 4 * 1024 * 1024
"""Maximum size of an artefact in bytes. Many rollouts may hold theirs in memory at a time."""


class Workplace(ABC):
    """Provides bash, editor and submit. Every call may raise infrastructure errors.

    It starts in the background once its context is entered, while the model generates its first
    turn, and stops when the context ends. The semaphore `room` limits the number of workplaces;
    deadlines do not run while a rollout waits for it.
    """

    leaves_work = True
    """Whether the workplace holds the submission; otherwise the completion is graded."""
    deadline: float
    """Time limit in seconds of `call` and `work`; beyond it the infrastructure failed."""

    def __init__(self, room: asyncio.Semaphore) -> None:
        self._room, self._held = room, False
        self._admitted = asyncio.Event()
        """Set when the start no longer waits for `room`."""

    async def __aenter__(self) -> Self:
        self._started = asyncio.create_task(self._start())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._started.cancel()
        try:
            await asyncio.gather(self._started, return_exceptions=True)
        finally:
            try:
                await self._end()
            finally:
                if self._held:
                    self._room.release()

    async def ready(self, timer: Timer) -> None:
        """Wait for the start; call this first. From then on the workplace updates `timer`."""
        if not self._started.done():
            timer.enter("queue")
            await self._admitted.wait()
            timer.enter("start")
        await self._started
        timer.enter("tools")

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:  # Any: JSON
        """Make a tool call. Do not call this again after a result with `submitted`."""

    @abstractmethod
    async def work(self) -> str | Verdict:
        """Return the submission to grade, or its verdict."""

    @abstractmethod
    async def _begin(self) -> None: ...

    @abstractmethod
    async def _end(self) -> None: ...

    async def _start(self) -> None:
        try:
            self._held = await self._room.acquire()
        finally:
            self._admitted.set()
        await self._begin()


class OwnSandbox(Workplace):
    """A sandbox with the row's files; the artefact is graded, if one is configured."""

    def __init__(
        self, session: Session, row: Row, settings: Settings, room: asyncio.Semaphore
    ) -> None:
        super().__init__(room)
        files = {p: str(text).encode() for p, text in dict(row.task.get("files") or {}).items()}
        self._sandbox, self._artefact = session.sandbox(files=files), settings.artefact
        self._toolbox = Toolbox(self._sandbox, timeout=settings.tool_timeout)
        self.leaves_work, self.deadline = bool(settings.artefact), settings.deadline

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self._toolbox.call(name, arguments)

    async def work(self) -> str | Verdict:
        try:
            data = await self._sandbox.read_file(self._artefact, max_bytes=_MAX_ARTEFACT)
        except SandboxFileError as error:
            return verdict_of(error, Phase.EXPORTED)
        return data.decode(errors="replace")

    async def _begin(self) -> None:
        async with asyncio.timeout(self.deadline):
            await self._sandbox.start()

    async def _end(self) -> None:
        await self._sandbox.stop()


class SweTask(Workplace):
    """The SWE task of the row's `task_id`; its tests grade, in a fresh sandbox unless `in_place`.

    Its tests are timed as grading, unless the last allowed call triggers them.
    """

    def __init__(
        self,
        session: Session,
        tasks: Mapping[str, Task],
        row: Row,
        settings: Settings,
        room: asyncio.Semaphore,
    ) -> None:
        super().__init__(room)
        config = SweConfig(
            max_steps=settings.max_turns,
            tool_timeout=settings.tool_timeout,
            start_timeout=settings.deadline,
        )
        self._env, self._task_id = SweEnv(session, tasks, config), str(row.task["task_id"])
        # Tests that hang are the policy's failure, and may use their timeout in each grading attempt.
        self.deadline = settings.deadline + 3 * tasks[self._task_id].test_timeout
        self._last: Step | None = None
        self._timer: Timer | None = None

    async def ready(self, timer: Timer) -> None:
        self._timer = timer
        await super().ready(timer)

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

    async def _begin(self) -> None:
        self._last = await self._env.reset(self._task_id)

    async def _end(self) -> None:
        await self._env.close()
