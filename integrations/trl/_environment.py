"""Environments for GRPOTrainer: one sandbox a rollout, with its tools and its reward."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

from sandboxkit import ConfigurationError, Operation, Sandbox, SandboxError, Session
from sandboxkit.integrations._tools import Toolbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl._failures import TooManyFailuresError, check_rate
from sandboxkit.provider import Provider

# Any: a row of somebody's data set.
Row = Mapping[str, Any]
Judge = Callable[[Sandbox, Row], Awaitable[Verdict]]
_GONE = "ERROR: the sandbox failed; nothing more can be done"


class EnvironmentPool:
    """Makes the environments of one trainer: pass it as `environment_factory=`, then close it.

    `judge(sandbox, row)` gives the verdict on a finished rollout, as `grade_in_fresh` does; a
    SandboxError out of it masks the rollout. `prepare(sandbox, row)` runs after the start, say
    to write the task's files. Both are coroutine functions that run on sandboxkit's thread.
    `tool_timeout` bounds each tool call and `start_timeout` the start with `prepare`, in
    seconds; observations are cut in the middle to `observation_limit` characters.

    TRL keeps the environments for the next batch and never closes them: leaving the context of
    the pool stops their sandboxes. `spec` is as for Session. There is no cap on sandboxes, as
    each rollout of a batch has one at a time. `failed_rate` is the share of masked rollouts
    since the pool was made; past `max_infra_failed_rate` over the last `window` of them, the
    reward raises TooManyFailuresError.
    """

    def __init__(
        self,
        judge: Judge,
        *,
        prepare: Callable[[Sandbox, Row], Awaitable[object]] | None = None,
        provider: str | Provider | None = None,
        tool_timeout: float = 60.0,
        start_timeout: float = 300.0,
        observation_limit: int = 16_000,
        max_infra_failed_rate: float = 0.5,
        window: int = 16,
        **spec: Any,  # Any: the fields of SandboxSpec, which Session checks
    ) -> None:
        check_rate(max_infra_failed_rate)
        if tool_timeout <= 0 or start_timeout <= 0 or window <= 0:
            raise ConfigurationError("tool_timeout, start_timeout and window are positive")
        self.judge, self.prepare = judge, prepare
        self.tool_timeout, self.start_timeout = tool_timeout, start_timeout
        self.observation_limit = observation_limit
        self._max_rate, self._window = max_infra_failed_rate, window
        self._session = Session(provider, **spec)
        self._environments: list[SandboxEnvironment] = []
        self._masked: list[bool] = []

    @property
    def failed_rate(self) -> float:
        """Masked rollouts over all that have a verdict; 0 before the first."""
        return sum(self._masked) / len(self._masked) if self._masked else 0.0

    def __call__(self) -> "SandboxEnvironment":
        """Make an environment; no sandbox is started before its `reset`."""
        environment = SandboxEnvironment(self)
        self._environments.append(environment)
        return environment

    def sandbox(self) -> Sandbox:
        """Make a sandbox for one rollout."""
        return self._session.sandbox()

    def judge_all(self) -> None:
        """Begin to judge every rollout in progress: TRL asks for rewards when all are done."""
        for environment in self._environments:
            environment._judge()  # private, as public methods are tools of the model

    def count(self, verdict: Verdict) -> None:
        """Count a rollout. Raises TooManyFailuresError past the permitted rate."""
        self._masked.append(verdict.outcome is Outcome.INFRA_ERROR)
        last = self._masked[-self._window :]
        if len(last) == self._window and sum(last) > self._max_rate * len(last):
            raise TooManyFailuresError(
                f"{sum(last)} of the last {len(last)} rollouts failed for reasons of the "
                f"infrastructure, more than {self._max_rate:g}; the last: {verdict.detail}"
            )

    def close(self) -> None:
        """Stop every sandbox. Idempotent."""
        self._session.close().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SandboxEnvironment:
    """What TRL drives: `reset` and `get_reward`, and every other public method is a tool."""

    def __init__(self, pool: EnvironmentPool) -> None:
        self._pool = pool
        self._rollout: _Rollout | None = None

    def reset(self, **row: Any) -> None:
        """Begin a rollout: its sandbox starts meanwhile, the last one's is stopped."""
        if self._rollout is not None:
            self._rollout.sandbox.stop()
        self._rollout = _Rollout(self._pool, row)

    def bash(self, command: str) -> str:
        """Run a bash script. The working directory and exported variables last.

        Args:
            command: The script to run.

        Returns:
            What it printed, and its exit status unless that is 0.
        """
        return self._call("bash", command=command)

    def read_file(self, path: str) -> str:
        """Show a text file with line numbers, or the entries of a folder.

        Args:
            path: Absolute path of the file or folder.

        Returns:
            The numbered lines.
        """
        return self._call("str_replace_editor", command="view", path=path)

    def write_file(self, path: str, content: str) -> str:
        """Write a whole text file, replacing what was there.

        Args:
            path: Absolute path of the file.
            content: The whole text.

        Returns:
            What was done.
        """
        return self._call("str_replace_editor", command="create", path=path, file_text=content)

    def edit(self, path: str, old: str, new: str) -> str:
        """Replace text that occurs exactly once in a file.

        Args:
            path: Absolute path of the file.
            old: The text to replace.
            new: The text to put there.

        Returns:
            The lines around the change.
        """
        return self._call(
            "str_replace_editor", command="str_replace", path=path, old_str=old, new_str=new
        )

    def get_reward(self) -> float | None:
        """Return the score in [0, 1], or None if the infrastructure failed; stops the sandbox."""
        if self._rollout is None:
            raise ConfigurationError("get_reward before reset: there is no rollout to score")
        self._pool.judge_all()
        return self._rollout.judged().result().reward

    def _call(self, tool: str, **arguments: Any) -> str:
        if self._rollout is None:
            raise ConfigurationError(f"{tool} before reset: there is no sandbox")
        return Operation(self._rollout.call(tool, arguments)).result()

    def _judge(self) -> None:
        if self._rollout is not None:
            self._rollout.judged()


