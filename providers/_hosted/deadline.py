"""Time limits for all calls to a vendor, because a vendor's own are long or missing."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

from sandboxkit.providers._hosted.ambiguous import SilenceError

__all__ = ["LAST_LOOK", "SILENCE", "bounded"]

_T = TypeVar("_T")

SILENCE = 8.0
"""Seconds of silence after which the peer counts as gone, both on a running command's stream and for
a call that the vendor answers at once. A provider's own `timeout` is for slow calls; a `timeout`
shorter than this applies to all calls."""
LAST_LOOK = 2.0
"""Seconds for each follow-up call that is made after such a silence."""


async def bounded(
    call: Awaitable[_T], seconds: float, *, provider: str, what: str, sandbox_id: str | None = None
) -> _T:
    """Await a call and return its result; raise SilenceError after `seconds`."""
    with anyio.move_on_after(seconds):
        return await call
    raise SilenceError(
        f"{provider} did not {what} within {seconds:g} s; check the network and the endpoint, "
        "or give the provider a longer timeout",
        provider=provider,
        sandbox_id=sandbox_id,
    )
