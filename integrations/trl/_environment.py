"""Environments for TRL's `environment_factory`: one sandbox per rollout, with tools to work in it."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sandboxkit import (
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxFileError,
    Session,
)
from sandboxkit.integrations._tools import Bash, ToolError, format_result, truncate_middle
from sandboxkit.integrations.rewards import TROUBLE, Outcome, Phase, Verdict, outlived, verdict_of
from sandboxkit.integrations.trl._rollout import Environments, RolloutEnvironment, Trace
from sandboxkit.provider import Provider

_log = logging.getLogger(__name__)

Judge = Callable[[Sandbox, Mapping[str, Any]], Awaitable[Verdict]]
"""A function of a rollout's sandbox and data set row that grades the rollout."""
_MAX_BYTES = 4 * 1024 * 1024
"""Maximum size in bytes of a file to read; the model sees only `observation_limit` of it."""
_FAILED = "error: the sandbox has failed; this rollout does not count"
_GRACE = 30.0
"""Seconds after its timeout by which a tool call must return."""
_SHELL_GRACE = 600.0
"""Seconds after its timeout by which a bash call must return; later is an infrastructure failure. It is
long because a rollout can slow down its own shell, whose operations have their own time limits."""


class SandboxEnvironments(Environments):
    """The `environment_factory` of a run: environments with a sandbox and tools to work in it.

        with SandboxEnvironments(judge, provider="docker") as environments:
            GRPOTrainer(
                environment_factory=environments, reward_funcs=EnvironmentReward(), ...
            ).train()

    `timeout` limits each tool call in seconds. `start_timeout` limits a sandbox's start, including
    the wait for a place under `max_concurrency`. `observation_limit` is the maximum length of a tool's result in characters;
    the middle of a longer one is left out. A row's `files` (path to content) are written before a
    rollout begins. A rollout's sandbox is stopped when the next rollout begins in the same environment.
    Stopping takes a while, so keep `max_concurrency` above the number of rollouts in a batch.

    With `get_reward` the environments have TRL's method of that name, and no reward function is
    needed. But TRL calls it for one rollout at a time, does not log infrastructure failures, and
    does not stop if there are too many. Raises ConfigurationError for invalid limits.
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
        if min(timeout, start_timeout) <= 0 or observation_limit < 100:
            raise ConfigurationError(
                f"timeout={timeout!r}, start_timeout={start_timeout!r}, "
                f"observation_limit={observation_limit!r}: give seconds above 0 and 100 "
                "characters or more"
            )
        self.session = Session(provider, max_concurrency=max_concurrency, **options)
        self.judge = judge
        self.timeout = timeout
        self.start_timeout = start_timeout
        self.observation_limit = observation_limit
        self._made = RewardedSandboxEnvironment if get_reward else SandboxEnvironment

    def __call__(self) -> "SandboxEnvironment":
        """Return a new environment; its `reset` starts a sandbox.

        Raises ProviderUnavailableError if the backend is not available.
        """
        self._require_backend()
        return self._made(self)


class SandboxEnvironment(RolloutEnvironment):
    """One rollout's sandbox. The model can call exactly its public methods, besides `reset`.

    TRL calls `reset` and the tools of all rollouts of a batch sequentially. So `reset` only begins
    to start the sandbox, and the first tool call waits for it. After an infrastructure failure the
    model sees an error, and the rollout's reward is None.
    """

    def __init__(self, owner: SandboxEnvironments) -> None:
        super().__init__()
        self._owner = owner
        self._sandbox: Sandbox | None = None
        self._bash: Bash | None = None
        self._row: Mapping[str, Any] = {}
        self._failure: Verdict | None = None

    # Any: a row of somebody's data set.
    def reset(self, **row: Any) -> None:
        """Begin a rollout: stop the previous sandbox and start a new one, without waiting for either."""
        if self._sandbox is not None:
            self._sandbox.stop()
        self._row, self._failure, self._trace = row, None, Trace()
        self._ready = math.inf  # when the sandbox had started (monotonic seconds)
        files = {path: text.encode() for path, text in (row.get("files") or {}).items()}
        self._sandbox, self._bash = self._owner.session.sandbox(files=files), None
        self._sandbox.start()

    def bash(self, command: str, as_input: bool = False) -> str:
        """
        Run a bash script in a persistent shell: its directory, variables, functions and jobs are kept for the next call. A script that exceeds the time limit keeps running; then an empty command waits for more output, the command C-c stops it, and as_input types the command into it.

        Args:
            command: The script to run.
            as_input: Whether the command is input for the script that is still running.
        """

        async def run(sandbox: Sandbox) -> str:
            if self._bash is None:
                self._bash = Bash(sandbox, timeout=self._owner.timeout)
            try:
                result = await self._bash.run(command, as_input=as_input is True)
            except ToolError as error:
                return f"error: {error}"
            return format_result(result, self._owner.timeout, self._owner.observation_limit).text

        return self._tool("bash", run, command=command)

    def read_file(self, path: str) -> str:
        """
        Read a text file.

        Args:
            path: Absolute path of the file.
        """

        async def run(sandbox: Sandbox) -> str:
            return (await sandbox.read_file(path, max_bytes=_MAX_BYTES)).decode(errors="replace")

        return self._tool("read_file", run, path=path)

    def write_file(self, path: str, content: str) -> str:
        """
        Write a text file, or replace an existing one.

        Args:
            path: Absolute path of the file.
            content: The whole new content.
        """

        async def run(sandbox: Sandbox) -> str:
            await sandbox.write_file(path, content)
            return f"wrote {len(content.encode())} bytes to {path}"

        return self._tool("write_file", run, path=path, content=content)

    def edit(self, path: str, old: str, new: str) -> str:
        """
        Replace a passage of a text file, which must occur in it exactly once.

        Args:
            path: Absolute path of the file.
            old: The passage, exactly as it is in the file.
            new: The text that replaces it.
        """

        async def run(sandbox: Sandbox) -> str:
            text = (await sandbox.read_file(path, max_bytes=_MAX_BYTES)).decode()
            found = text.count(old) if old else 0
            if found != 1:
                return f"error: the passage occurs {found} times in {path}; it must occur once"
            await sandbox.write_file(path, text.replace(old, new))
            return f"edited {path}"

        return self._tool("edit", run, path=path, old=old, new=new)

    def _quiet(self) -> float:
        return self._owner.session.quiet

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
                if self._bash is not None:
                    # End the shell's processes, which could otherwise change files during grading.
                    await self._bash.close()
                return await self._owner.judge(self._sandbox, self._row)
        except TROUBLE as error:
            # "shared": the judge inspected the sandbox that the rollout controlled.
            verdict = verdict_of(error, phase, trust="shared")
            return self._blamed(error, verdict) if phase is Phase.GRADED else verdict
        except Exception as error:  # noqa: BLE001 - the judge is the author's code, and what it read is hostile
            detail = f"the judge raised {ascii(error)[:500]}"
            _log.warning("%s; the rollout counts as failed", detail, exc_info=error)
            return Verdict(Outcome.FAILED, 0.0, "policy", detail)

    def _blamed(self, error: Exception, verdict: Verdict) -> Verdict:
        """Return the verdict on an error of a sandbox that had started; its lifetime is the policy's to keep."""
        assert self._sandbox is not None
        over = outlived(error, self._sandbox, self._ready) if verdict.reward is None else None
        return over or verdict

    async def _started(self, sandbox: Sandbox) -> None:
        seconds = self._owner.start_timeout
        try:
            async with asyncio.timeout(seconds):
                await sandbox.start()
            self._ready = min(self._ready, time.monotonic())
        except TimeoutError:
            raise ProviderUnavailableError(
                f"the sandbox did not start within start_timeout={seconds:g} s; is "
                "max_concurrency below the number of rollouts in a batch?",
                provider=sandbox.provider_name,
            ) from None

    # Any: arguments written by a model; TRL does not check their types.
    def _tool(self, name: str, run: Callable[[Sandbox], Awaitable[str]], **arguments: Any) -> str:
        trace = self._trace
        seconds = self._owner.timeout + (_SHELL_GRACE if name == "bash" else _GRACE)

        async def call(sandbox: Sandbox) -> str:
            try:
                with trace.spend("start"):
                    await self._started(sandbox)
            except TROUBLE as error:
                self._failure = verdict_of(error, Phase.STARTED)
                return _FAILED
            try:
                async with asyncio.timeout(seconds):
                    with trace.spend("tools"):
                        return await run(sandbox)
            except (SandboxFileError, UnicodeError, ConfigurationError) as error:
                return f"error: {error}"  # a mistake of the model, such as a relative path
            except TROUBLE as error:
                self._failure = self._blamed(error, verdict_of(error, Phase.WORKED_IN))
                return _FAILED if self._failure.reward is None else f"error: {error}"

        if self._sandbox is None:
            raise ConfigurationError("the environment was not reset before a tool was called")
        begun = time.monotonic()
        wrong = [each for each, value in arguments.items() if not isinstance(value, str)]
        if wrong:
            observation = f"error: {wrong[0]} is not a string"
        else:
            observation = Operation(call(self._sandbox)).result()
        observation = truncate_middle(observation, self._owner.observation_limit)
        trace.add_call(name, arguments, observation, observation.startswith("error: "), begun)
        return observation


class RewardedSandboxEnvironment(SandboxEnvironment):
    """An environment with `get_reward`, from which TRL reads the reward."""

    def get_reward(self) -> float | None:
        """Grade the sandbox; return the score, or None after an infrastructure failure."""
        return self._reward()
