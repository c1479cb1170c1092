"""Time limits for all vendor calls, because the vendors' own limits are long or missing."""

from collections.abc import Awaitable
from typing import TypeVar

import anyio

from sandboxkit.providers._hosted.ambiguous import SilenceError

__all__ = ["LAST_LOOK", "SILENCE", "bounded"]

_T = TypeVar("_T")

SILENCE = 8.0
"""After this time (s) of silence the vendor counts as gone, both on a running command's stream and in a
call that is normally fast. A provider's own `timeout` is for slow calls; if it is shorter than this, it
applies to all calls."""
LAST_LOOK = 2.0
"""Time limit (s) of each follow-up call after such a silence."""


async def bounded(
    call: Awaitable[_T], seconds: float, *, provider: str, what: str, sandbox_id: str | None = None
) -> _T:
    """Await a call and return its result; raise SilenceError after `seconds`.

    `what` is the call as a verb phrase, for the message.
    """
    with anyio.move_on_after(seconds):
        return await call
    raise SilenceError(
        f"{provider} did not {what} within {seconds:g} s; check the network and the endpoint, "
        "or give the provider a longer timeout",
        provider=provider,
        sandbox_id=sandbox_id,
    )
