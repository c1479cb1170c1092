"""The end of every call to a vendor: ours, because a vendor's own is long or missing."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

from sandboxkit.errors import ProviderUnavailableError

__all__ = ["OutcomeUnknownError", "bounded"]

_T = TypeVar("_T")


class OutcomeUnknownError(ProviderUnavailableError):
    """The call may or may not have been carried out: no answer, or one that does not say."""


async def bounded(
    call: Awaitable[_T], seconds: float, *, provider: str, what: str, sandbox_id: str | None = None
) -> _T:
    """Await a call for at most `seconds`; raises OutcomeUnknownError past them."""
    try:
        with anyio.fail_after(seconds):
            return await call
    except TimeoutError as error:
        raise OutcomeUnknownError(
            f"{provider} did not {what} within {seconds:g} s; check the network and the endpoint, "
            "or give the provider a longer timeout",
            provider=provider,
            sandbox_id=sandbox_id,
        ) from error
