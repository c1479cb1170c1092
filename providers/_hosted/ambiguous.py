"""Calls whose answer is missing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandboxkit.errors import ProviderUnavailableError

__all__ = ["AmbiguousError", "SilenceError", "repeatable"]

_T = TypeVar("_T")


class AmbiguousError(ProviderUnavailableError):
    """A vendor's call may or may not have been carried out: the answer is missing or ambiguous.

    Internal to the providers. For idempotent calls (list, get, delete, read) users get a
    ProviderUnavailableError instead, see `boundary`. A creation looks for the sandbox that it may
    have made, see `creation`.
    """


class SilenceError(AmbiguousError):
    """The vendor did not answer within our own deadline."""


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
