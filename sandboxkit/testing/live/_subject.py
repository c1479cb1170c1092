"""The sandbox that is checked, bounded ways to use it, and what one check found."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from sandboxkit import Operation, Process, ProcessResult, Sandbox, SandboxError, Session
from sandboxkit._arguments import Content

T = TypeVar("T")

COMMAND_SECONDS = 60.0
"""How long one command may take that has nothing to wait for."""
_CALL_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Row:
    """What one check found."""

    check: str
    expected: str
    seen: str
    held: bool | None
    """None: it cannot be checked on this backend, and `seen` says why."""
    seconds: float


class DifferentError(Exception):
    """What was seen is not what was expected."""


class UncheckableError(Exception):
    """This backend, or the image, has nothing to check."""


@dataclass(frozen=True, slots=True)
class Check:
    """One behaviour; `run` returns what it saw, or raises one of the errors above."""

    name: str
    expected: str
    run: "Callable[[Subject], str]"

    def row(self, subject: "Subject") -> Row:
        """Run it; an error of the backend is what was seen, too."""
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
        return Row(self.name, self.expected, seen, held, round(time.monotonic() - began, 3))


@dataclass(frozen=True, slots=True)
class Subject:
    """One started sandbox, and what the checks know about it."""

    session: Session
    sandbox: Sandbox
    again: Callable[[], Session]
    """Another session with the same backend: a client of its own."""
    tag: str
    variable: str
    secret: str
    silence: float
    start_seconds: float

    @property
    def workdir(self) -> str:
        """Where its commands start."""
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
        """Begin a shell script."""
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

    def said(self, script: str, *args: str) -> str:
        """What a script printed. Raises DifferentError where it failed."""
        result = self.run(script, *args)
        if result.returncode:
            raise DifferentError(
                f"{script!r} exited with {result.returncode}: {result.stderr.strip()[-200:]}"
            )
        return result.stdout.strip()


def bounded(operation: Operation[T], seconds: float = _CALL_SECONDS) -> T:
    """Its result. What takes longer is cancelled, and a TimeoutError raised."""
    try:
        return operation.result(seconds)
    except TimeoutError:
        if not operation.done():
            operation.cancel()
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        raise


def expect(holds: bool, seen: str) -> None:
    """Raise DifferentError with what was seen, unless it is as expected."""
    if not holds:
        raise DifferentError(seen)


def wait_until(holds: Callable[[], bool], seconds: float) -> float:
    """Ask until it is so, and return after how many seconds. Raises DifferentError past `seconds`."""
    began = time.monotonic()
    while not holds():
        expect(time.monotonic() - began < seconds, f"not so within {seconds:g} s")
        time.sleep(0.5)
    return time.monotonic() - began
