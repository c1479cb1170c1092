"""SweEnv: an environment that runs one SWE task at a time, from a seeded sandbox to a reward."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import (
    CommandError,
    CommandTimeoutError,
    ConfigurationError,
    Sandbox,
    Session,
    Snapshot,
    SnapshotNotFoundError,
)
from sandboxkit.integrations._outages import stop_broken
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations._tools import SCHEMAS, Clock, Toolbox, ToolResult, truncate_middle
from sandboxkit.integrations.rewards import (
    TROUBLE,
    Outcome,
    Phase,
    Verdict,
    time_for_calls,
    verdict_of,
)
from sandboxkit.integrations.swe._grading import grade, make_sandbox, with_image
from sandboxkit.integrations.swe._setups import TaskSetups
from sandboxkit.integrations.swe._shared import make_folders, make_logs
from sandboxkit.integrations.swe._task import Task

_SOLUTION = "/solution/solve.sh"
_LAST = "\n\n[This was the last step but one: the next call is the last. Submit if you are done.]"


@dataclass(frozen=True, slots=True)
class SweConfig:
    """Budgets of one episode, and the penalties on its score."""

    max_steps: int = 50
    max_tokens: int | None = None
    """Maximum number of tokens, summed over `step(tokens=...)`; None: no limit."""
    tool_timeout: float = 120.0
    """Time limit of each call in seconds, on the environment's clock. All calls together may take half of the
    sandbox's lifetime; then the episode is over."""
    observation_limit: int = 16_000
    """Maximum characters of an observation. The middle of a longer one is left out."""
    start_timeout: float = 600.0
    """Time limit in seconds for a sandbox to start, including the session's queue."""
    setup_retries: int = 2
    """Maximum number of retries of the sandbox's start and set-up."""
    error_penalty: float = 0.0
    """Subtracted from the score for each call that is an error."""
    unsubmitted_penalty: float = 0.0
    """Subtracted from the score if the episode ends without a submission."""

    def __post_init__(self) -> None:
        if self.max_steps < 1 or self.setup_retries < 0:
            raise ConfigurationError(f"{self!r}: max_steps >= 1 and setup_retries >= 0")


@dataclass(slots=True)
class Metrics:
    """Counts over all episodes. `seconds` is the sum of their times from reset to verdict."""

    episodes: int = 0
    passed: int = 0
    masked: int = 0
    """Episodes without a reward, because the infrastructure failed."""
    shared: int = 0
    """Verdicts with `trust="shared"`: the tests ran programs in the submission's sandbox."""
    submitted: int = 0
    steps: int = 0
    tool_errors: int = 0
    setup_failures: int = 0
    """Failed attempts to set up a sandbox, including those whose retry succeeded."""
    reward_sum: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The environment's response to `reset`, `step` or `finish`."""

    observation: str
    done: bool = False
    reward: float | None = None
    """None until `done`. None when done means an infrastructure failure: mask the sample."""
    verdict: Verdict | None = None
    """Set when the episode is done."""
    error: bool = False
    """Whether the call was a mistake of the model."""


@dataclass(slots=True)
class _Episode:
    task: Task
    sandbox: Sandbox
    tools: Toolbox
    started: float
    left: float
    """Seconds that the policy's calls may still take."""
    steps: int = 0
    tokens: int = 0
    errors: int = 0


