"""SweEnv: one task at a time, step by step, from a seeded sandbox to a reward."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Sandbox, SandboxError, Session
from sandboxkit.integrations._tools import SCHEMAS, Clock, Toolbox, ToolResult
from sandboxkit.integrations.rewards import TROUBLE, Outcome, Phase, Verdict, verdict_of
from sandboxkit.integrations.swe._grading import grade, make_sandbox
from sandboxkit.integrations.swe._metrics import Metrics
from sandboxkit.integrations.swe._task import Task

_LAST = "\n\n[This was the last step but one: the next call is the last. Submit if you are done.]"


@dataclass(frozen=True, slots=True)
class SweConfig:
    """Budgets of one episode, and what is taken off its score."""

    max_steps: int = 50
    max_tokens: int | None = None
    """Tokens that the caller reports with its steps; None for no limit."""
    tool_timeout: float = 120.0
    """Seconds for each call, on the environment's clock."""
    observation_limit: int = 16_000
    """Characters of each observation; the middle goes first."""
    start_timeout: float = 600.0
    """Seconds for a sandbox to start, waiting for room in the session included."""
    setup_retries: int = 2
    error_penalty: float = 0.0
    """Off the score for each call that was an error."""
    unsubmitted_penalty: float = 0.0
    """Off the score where the budget ended the episode."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.setup_retries < 0:
            raise ConfigurationError(f"{self!r}: max_steps >= 1 and setup_retries >= 0")


@dataclass(frozen=True, slots=True)
class Step:
    """What the environment answers."""

    observation: str
    done: bool = False
    reward: float | None = None
    """None before the end, and at the end where the infrastructure failed: mask that sample."""
    verdict: Verdict | None = None
    """Set once it is done."""
    error: bool = False
    """Whether the call was an error of the model's."""


@dataclass(slots=True)
class _Episode:
    task: Task
    sandbox: Sandbox
    tools: Toolbox
    started: float
    steps: int = 0
    tokens: int = 0
    errors: int = 0


@dataclass
class SweEnv:
    """An environment for one rollout at a time. `reset`, then `step` until it is done.

    It never raises for what a policy calls or leaves, which is graded, nor for the failures of
    the infrastructure: such an episode is done without a reward.
    `clock` may be paused with the trainer. A context manager; `close` stops the sandbox.
    """

    session: Session
    tasks: Mapping[str, Task]
    config: SweConfig = field(default_factory=SweConfig)
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    _episode: _Episode | None = field(default=None, init=False, repr=False)

    schemas = SCHEMAS
    """The tools, as OpenAI describes functions."""

    async def reset(self, task_id: str) -> Step:
        """Start a task; the observation is its instruction. An episode under way is dropped."""
        await self.close()
        if task_id not in self.tasks:
            raise ConfigurationError(f"no task {task_id!r}; there are {', '.join(self.tasks)}")
        task, started = self.tasks[task_id], time.monotonic()
        self.metrics.episodes += 1
        for attempt in range(self.config.setup_retries + 1):
            sandbox = make_sandbox(self.session, task)
            try:
                await _prepare(sandbox, task, self.config.start_timeout)
            except ConfigurationError:
                await sandbox.stop()
                raise
            except TROUBLE as error:
                self.metrics.setup_failures += 1
                await _stop(sandbox)
                if attempt == self.config.setup_retries:
                    return self._masked(verdict_of(error, Phase.STARTED), started)
            except BaseException:
                await sandbox.stop()
                raise
            else:
                tools = Toolbox(
                    sandbox,
                    cwd=task.workdir,
                    timeout=self.config.tool_timeout,
                    observation_limit=self.config.observation_limit,
                    clock=self.clock,
                )
                self._episode = _Episode(task, sandbox, tools, started)
                return Step(task.instruction)
        raise AssertionError("unreachable")

    # Any: a JSON object that a model wrote.
    async def step(self, name: str, arguments: str | Mapping[str, Any], *, tokens: int = 0) -> Step:
        """Make one tool call; `tokens` are those that the model spent on it."""
        episode = self._episode
        if episode is None:
            raise ConfigurationError("the episode is over, or none has begun: call reset() first")
        episode.steps += 1
        episode.tokens += tokens
        self.metrics.steps += 1
        try:
            result = await episode.tools.call(name, arguments)
        except TROUBLE as error:
            self._episode = None
            await _stop(episode.sandbox)
            ended = ToolResult("the sandbox ended", error=True)
            return self._over(episode, verdict_of(error, Phase.WORKED_IN), ended)
        episode.errors += result.error
        self.metrics.tool_errors += result.error
        if result.submitted or self._spent(episode):
            return await self._finish(episode, result)
        text = result.text
        if episode.steps == self.config.max_steps - 1:
            text += _LAST
        return Step(text, error=result.error)

    async def finish(self) -> Step:
        """End the episode as it is, for a model that stops calling tools, and grade it."""
        if self._episode is None:
            raise ConfigurationError("the episode is over, or none has begun: call reset() first")
        return await self._finish(self._episode, ToolResult("the episode is over"))

    async def close(self) -> None:
        """Drop the episode under way, if any, and stop its sandbox."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await _stop(episode.sandbox)

    async def __aenter__(self) -> "SweEnv":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _spent(self, episode: _Episode) -> bool:
        limit = self.config.max_tokens
        out_of_tokens = limit is not None and episode.tokens >= limit
        return out_of_tokens or episode.steps >= self.config.max_steps

    async def _finish(self, episode: _Episode, result: ToolResult) -> Step:
        try:
            await episode.tools.close()
            verdict = await grade(self.session, episode.task, episode.sandbox)
        except TROUBLE as error:
            verdict = verdict_of(error, Phase.GRADED)
        finally:
            self._episode = None
            await _stop(episode.sandbox)
        return self._over(episode, verdict, result)

    def _over(self, episode: _Episode, verdict: Verdict, result: ToolResult) -> Step:
        if verdict.reward is None:
            return self._masked(verdict, episode.started)
        reward = verdict.reward - self.config.error_penalty * episode.errors
        if not result.submitted:
            reward -= self.config.unsubmitted_penalty
        self.metrics.submitted += result.submitted
        self.metrics.passed += verdict.outcome is Outcome.PASSED
        self.metrics.shared += verdict.trust == "shared"
        self.metrics.reward_sum += reward
        self.metrics.seconds += time.monotonic() - episode.started
        return Step(result.text, True, reward, verdict, result.error)

    def _masked(self, verdict: Verdict, started: float) -> Step:
        self.metrics.masked += 1
        self.metrics.seconds += time.monotonic() - started
        return Step("the sandbox failed", True, None, verdict)


async def _prepare(sandbox: Sandbox, task: Task, start_timeout: float) -> None:
    try:
        async with asyncio.timeout(start_timeout):
            await sandbox.start()
    except TimeoutError:
        raise TimeoutError(f"the sandbox did not start within {start_timeout:g} s") from None
    if task.seeds is not None:
        await sandbox.upload(task.seeds, task.workdir)
    if task.setup is not None:
        await sandbox.exec(
            ["bash", "-c", task.setup], cwd=task.workdir, timeout=task.setup_timeout, check=True
        )


async def _stop(sandbox: Sandbox) -> None:
    """Stop one that may be broken; the session tries again when it closes."""
    try:
        await sandbox.stop()
    except SandboxError:
        pass
