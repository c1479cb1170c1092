"""Vendor calls whose outcome is unknown, because the response is late, missing or unclear: limits and errors.

All vendor calls have a time limit of ours, because the vendors' own limits are long or missing.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules

_T = TypeVar("_T")
READING = (ValueError, LookupError, TypeError, AttributeError)
"""The exceptions that parsing a response of an unexpected form raises."""
SILENCE = 8.0
"""After this time (s) of silence the vendor counts as gone, both on a running command's stream and in a
call that is normally fast. A provider's own `timeout` is for slow calls; if it is shorter than this, it
applies to all calls."""
LAST_LOOK = 2.0
"""Time limit (s) of each follow-up call after such a silence."""


class AmbiguousError(ProviderUnavailableError):
    """The vendor may have carried out the call: the response is missing or ambiguous.

    Internal to the providers. For idempotent calls (list, get, delete, read) users get a
    ProviderUnavailableError instead, see `public`. A creation searches for the sandbox that it may
    have made, see `creation`.
    """


class SilenceError(AmbiguousError):
    """The vendor did not respond within our own deadline."""


def is_ambiguous(error: BaseException) -> bool:
    """Return whether the vendor may have carried out the call that raised `error`.

    True for an AmbiguousError, for an error with one among its causes, and if the sandbox has ended,
    because it may have ended after the call.
    """
    cause: BaseException | None = error
    seen: set[int] = set()  # `raise error from error` makes an error its own cause
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, AmbiguousError | SandboxNotFoundError | SandboxTerminatedError):
            return True
        seen.add(id(cause))
        cause = cause.__cause__
    return False


def as_unavailable(error: SandboxError, text: str | None = None) -> ProviderUnavailableError:
    """Return the public error for `error`, with its notes, and with `text` in the place of its message."""
    known = ProviderUnavailableError(
        str(error) if text is None else text,
        retry_after=getattr(error, "retry_after", None),
    )
    for note in getattr(error, "__notes__", ()):
        known.add_note(note)
    return known


def public(error: SandboxError) -> SandboxError:
    """Return a ProviderUnavailableError instead of an AmbiguousError, and any other error as it is."""
    return as_unavailable(error) if isinstance(error, AmbiguousError) else error


@contextmanager
def converted() -> Iterator[None]:
    """Context that raises ProviderUnavailableError instead of AmbiguousError."""
    try:
        yield
    except AmbiguousError as error:
        raise public(error) from error


async def bounded(call: Awaitable[_T], seconds: float, *, provider: str, what: str) -> _T:
    """Await a call and return its result; raise SilenceError after `seconds`.

    `what` is the call as a verb phrase, for the message.
    """
    with anyio.move_on_after(seconds):
        return await call
    raise SilenceError(
        f"{provider} did not {what} within {seconds:g} s; check the network and the endpoint, "
        "or give the provider a longer timeout"
    )


async def repeatable(call: Callable[[], Awaitable[_T]]) -> _T:
    """Make an idempotent call; if its connection broke, retry it once immediately.

    A call that timed out is not retried, so that the total time stays near one call's deadline.
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
    addresses: str,
) -> SandboxError:
    """Return the error for a call without a usable response, because the vendor's client raised `error`.

    `unreachable` are the client's exceptions before anything was sent, `broken` those of a lost
    connection; any other exception comes from parsing the response. `what` is the call as a verb phrase,
    `addresses` the variables with the vendor's addresses, both for the message.
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
    return apply_rules(Failure(text, reason, {*type(error).__mro__}), rules)
