"""The end of every call to a vendor: ours, because a vendor's own is long or missing."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

from sandboxkit.providers._hosted.unclear import SilenceError

__all__ = ["LAST_LOOK", "SILENCE", "bounded"]

_T = TypeVar("_T")

SILENCE = 8.0
"""Seconds without a sign of life after which nobody is taken to be there: neither behind a running
command's stream, nor behind a call that the vendor answers at once. A provider's own `timeout` is
for what takes long; where it is shorter, it bounds these, too."""
LAST_LOOK = 2.0
"""Seconds for each call that is made after that, while somebody waits to hear of it."""


async def bounded(
    call: Awaitable[_T], seconds: float, *, provider: str, what: str, sandbox_id: str | None = None
) -> _T:
    """Await a call for at most `seconds`; raises SilenceError past them."""
    with anyio.move_on_after(seconds):
        return await call
    raise SilenceError(
        f"{provider} did not {what} within {seconds:g} s; check the network and the endpoint, "
        "or give the provider a longer timeout",
        provider=provider,
        sandbox_id=sandbox_id,
    )
