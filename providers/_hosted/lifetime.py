"""Renews the lease of a sandbox without a lifetime."""

from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import SandboxError, SandboxNotFoundError

LEASE = 900
"""Length of a lease (s): a sandbox without a lifetime gets this lifetime, and is renewed regularly."""


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
