"""Functions for TRL's `tools=`; each call gets its own sandbox."""

import asyncio
from collections.abc import Callable
from typing import Any

from sandboxkit import (
    CommandTimeoutError,
    Operation,
    SandboxError,
    SandboxStartError,
)
from sandboxkit.integrations._retries import retry
from sandboxkit.integrations._tools import killed_after, truncate_middle
from sandboxkit.integrations.trl._rollout import OwnsSession, require_limits
from sandboxkit.provider import Provider

_RETRIES = 2
_MOST_ARGUMENT = 100 << 10
"""The longest program in bytes that is passed as an argument; Linux takes 128 KiB."""
_FILE = "/workspace/program"


class SandboxTools(OwnsSession):
    """Stateless tools `python` and `bash`, for models that use them only to compute something.

        with SandboxTools(provider="docker") as tools:
            GRPOTrainer(tools=[tools.python, tools.bash], reward_funcs=..., ...).train()

    TRL does not pass the rollout to a function of `tools=`. So every call gets a pristine sandbox
    and no state is kept between calls. An infrastructure failure cannot be attributed to its
    rollout: the call raises, TRL shows the model an error and counts it in
    `tools/failure_frequency`. Use `SandboxEnvironments` if that matters. The limits have the
    same meaning as there. In AsyncGRPOTrainer's worker, which gets a pickled copy, the tools open a session
    of their own.
    """

    def __init__(
        self,
        *,
        timeout: float = 30.0,
        start_timeout: float = 300.0,
        observation_limit: int = 4000,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        require_limits(timeout, start_timeout, observation_limit)
        self._open(provider, max_concurrency, options)
        self._timeout = timeout
        self._start_timeout = start_timeout
        self._limit = observation_limit

    @property
    def functions(self) -> list[Callable[[str], str]]:
        """All tools, for the trainer's `tools=`."""
        return [self.python, self.bash]

    def python(self, code: str) -> str:
        """
        Run a Python program and return its output.

        Args:
            code: The program. No state is kept between calls.
        """
        return self._run("python3", code)

    def bash(self, command: str) -> str:
        """
        Run a shell command and return its output and exit status.

        Args:
            command: The command. No state is kept between calls.
        """
        return self._run("bash", command)

    def _run(self, program: str, code: str) -> str:
        data = code.encode(errors="surrogatepass")
        argv, files = [program, "-c", code], {}
        if len(data) >= _MOST_ARGUMENT or "\0" in code or data != code.encode(errors="replace"):
            argv, files = [program, _FILE], {_FILE: data}  # no argument can hold it

        def again(error: Exception, failures: int) -> bool:
            return isinstance(error, SandboxError) and error.retryable and failures <= _RETRIES

        return truncate_middle(
            Operation(retry(lambda: self._once(argv, files), again)).result(), self._limit
        )

    async def _once(self, argv: list[str], files: dict[str, bytes]) -> str:
        try:
            async with asyncio.timeout(self._timeout + self._start_timeout):
                result = await self.session.run(argv, timeout=self._timeout, files=files)
            note = f"\n[exit status {result.returncode}]" if result.returncode else ""
        except CommandTimeoutError as error:
            result, note = error.result, f"\n{killed_after(self._timeout)}"
        except TimeoutError:
            raise SandboxStartError(
                f"no sandbox and no result within start_timeout={self._start_timeout:g} s plus timeout",
                provider=self.session.provider_name,
            ) from None
        return result.stdout + result.stderr + note
