"""Turns an error raised by a sandbox into a verdict, which blames the policy or the infrastructure."""

import math
from enum import StrEnum

from sandboxkit import (
    CommandError,
    CommandFailedError,
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    KernelError,
    OutcomeUnknownError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxTerminatedError,
    TerminalError,
)
from sandboxkit.integrations.rewards._verdict import Outcome, Party, Trust, Verdict

TROUBLE = (SandboxError, OSError, UnicodeError)
"""The errors that `verdict_of` accepts. OSError includes TimeoutError and a full disk on the host."""

_MAX_DETAIL = 500
_ENDED = (CommandError, CommandStartError, KernelError, TerminalError, UnicodeError)


class Phase(StrEnum):
    """The step of a rollout in which an error was raised; the value completes "ERROR while ..."."""

    STARTED = "the sandbox was started"
    """The sandbox starts and gets its files. The policy has not run anything in it yet."""
    WORKED_IN = "its tools were used"
    """Tools report the model's mistakes as results, so an error raised here is not one of them."""
    EXPORTED = "the artefacts were copied out"
    PLACED = "the artefacts were copied into a fresh sandbox"
    GRADED = "it was graded"
    """Grading runs commands and reads files; the policy's files and processes can make them fail."""


def verdict_of(error: Exception, phase: Phase, *, trust: Trust = "isolated") -> Verdict:
    """Return the verdict for one of the `TROUBLE` errors, by its class and the phase.

    The policy is to blame for

    - a sandbox that ran out of memory or was ended by a command in it, after the start;
    - a refused file call while artefacts are exported, placed or graded: the file is missing, too
      large, of the wrong kind or in the way;
    - a command with `check=True` that fails while the artefacts are placed;
    - during grading: a command that times out, fails with `check=True` or cannot be started, and a
      kernel or terminal that ends.

    Every other error is the infrastructure's. Re-raises a ConfigurationError, since the task's
    author made the mistake, except in the phase WORKED_IN.
    """
    if isinstance(error, ConfigurationError) and phase is not Phase.WORKED_IN:
        raise error
    detail = f"{type(error).__name__} while {phase}: {shown(error)}"
    outcome = _outcome(error, phase)
    party: Party = "infra" if outcome is Outcome.INFRA_ERROR else "policy"
    return Verdict(outcome, 0.0, party, detail, trust)


def _outcome(error: Exception, phase: Phase) -> Outcome:
    if phase is Phase.STARTED:
        return Outcome.INFRA_ERROR
    if isinstance(error, SandboxTerminatedError) and error.out_of_memory:
        return Outcome.OOM
    if isinstance(error, SandboxTerminatedError) and error.by_command:
        return Outcome.FAILED
    if phase is Phase.WORKED_IN:
        return Outcome.INFRA_ERROR
    if isinstance(error, SandboxFileNotFoundError):
        return Outcome.FAILED
    if isinstance(error, SandboxFileError):
        return Outcome.FAILED if phase is Phase.GRADED else Outcome.TRUNCATED
    if phase is Phase.PLACED and isinstance(error, CommandFailedError):
        return Outcome.TRUNCATED  # the artefacts take the disk space that this command needs
    if phase is Phase.GRADED:
        if isinstance(error, CommandTimeoutError):
            return Outcome.TIMEOUT
        if isinstance(error, _ENDED):
            return Outcome.FAILED
    return Outcome.INFRA_ERROR


def time_for_calls(lifetime: float | None, timeout: float) -> float:
    """Return how many seconds all calls of a policy may take in a sandbox with this `lifetime`: half of it.

    What a policy does then never reaches the lifetime; what does is a slow trainer or grader, and masks the sample.
    Raises ConfigurationError if one call, which may take `timeout` seconds, may take longer.
    """
    if lifetime is None:
        return math.inf
    if timeout > lifetime / 2:
        raise ConfigurationError(
            f"lifetime={lifetime:g} is too short for calls that may take {timeout:g} s each: give the session a lifetime "
            f"of {2 * timeout:g} s or more, of which all calls of a rollout may take half"
        )
    return lifetime / 2


def caused_by_command(error: Exception) -> bool:
    """Whether a program in the sandbox ended it, by using up its memory or killing its agent."""
    return isinstance(error, SandboxTerminatedError) and (error.out_of_memory or error.by_command)


def unproven(error: Exception) -> bool:
    """Whether an error that looks caused by a job may have had another cause.

    A host that has reached one of its limits also kills interpreters and agents and refuses to start
    programs. Out of memory is proven, because the kernel counts OOM kills per sandbox.
    """
    if isinstance(error, CommandStartError):
        return not error.retryable
    return caused_by_command(error) and not getattr(error, "out_of_memory", False)


def is_transient(error: Exception) -> bool:
    """Whether a retry in another sandbox may succeed.

    This includes a call with an unknown outcome: its effects are confined to the old sandbox.
    """
    if isinstance(error, SandboxError):
        gone = SandboxTerminatedError | SandboxNotFoundError | OutcomeUnknownError
        return error.retryable or isinstance(error, gone)
    return False


def shown(error: object) -> str:
    """Return an error's text for a log: escaped, and shortened in the middle to about 500 characters."""
    text = str(error)
    if len(text) > _MAX_DETAIL:
        half = _MAX_DETAIL // 2
        text = f"{text[:half]}...{text[-half:]}"
    return ascii(text)[1:-1]
