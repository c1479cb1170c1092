"""Calls whose answer is missing."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandboxkit.errors import ProviderUnavailableError

__all__ = ["SilenceError", "UnclearError", "repeatable"]

_T = TypeVar("_T")


class UnclearError(ProviderUnavailableError):
    """A vendor's call may or may not have been carried out: no answer, or one that does not say.

    It is for the providers among themselves. For a call that does no harm when it is repeated
    (list, get, delete, read) users see a ProviderUnavailableError in its place, see `boundary`. A
    creation looks for what it may have made, see `creation`.
    """


class SilenceError(UnclearError):
    """There was no answer within our own deadline."""


async def repeatable(call: Callable[[], Awaitable[_T]]) -> _T:
    """Make a call that does no harm twice: at once again where its connection broke.

    Whoever was silent is not asked again, so that the deadline of one call is that of both.
    """
    try:
        return await call()
    except SilenceError:
        raise
    except UnclearError:
        return await call()
