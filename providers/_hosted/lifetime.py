"""Vendors need finite lifetimes in whole seconds: this rounds them, and renews unlimited ones."""

import math
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError

LEASE = 900
"""Length of a lease (s): a sandbox without a lifetime gets this lifetime, and is renewed regularly."""


def whole_seconds(lifetime: float | None, *, provider: str, maximum: int) -> int:
    """Round a lifetime (s) up to whole seconds; None gives one lease.

    Raises ConfigurationError above the vendor's `maximum`.
    """
    if lifetime is None:
        return LEASE
    if lifetime > maximum:
        raise ConfigurationError(
            f"lifetime={lifetime!r}: {provider} ends sandboxes after {maximum} s at the latest; "
            f"use a lifetime up to {maximum}"
        )
    return math.ceil(lifetime)


async def keep_renewed(renew: Callable[[int], Awaitable[None]], lease: int = LEASE) -> None:
    """Renew a sandbox's lease (s) until this is cancelled or the sandbox is gone."""
    while True:
        await anyio.sleep(lease / 3)
        try:
            await renew(lease)
        except SandboxNotFoundError:
            return
        except SandboxError:
            continue  # there is time for two more attempts before the lease ends
