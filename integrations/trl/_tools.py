"""Functions for `tools=`: each call in a sandbox of its own."""

import time
from collections.abc import Callable
from typing import Any

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    SandboxError,
    SandboxStartError,
    Session,
)
from sandboxkit.integrations._tools import truncate_middle
from sandboxkit.integrations.trl._told import told, told_killed
from sandboxkit.provider import Provider

_RETRIES = 2
_FIRST_PAUSE = 0.2


class SandboxTools:
    """Tools without memory, for models that only compute something with them.

        with SandboxTools(provider="docker") as tools:
            GRPOTrainer(tools=[tools.python, tools.bash], reward_funcs=..., ...).train()

    TRL does not say which rollout calls a function of `tools=`. So every call has a pristine
    sandbox, nothing lasts from one to the next, and a failure of the infrastructure cannot be
    charged to its rollout: it raises, and TRL tells the model of an error and counts it in
    `tools/failure_frequency`. Where that matters use `SandboxEnvironments`; the limits are
    the same as there.
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
        if min(timeout, start_timeout) <= 0 or observation_limit < 100:
            raise ConfigurationError(
                f"timeout={timeout!r}, start_timeout={start_timeout!r}, "
                f"observation_limit={observation_limit!r}: give seconds above 0 and 100 "
                "characters or more"
            )
        self.session = Session(provider, max_concurrency=max_concurrency, **options)
        self._timeout = timeout
        self._start_timeout = start_timeout
        self._limit = observation_limit

    @property
    def functions(self) -> list[Callable[[str], str]]:
        """All of them, as TRL takes them."""
        return [self.python, self.bash]

    def python(self, code: str) -> str:
        """
        Run a Python program and see what it prints.

        Args:
            code: The program. Nothing lasts from one call to the next.
        """
        return self._run(["python3", "-c", code])

    def bash(self, command: str) -> str:
        """
        Run a shell command and see its output and exit status.

        Args:
            command: The command. Nothing lasts from one call to the next.
        """
        return self._run(["bash", "-c", command])

    def close(self) -> None:
        """Stop what still runs."""
        self.session.close().result()

    def __enter__(self) -> "SandboxTools":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, argv: list[str]) -> str:
        for attempt in range(_RETRIES + 1):
            try:
                return truncate_middle(self._once(argv), self._limit)
            except SandboxError as error:
                if not error.retryable or attempt == _RETRIES:
                    raise
                time.sleep(_FIRST_PAUSE * 2**attempt)
        raise AssertionError("unreachable")

    def _once(self, argv: list[str]) -> str:
        process = self.session.run(argv, timeout=self._timeout)
        try:
            return told(process.result(self._timeout + self._start_timeout))
        except CommandTimeoutError as error:
            return told_killed(error, self._timeout)
        except TimeoutError:
            process.cancel()
            raise SandboxStartError(
                f"no sandbox and no answer within {self._start_timeout:g} s and the timeout",
                provider=self.session.provider_name,
            ) from None