@dataclass
class SweEnv:
    """An environment for one rollout at a time: call `reset`, then `step` until it is done.

    The policy's mistakes become observations. An infrastructure failure raises nothing either: it ends
    the episode with the reward None. While `clock` is paused, time limits of tool calls do not run.
    This is a context manager; `close` stops the sandbox.
    """

    session: Session
    tasks: Mapping[str, Task]
    config: SweConfig = field(default_factory=SweConfig)
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    setups: TaskSetups | None = None
    """If given, each task is set up once and its episodes start from a snapshot of the result."""
    _episode: _Episode | None = field(default=None, init=False, repr=False)

    schemas = SCHEMAS
    """The tools, in the format of OpenAI's chat completions API."""

    async def reset(self, task_id: str) -> Step:
        """Drop the current episode and start a task; the observation is its instruction.

        If the sandbox cannot be started, the step is done, without a reward. Raises ConfigurationError
        for an unknown task.
        """
        await self.close()
        if task_id not in self.tasks:
            raise ConfigurationError(f"no task {task_id!r}; there are {', '.join(self.tasks)}")
        task, started = self.tasks[task_id], time.monotonic()
        self.metrics.episodes += 1

        async def once() -> Sandbox:
            return await self._set_up(task)

        def again(error: Exception, failures: int) -> bool:
            trouble = isinstance(error, TROUBLE) and not isinstance(error, ConfigurationError)
            self.metrics.setup_failures += trouble
            return trouble and failures <= self.config.setup_retries

        try:
            sandbox = await retry(once, again)
        except TROUBLE as error:
            return self._masked(verdict_of(error, Phase.STARTED), started)
        left = time_for_calls(sandbox.spec.lifetime, self.config.tool_timeout)
        left = min(left, task.agent_timeout or left)
        tools = Toolbox(
            sandbox,
            cwd=task.workdir,
            timeout=min(left, self.config.tool_timeout),
            observation_limit=self.config.observation_limit,
            clock=self.clock,
        )
        self._episode = _Episode(task, sandbox, tools, started, left)
        return Step(task.instruction)

    async def _set_up(self, task: Task) -> Sandbox:
        """Return a started sandbox after the task's set-up, from `setups`' snapshot if there is one."""
        task, seconds = await with_image(self.session, task), self.config.start_timeout

        async def prepared(snapshot: Snapshot | None = None) -> Sandbox:
            sandbox = make_sandbox(self.session, task, snapshot=snapshot)
            time_for_calls(sandbox.spec.lifetime, self.config.tool_timeout)
            try:
                await _start(sandbox, seconds)
                if snapshot is None:
                    await _prepare(sandbox, task)
                await _wait_until_healthy(sandbox, task)
            except BaseException:
                await stop_broken(sandbox)
                raise
            return sandbox

        if self.setups is None or (task.seeds is None and task.setup is None):
            return await prepared()
        try:
            return await prepared(await self.setups.of(task, prepared))
        except SnapshotNotFoundError:
            self.setups.forget(task)
            raise

    # Any: a JSON object written by a model.
    async def step(self, name: str, arguments: str | Mapping[str, Any], *, tokens: int = 0) -> Step:
        """Execute one tool call of the model, which used `tokens` tokens for it; return the observation.

        Raises ConfigurationError if no episode is in progress.
        """
        episode = self._episode
        if episode is None:
            raise ConfigurationError("the episode is over, or none has begun: call reset() first")
        episode.steps += 1
        episode.tokens += tokens
        self.metrics.steps += 1
        begun = self.clock.time()
        try:
            result = await episode.tools.call(name, arguments)
        except TROUBLE as error:
            return await self._lost(episode, error)
        episode.left -= self.clock.time() - begun
        episode.errors += result.error
        self.metrics.tool_errors += result.error
        if result.submitted or self._spent(episode):
            return await self._finish(episode, result)
        text = result.text
        if episode.steps == self.config.max_steps - 1:
            text += _LAST
        return Step(text, error=result.error)

    async def solve(self) -> Step:
        """Run the task's own solution in the place of a policy, as Harbor's oracle does, and grade the result.

        It is copied to /solution, its time limit is the agent's, and its output is the observation. Neither its
        exit status nor a timeout is an error. Raises ConfigurationError if the task has no solution, or if no
        episode is in progress.
        """
        if (episode := self._episode) is None:
            raise ConfigurationError("the episode is over, or none has begun: call reset() first")
        try:
            output = await _solve(episode.sandbox, episode.task)
        except ConfigurationError:
            raise
        except TROUBLE as error:
            return await self._lost(episode, error)
        text = truncate_middle(output, self.config.observation_limit)
        return await self._finish(episode, ToolResult(text, submitted=True))

    async def finish(self) -> Step:
        """Grade the current state and end the episode, for a model that stops calling tools.

        Raises ConfigurationError if no episode is in progress.
        """
        if self._episode is None:
            raise ConfigurationError("the episode is over, or none has begun: call reset() first")
        return await self._finish(self._episode, ToolResult("the episode is over"))

    async def close(self) -> None:
        """Drop the current episode, if any, and stop its sandbox."""
        episode, self._episode = self._episode, None
        if episode is not None:
            await stop_broken(episode.sandbox)

    async def __aenter__(self) -> "SweEnv":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _spent(self, episode: _Episode) -> bool:
        limit = self.config.max_tokens
        out_of_tokens = limit is not None and episode.tokens >= limit
        return out_of_tokens or episode.steps >= self.config.max_steps or episode.left <= 0

    async def _lost(self, episode: _Episode, error: Exception) -> Step:
        self._episode = None
        await stop_broken(episode.sandbox)
        ended = ToolResult("the sandbox ended", error=True)
        return self._over(episode, verdict_of(error, Phase.WORKED_IN), ended)

    async def _finish(self, episode: _Episode, result: ToolResult) -> Step:
        try:
            await episode.tools.close()
            verdict = await grade(self.session, episode.task, episode.sandbox)
        except TROUBLE as error:
            verdict = verdict_of(error, Phase.GRADED)
        finally:
            self._episode = None
            await stop_broken(episode.sandbox)
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


