"""Vendor calls whose outcome is unknown, because the response is late, missing or unclear: limits and errors."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)

_T = TypeVar("_T")
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
