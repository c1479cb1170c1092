"""Lifetimes as vendors take them: whole seconds with an end, renewed where there is none."""

import asyncio
import math
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError

__all__ = ["LEASE", "Heartbeats", "whole_seconds"]

LEASE = 900
"""Seconds that a sandbox without a lifetime is given at a time."""


def whole_seconds(lifetime: float | None, *, provider: str, maximum: int) -> int:
    """Round up to what the vendor takes; None gives one lease.

    Raises ConfigurationError above the vendor's `maximum`.
    """
    if lifetime is None:
        return LEASE
    if lifetime > maximum:
        raise ConfigurationError(
            f"lifetime={lifetime!r}: {provider} ends sandboxes after {maximum} s at the latest; "
            f"use a lifetime up to {maximum}",
            provider=provider,
        )
    return math.ceil(lifetime)


class Heartbeats:
    """Renews sandboxes without a lifetime for as long as this process lives and uses them."""

    def __init__(
        self, renew: Callable[[str, int], Awaitable[None]], interval: float = LEASE / 3
    ) -> None:
        self._renew, self._interval = renew, interval
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, sandbox_id: str) -> None:
        """Renew a sandbox until `stop`, or until it is gone."""
        self._tasks[sandbox_id] = asyncio.create_task(self._beat(sandbox_id))

    async def stop(self, sandbox_id: str) -> None:
        """Renew it no more; one that is not renewed is no error."""
        task = self._tasks.pop(sandbox_id, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def aclose(self) -> None:
        """Renew nothing any more."""
        for sandbox_id in list(self._tasks):
            await self.stop(sandbox_id)

    async def _beat(self, sandbox_id: str) -> None:
        while True:
            await anyio.sleep(self._interval)
            try:
                await self._renew(sandbox_id, LEASE)
            except SandboxNotFoundError:
                return
            except SandboxError:
                continue  # there is time for two more attempts before the lease ends