async def _start(sandbox: Sandbox, start_timeout: float) -> None:
    try:
        async with asyncio.timeout(start_timeout):
            await sandbox.start()
    except TimeoutError:
        raise TimeoutError(f"the sandbox did not start within {start_timeout:g} s") from None


async def _wait_until_healthy(sandbox: Sandbox, task: Task) -> None:
    """Repeat the task's healthcheck until it succeeds. Raises CommandError after its last retry."""
    if (check := task.healthcheck) is None:
        return
    begun, failures = time.monotonic(), 0
    while True:
        is_starting = time.monotonic() - begun < check.start_period_sec
        try:
            await sandbox.exec(
                ["bash", "-c", check.command],
                cwd=task.workdir,
                timeout=check.timeout_sec,
                check=True,
            )
            return
        except CommandError:
            failures += not is_starting
            if failures >= check.retries and not is_starting:
                raise
        await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


async def _prepare(sandbox: Sandbox, task: Task) -> None:
    if task.reward_decides:
        await make_logs(sandbox)
    if task.seeds is not None:
        await sandbox.upload(task.seeds, task.workdir)
    if task.setup is not None:
        await sandbox.exec(
            ["bash", "-c", task.setup], cwd=task.workdir, timeout=task.setup_timeout, check=True
        )
    if task.setup_network is not None:
        await sandbox.set_network(task.network or "none")


async def _solve(sandbox: Sandbox, task: Task) -> str:
    if task.solution is None:
        raise ConfigurationError(f"task {task.id!r} has no solution: give it solution/solve.sh")
    await make_folders(sandbox, "/solution")
    if isinstance(task.solution, str):
        await sandbox.write_file(_SOLUTION, task.solution)
    else:
        await sandbox.upload(task.solution, "/solution")
    try:
        result = await sandbox.exec(
            ["bash", "-c", 'chmod +x "$0" && "$0" 2>&1', _SOLUTION],
            cwd=task.workdir,
            env={"DEBIAN_FRONTEND": "noninteractive", **task.solution_env},
            timeout=task.agent_timeout,
        )
    except CommandTimeoutError as error:
        return f"{error.result.stdout}[the solution ran past {task.agent_timeout:g} s]"
    return f"{result.stdout}[exit status {result.returncode}]"
