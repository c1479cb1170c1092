"""The sandbox under test, helpers with time limits, and the result of one check."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sandboxkit import Operation, Process, ProcessResult, Sandbox, SandboxError, Session
from sandboxkit._arguments import Content

T = TypeVar("T")

COMMAND_SECONDS = 60.0
"""Time limit (s) of a command that waits for nothing."""
_CALL_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    check: str
    expected: str
    seen: str
    held: bool | None
    """Whether the expectation held. None: it cannot be checked here, for the reason in `seen`."""
    seconds: float


class DifferentError(Exception):
    """The observed behaviour differs from the expected one."""


class UncheckableError(Exception):
    """The behaviour cannot be checked on this backend or image."""


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour to check. `run` returns a text about what it saw, or raises one of the errors above."""

    name: str
    expected: str
    run: "Callable[[LiveSubject], str]"

    def row(self, subject: "LiveSubject") -> CheckResult:
        """Run the check and return its result; after an error of the backend, `held` is False."""
        began = time.monotonic()
        held: bool | None = True
        try:
            seen = self.run(subject)
        except UncheckableError as error:
            seen, held = str(error), None
        except DifferentError as error:
            seen, held = str(error), False
        except (SandboxError, OSError) as error:  # a TimeoutError is an OSError
            seen, held = f"{type(error).__name__}: {error}", False
        return CheckResult(self.name, self.expected, seen, held, round(time.monotonic() - began, 3))


@dataclass(frozen=True, slots=True)
class LiveSubject:
    """A started sandbox under test, and the values with which it was started."""

    session: Session
    sandbox: Sandbox
    again: Callable[[], Session]
    """Opens another session with the same backend, as an independent client."""
    tag: str
    variable: str
    secret: str
    silence: float
    start_seconds: float

    @property
    def workdir(self) -> str:
        """The folder in which commands start."""
        return self.sandbox.spec.workdir or "/workspace"

    def start(
        self,
        script: str,
        *args: str,
        timeout: float = COMMAND_SECONDS,
        stdin: Content | bool | None = None,
        env: Mapping[str, str] | None = None,
        output_limit: int | None = None,
    ) -> Process:
        """Start a shell script."""
        argv = ["sh", "-c", script, "sh", *args]
        return self.sandbox.exec(
            argv, timeout=timeout, stdin=stdin, env=env, output_limit=output_limit
        )

    def run(
        self,
        script: str,
        *args: str,
        timeout: float = COMMAND_SECONDS,
        stdin: Content | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ProcessResult:
        """Run a shell script to its end, whatever its status."""
        process = self.start(script, *args, timeout=timeout, stdin=stdin, env=env)
        return bounded(process, timeout + _CALL_SECONDS)

    def output_of(self, script: str, *args: str) -> str:
        """Run a script and return its output, stripped. Raises DifferentError if it failed."""
        result = self.run(script, *args)
        if result.returncode:
            raise DifferentError(
                f"{script!r} exited with {result.returncode}: {result.stderr.strip()[-200:]}"
            )
        return result.stdout.strip()


def bounded(operation: Operation[T], seconds: float = _CALL_SECONDS) -> T:
    """Return the operation's result. After `seconds`, cancel it and raise TimeoutError."""
    try:
        return operation.result(seconds)
    except TimeoutError:
        if not operation.done():
            operation.cancel()
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise


def expect(holds: bool, seen: str) -> None:
    """Raise DifferentError with the message `seen` unless `holds`."""
    if not holds:
        raise DifferentError(seen)


def wait_until(holds: Callable[[], bool], seconds: float) -> float:
    """Poll until `holds()`; return the seconds it took. Raises DifferentError after `seconds`."""
    began = time.monotonic()
    while not holds():
        expect(time.monotonic() - began < seconds, f"not so within {seconds:g} s")
        time.sleep(0.5)
    return time.monotonic() - began
