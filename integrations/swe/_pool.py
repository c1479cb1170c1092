"""Runs many environments concurrently, with limits on live episodes and on set-ups."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._tools import Clock
from sandboxkit.integrations.swe._env import Metrics, Step, SweConfig, SweEnv
from sandboxkit.integrations.swe._setups import TaskSetups
from sandboxkit.integrations.swe._task import Task


@dataclass
class SwePool:
    """Runs at most `size` episodes at a time, of which at most `starts` are being set up.

    All episodes share one clock, which the trainer may pause and resume, and one set of metrics.
    """

    session: Session
    tasks: Mapping[str, Task]
    config: SweConfig = field(default_factory=SweConfig)
    size: int = 8
    starts: int = 4
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    setups: TaskSetups | None = None
    """If given, each task is set up once and its episodes start from a snapshot of the result."""

    def __post_init__(self) -> None:
        if self.size < 1 or self.starts < 1:
            raise ConfigurationError(f"size={self.size}, starts={self.starts}: both are at least 1")
        self._live = asyncio.Semaphore(self.size)
        self._starting = asyncio.Semaphore(self.starts)

    @asynccontextmanager
    async def episode(self, task_id: str) -> AsyncIterator[tuple[SweEnv, Step]]:
        """Wait for a free slot, start a task, and yield the environment and its first step."""
        async with (
            self._live,
            SweEnv(
                self.session, self.tasks, self.config, self.clock, self.metrics, self.setups
            ) as env,
        ):
            async with self._starting:
                first = await env.reset(task_id)
            yield env, first
