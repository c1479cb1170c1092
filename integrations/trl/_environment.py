"""Environments for TRL's `environment_factory`: one sandbox per rollout, with tools to work in it."""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sandboxkit import (
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
)
from sandboxkit.integrations._tools import (
    BASH,
    EDITOR,
    Toolbox,
    ToolResult,
    refusal,
    truncate_middle,
)
from sandboxkit.integrations.rewards import (
    TROUBLE,
    Outcome,
    Phase,
    Verdict,
    time_for_calls,
    verdict_of,
)
from sandboxkit.integrations.trl._rollout import (
    Environments,
    RolloutEnvironment,
    Trace,
    require_limits,
    tool_method,
)
from sandboxkit.provider import Provider

_log = logging.getLogger(__name__)

Judge = Callable[[Sandbox, Mapping[str, Any]], Awaitable[Verdict]]
"""A function of a rollout's sandbox and data set row that grades the rollout."""
_GRACE = 600.0
"""Seconds after its timeout by which a tool call must return; later is an infrastructure failure. It is
long because a rollout can slow down its own sandbox; the tools' operations have their own time limits."""


class SandboxEnvironments(Environments["SandboxEnvironment"]):
    """The `environment_factory` of a run: environments with a sandbox and tools to work in it.

        with SandboxEnvironments(judge, provider="docker") as environments:
            GRPOTrainer(
                environment_factory=environments, reward_funcs=EnvironmentReward(), ...
            ).train()

    `timeout` limits each tool call in seconds; all of a rollout may take half of the sandbox's lifetime. `start_timeout` limits a sandbox's start, including
    the wait for a place under `max_concurrency`. `observation_limit` is the maximum length of a tool's result in characters;
    the middle of a longer one is left out. A row's `files` (path to content) are written before a
    rollout begins. A rollout's sandbox is stopped when the next rollout begins in the same environment.
    Stopping takes a while, so keep `max_concurrency` above the number of rollouts in a batch.

    With `get_reward` the environments have TRL's method of that name, and no reward function is
    needed. But TRL calls it for one rollout at a time and does not log infrastructure failures; after 64
    of them in a row it raises ProviderUnavailableError. Raises ConfigurationError for invalid limits.

    AsyncGRPOTrainer pickles this object, so the judge has to be a function of a module. Its worker opens its
    own session, with environments that have `get_reward`.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        timeout: float = 30.0,
        start_timeout: float = 300.0,
        observation_limit: int = 4000,
        get_reward: bool = False,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        require_limits(timeout, start_timeout, observation_limit)
        call = judge if inspect.isfunction(judge) else getattr(judge, "__call__", None)  # noqa: B004
        if not inspect.iscoroutinefunction(call):
            raise ConfigurationError(
                f"judge={judge!r} is no coroutine function: write 'async def judge(sandbox, row)', which returns a "
                "Verdict(outcome, score)"
            )
        self._open(provider, max_concurrency, options)
        self.judge = judge
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.observation_limit = observation_limit
        self._rewarded = RewardedSandboxEnvironment
        self._made = RewardedSandboxEnvironment if get_reward else SandboxEnvironment


class SandboxEnvironment(RolloutEnvironment):
    """One rollout's sandbox. The model can call exactly its public methods, besides `reset`.

    TRL calls `reset` and the tools of all rollouts of a batch sequentially. So `reset` only begins
    to start the sandbox, and the first tool call waits for it. After an infrastructure failure the
    model sees an error, and the rollout's reward is None.
    """

    def __init__(self, owner: SandboxEnvironments) -> None:
        super().__init__(owner.session)
        self._owner = owner
        self._sandbox: Sandbox | None = None
        self._toolbox: Toolbox | None = None
        self._row: Mapping[str, Any] = {}
        self._failure: Verdict | None = None
        self._seconds = math.inf  # that the tool calls of the rollout may take

    # Any: a row of somebody's data set.
    def reset(self, **row: Any) -> None:
        """Begin a rollout: stop the previous sandbox and start a new one, without waiting for either."""
        if self._sandbox is not None:
            self._sandbox.stop()
        self._row, self._failure, self._trace = row, None, Trace()
        files = {path: text.encode() for path, text in (row.get("files") or {}).items()}
        self._sandbox = self._owner.session.sandbox(files=files)
        self._toolbox = Toolbox(
            self._sandbox,
            timeout=self._owner.timeout,
            observation_limit=self._owner.observation_limit,
        )
        self._seconds = time_for_calls(self._sandbox.spec.lifetime, self._owner.timeout)
        self._sandbox.start()

    bash = tool_method(BASH)
    str_replace_editor = tool_method(EDITOR)

    async def _grade(self) -> tuple[Verdict, float | None]:
        verdict = await self._verdict()
        return verdict, verdict.reward

    async def _verdict(self) -> Verdict:
        if self._sandbox is None:
            raise ConfigurationError("the environment was not reset before it was graded")
        if self._failure is not None:
            return self._failure
        phase = Phase.STARTED
        try:
            with self._trace.spend("start"):
                await self._started(self._sandbox)
            phase = Phase.GRADED
            with self._trace.spend("grading"):
                if self._toolbox is not None:
                    # End the shell's processes, which could otherwise change files during grading.
                    await self._toolbox.close()
                verdict = await self._owner.judge(self._sandbox, self._row)
        except TROUBLE as error:
            # "shared": the judge inspected the sandbox that the rollout controlled.
            return verdict_of(error, phase, trust="shared")
        except Exception as error:  # noqa: BLE001 - the judge is the author's code, and what it read is hostile
            detail = f"the judge raised {ascii(error)[:500]}"
            _log.warning("%s; the rollout counts as failed", detail, exc_info=error)
            return Verdict(Outcome.FAILED, 0.0, "policy", detail)
        if not isinstance(verdict, Verdict):
            raise ConfigurationError(
                f"the judge returned {verdict!r}: return Verdict(Outcome.PASSED, 1.0) or another Verdict(outcome, score)"
            )
        return verdict

    async def _started(self, sandbox: Sandbox) -> None:
        seconds = self._owner.start_timeout
        try:
            async with asyncio.timeout(seconds):
                await sandbox.start()
        except TimeoutError:
            raise ProviderUnavailableError(
                f"the sandbox did not start within start_timeout={seconds:g} s; is "
                "max_concurrency below the number of rollouts in a batch?",
                provider=sandbox.provider_name,
            ) from None

    # Any: arguments written by a model.
    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if self._sandbox is None or self._toolbox is None:
            raise ConfigurationError("the environment was not reset before a tool was called")
        if self._trace.seconds.get("tools", 0.0) >= self._seconds:
            return refusal(f"the calls of this rollout have used their {self._seconds:g} s")
        phase = Phase.STARTED
        try:
            with self._trace.spend("start"):
                await self._started(self._sandbox)
            phase = Phase.WORKED_IN
            async with asyncio.timeout(self._owner.timeout + _GRACE):
                with self._trace.spend("tools"):
                    return await self._toolbox.call(name, arguments)
        except TROUBLE as error:
            self._failure = verdict_of(error, phase)
            if self._failure.reward is None:
                return refusal("the sandbox has failed; this rollout does not count")
            return refusal(truncate_middle(str(error), self._owner.observation_limit))


class RewardedSandboxEnvironment(SandboxEnvironment):
    """An environment with `get_reward`, from which TRL reads the reward."""

    def get_reward(self) -> float | None:
        """Grade the sandbox; return the score, or None after an infrastructure failure."""
        return self._owner.note(*Operation(self._grade()).result())
