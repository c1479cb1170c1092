"""Environments for `environment_factory`: one sandbox a rollout, with tools to work in it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxError,
    SandboxFileError,
    Session,
)
from sandboxkit.integrations._tools import truncate_middle
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.provider import Provider

__all__ = ["SandboxEnvironment", "SandboxEnvironments"]

Judge = Callable[[Sandbox, Mapping[str, Any]], Awaitable[Verdict]]
"""Grades what a rollout left in its sandbox; gets the data set's row."""


class SandboxEnvironments:
    """Makes a rollout's environment when TRL asks for one, and closes them all in the end.

        with SandboxEnvironments(judge, provider="docker") as environments:
            GRPOTrainer(environment_factory=environments, ...).train()

    TRL makes as many as a batch has rollouts, reuses them for the next and never closes one; so
    this owns the session and what runs in it. `timeout` bounds each tool call in seconds,
    `observation_limit` what a tool says, in characters, its middle left out. A row's `files`
    (paths to contents) are there when a rollout begins.
    """

    def __init__(
        self,
        judge: Judge | None = None,
        *,
        timeout: float = 30.0,
        observation_limit: int = 4000,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if timeout <= 0 or observation_limit < 100:
            raise ConfigurationError(
                f"timeout={timeout!r}, observation_limit={observation_limit!r}: give seconds "
                "above 0 and 100 characters or more"
            )
        self.session = Session(provider, max_concurrency=max_concurrency, **options)
        self.judge = judge
        self.timeout = timeout
        self.observation_limit = observation_limit

    def __call__(self) -> "SandboxEnvironment":
        """A new environment, without a sandbox until it is reset."""
        return SandboxEnvironment(self)

    def close(self) -> None:
        """Stop every sandbox of every environment."""
        self.session.close().result()

    def __enter__(self) -> "SandboxEnvironments":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SandboxEnvironment:
    """One rollout's sandbox. Its public methods are what the model may call, and no others.

    TRL calls `reset` and the tools one after the other over all rollouts of a batch, so `reset`
    only submits the sandbox's start and returns; the first tool call waits for it. A failure of
    the infrastructure is told to the model as an error, and makes the rollout's reward None.
    """

    def __init__(self, owner: SandboxEnvironments) -> None:
        self._owner = owner
        self._sandbox: Sandbox | None = None
        self._row: Mapping[str, Any] = {}
        self._failure: SandboxError | None = None

    # Any: a row of somebody's data set.
    def reset(self, **row: Any) -> None:
        """Begin a rollout: the last one's sandbox is stopped, a new one starts. Does not wait."""
        if self._sandbox is not None:
            self._sandbox.stop()
        self._row, self._failure = row, None
        files = {path: text.encode() for path, text in (row.get("files") or {}).items()}
        self._sandbox = self._owner.session.sandbox(files=files)
        self._sandbox.start()

    def bash(self, command: str) -> str:
        """
        Run a shell command in the sandbox and see its output and exit status.

        Args:
            command: The command, as you would type it into bash.
        """

        async def run(sandbox: Sandbox) -> str:
            try:
                result = await sandbox.exec(["bash", "-c", command], timeout=self._owner.timeout)
            except CommandTimeoutError as error:
                said = error.result.stdout + error.result.stderr
                return f"{said}\n[killed: it ran longer than {self._owner.timeout:g} seconds]"
            said = result.stdout + result.stderr
            return said if result.returncode == 0 else f"{said}\n[exit status {result.returncode}]"

        return self._tool(run)

    def read_file(self, path: str) -> str:
        """
        Read a text file.

        Args:
            path: Absolute path of the file.
        """

        async def run(sandbox: Sandbox) -> str:
            return (await sandbox.read_file(path)).decode(errors="replace")

        return self._tool(run)

    def write_file(self, path: str, content: str) -> str:
        """
        Write a text file, replacing what was there.

        Args:
            path: Absolute path of the file.
            content: The whole new content.
        """

        async def run(sandbox: Sandbox) -> str:
            await sandbox.write_file(path, content)
            return f"wrote {len(content.encode())} bytes to {path}"

        return self._tool(run)

    def edit(self, path: str, old: str, new: str) -> str:
        """
        Replace a passage of a text file, which must occur in it exactly once.

        Args:
            path: Absolute path of the file.
            old: The passage, exactly as it is in the file.
            new: What takes its place.
        """

        async def run(sandbox: Sandbox) -> str:
            text = (await sandbox.read_file(path)).decode()
            found = text.count(old) if old else 0
            if found != 1:
                return f"error: the passage occurs {found} times in {path}; it must occur once"
            await sandbox.write_file(path, text.replace(old, new))
            return f"edited {path}"

        return self._tool(run)

    def get_reward(self) -> float | None:
        """The judge's score of what is in the sandbox; None for a failure that is ours."""
        verdict = self._verdict()
        return None if verdict is None else verdict.reward

    def _verdict(self) -> Verdict | None:
        judge, sandbox = self._owner.judge, self._sandbox
        if judge is None or sandbox is None:
            return None
        if self._failure is not None:
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", str(self._failure))

        async def run() -> Verdict:
            try:
                return await judge(sandbox, self._row)
            except CommandTimeoutError as error:
                return Verdict(Outcome.TIMEOUT, 0.0, "policy", str(error))
            except SandboxFileError as error:  # what was asked for is not there
                return Verdict(Outcome.FAILED, 0.0, "policy", str(error))
            except ConfigurationError:
                raise
            except SandboxError as error:
                return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", str(error))

        return Operation(run()).result()

    def _tool(self, run: Callable[[Sandbox], Awaitable[str]]) -> str:
        async def call() -> str:
            assert self._sandbox is not None
            try:
                return await run(self._sandbox)
            except (SandboxFileError, UnicodeDecodeError) as error:
                return f"error: {error}"
            except ConfigurationError as error:
                return f"error: {error}"  # such as a path that is not absolute: the model's
            except SandboxError as error:
                self._failure = error
                return "error: the sandbox has failed; this rollout does not count"

        if self._sandbox is None:
            raise ConfigurationError("the environment was not reset before a tool was called")
        return truncate_middle(Operation(call()).result(), self._owner.observation_limit)
