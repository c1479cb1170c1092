"""Whose doing an error was: the one place where what a sandbox raises becomes a verdict."""

from enum import StrEnum

from sandboxkit import (
    CommandError,
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
"""What `verdict_of` answers. OSError has TimeoutError in it, and this machine's full disk."""

_MAX_DETAIL = 500
_ENDED = (CommandError, CommandStartError, KernelError, TerminalError, UnicodeError)


class Phase(StrEnum):
    """What was being done when an error was raised."""

    STARTED = "the sandbox was started"
    """With all that is put there for the policy: nothing of the policy's is in it yet."""
    WORKED_IN = "its tools were used"
    """A tool answers its caller's mistakes itself: what it raises is not one."""
    EXPORTED = "what was left was copied out"
    PLACED = "what was left was put into a fresh sandbox"
    GRADED = "it was graded"
    """Commands run, and files are read, that what was left can make fail."""


def verdict_of(error: Exception, phase: Phase, *, trust: Trust = "isolated") -> Verdict:
    """The verdict for an error of `TROUBLE`, by what it is and when it was raised.

    A file call that is refused after the start is the policy's: what it left is not there, too
    much, of the wrong kind or in the way. So is a command's end while it is graded, a command that
    cannot be started then, a kernel or a terminal that was ended there, and a sandbox that ran out of the memory it has, or that what ran in it
    ended. All else is the infrastructure's. Raises a ConfigurationError again, but for a tool's:
    whoever wrote the task asked for what cannot be.
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
    if phase is Phase.GRADED:
        if isinstance(error, CommandTimeoutError):
            return Outcome.TIMEOUT
        if isinstance(error, _ENDED):
            return Outcome.FAILED
    return Outcome.INFRA_ERROR


def brought_on(error: Exception) -> bool:
    """Whether what ran in a sandbox has ended it: it used up its memory, or killed its agent."""
    return isinstance(error, SandboxTerminatedError) and (error.out_of_memory or error.by_command)


def may_pass(error: Exception) -> bool:
    """Whether another sandbox may do what this one failed to do.

    What nobody knows the outcome of can be done again there: it left no trace outside its own.
    """
    if isinstance(error, SandboxError):
        gone = SandboxTerminatedError | SandboxNotFoundError | OutcomeUnknownError
        return error.retryable or isinstance(error, gone)
    return False


def shown(error: object) -> str:
    """An error's text for a log, with what a policy wrote in it escaped and cut short."""
    text = str(error)
    if len(text) > _MAX_DETAIL:
        half = _MAX_DETAIL // 2
        text = f"{text[:half]}...{text[-half:]}"
    return ascii(text)[1:-1]
