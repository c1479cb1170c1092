"""Episodes: the basic agent loop, and many environments at once, with limits on episodes and on set-ups."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._tools import Clock
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe._env import Metrics, Step, SweConfig, SweEnv
from sandboxkit.integrations.swe._setups import TaskSetups
from sandboxkit.integrations.swe._task import Task

# Any: messages of OpenAI's chat completions API.
Message = dict[str, Any]
Policy = Callable[[Sequence[Message], Sequence[Message]], Awaitable[Message]]
"""A function of the messages and the tools' schemas that returns the assistant's next message."""


class Environment(Protocol):
    """An environment for `run_episode`, such as `SweEnv` or the result of `integrations.openenv.as_env`."""

    @property
    def schemas(self) -> Sequence[Message]: ...
    async def step(self, name: str, arguments: str | Mapping[str, Any]) -> Step: ...
    async def finish(self) -> Step: ...


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout: its messages and its reward."""

    messages: list[Message]
    reward: float | None
    """None if the infrastructure failed: mask the sample."""
    verdict: Verdict


async def run_episode(env: Environment, first: Step, policy: Policy) -> Episode:
    """Run a policy until the episode is done; `first` is the step that `env.reset` returned.

    A message without a tool call ends the episode.
    """
    messages: list[Message] = [{"role": "user", "content": first.observation}]
    step = first
    while not step.done:
        message = await policy(messages, env.schemas)
        messages.append(message)
        calls = message.get("tool_calls") or []
        if not calls:
            step = await env.finish()
        for call in calls:
            if step.done:
                text = "the episode was over before this call"
            else:
                function = call["function"]
                step = await env.step(function["name"], function["arguments"])
                text = step.observation
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    assert step.verdict is not None
    return Episode(messages, step.reward, step.verdict)


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