class _Rollout:
    """One sandbox from `reset` to the verdict. Its coroutines run on sandboxkit's thread."""

    def __init__(self, pool: EnvironmentPool, row: Row) -> None:
        self._pool, self._row = pool, row
        self.sandbox = pool.sandbox()
        self._toolbox = Toolbox(
            self.sandbox, timeout=pool.tool_timeout, observation_limit=pool.observation_limit
        )
        self._failure: str | None = None
        self._verdict: Operation[Verdict] | None = None
        self._ready = Operation(self._start())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """Make a tool call once the sandbox has started; an error of ours ends the rollout."""
        if self._failure is None:
            try:
                await self._ready
                return (await self._toolbox.call(tool, arguments)).text
            except ConfigurationError:
                raise
            except (SandboxError, TimeoutError) as error:
                self._failure = f"{type(error).__name__}: {error}"
        return _GONE

    def judged(self) -> Operation[Verdict]:
        """The one verdict, counted once."""
        if self._verdict is None:
            self._verdict = Operation(self._judge())
        return self._verdict

    async def _start(self) -> None:
        async with asyncio.timeout(self._pool.start_timeout):
            await self.sandbox.start()
            if self._pool.prepare is not None:
                await self._pool.prepare(self.sandbox, self._row)

    async def _judge(self) -> Verdict:
        verdict: Verdict | None = None
        try:
            await self._ready
            if self._failure is None:
                verdict = await self._pool.judge(self.sandbox, self._row)
        except ConfigurationError:
            raise
        except (SandboxError, TimeoutError) as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self.sandbox.stop()  # not awaited: its deletion is no part of the reward
        if verdict is None:
            verdict = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", self._failure or "")
        self._pool.count(verdict)
        return verdict
