"""Calls whose answer is missing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules

__all__ = [
    "READING",
    "AmbiguousError",
    "SilenceError",
    "is_ambiguous",
    "no_answer",
    "repeatable",
]

_T = TypeVar("_T")
READING = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions from reading an answer of an unexpected form."""


class AmbiguousError(ProviderUnavailableError):
    """A vendor's call may or may not have been carried out: the answer is missing or ambiguous.

    Internal to the providers. For idempotent calls (list, get, delete, read) users get a
    ProviderUnavailableError instead, see `boundary`. A creation looks for the sandbox that it may
    have made, see `creation`.
    """


class SilenceError(AmbiguousError):
    """The vendor did not answer within our own deadline."""


def is_ambiguous(error: BaseException) -> bool:
    """Whether the vendor may have carried out the call, although the sandbox is not usable.

    That holds for an AmbiguousError, for any error that it caused, and for a sandbox that has ended:
    it may have ended after the call.
    """
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes an error its own cause
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, AmbiguousError | SandboxNotFoundError | SandboxTerminatedError):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


async def repeatable(call: Callable[[], Awaitable[_T]]) -> _T:
    """Make an idempotent call, and retry it once, at once, if its connection broke.

    A call that timed out is not retried, so one call's deadline holds for both attempts.
    """
    try:
        return await call()
    except SilenceError:
        raise
    except AmbiguousError:
        return await call()


def no_answer(
    error: Exception,
    unreachable: tuple[type[Exception], ...],
    broken: tuple[type[Exception], ...],
    *,
    provider: str,
    what: str,
    sandbox_id: str | None,
    addresses: str,
) -> SandboxError:
    """Return the error for a call of which a client raised `error`, so that there is no answer.

    `unreachable` are the client's exceptions before it sent anything, `broken` those of a lost
    connection; any other exception is from reading an answer. `addresses` names the variables that
    hold the vendor's addresses.
    """
    rules = (
        ErrorRule(unreachable, ProviderUnavailableError, f"check the network and {addresses}"),
        ErrorRule(broken, AmbiguousError, "the connection broke: try again"),
        ErrorRule(
            (),
            AmbiguousError,
            f"this is not {provider}'s protocol: check {addresses} and any proxy",
        ),
    )
    reason = ": ".join(filter(None, (type(error).__name__, str(error))))
    text = f"{provider} could not {what}: {reason}"
    return apply_rules(Failure(provider, text, reason, {*type(error).__mro__}, sandbox_id), rules)
