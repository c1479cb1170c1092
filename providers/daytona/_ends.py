"""Lifetimes to the second: Daytona's own are whole minutes, and remain for when we are gone."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from sandboxkit.errors import SandboxError

__all__ = ["Ends"]


class Ends:
    """Deletes sandboxes at the end of their lifetime, as long as this process lives."""

    def __init__(self, delete: Callable[[str], Awaitable[None]]) -> None:
        self._delete = delete
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def plan(self, sandbox_id: str, lifetime: float) -> None:
        """Delete it so many seconds from now; an earlier plan for it is forgotten."""
        self.forget(sandbox_id)
        self._tasks[sandbox_id] = asyncio.create_task(self._end(sandbox_id, lifetime))

    def forget(self, sandbox_id: str) -> None:
        """Delete it no more."""
        task = self._tasks.pop(sandbox_id, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    def close(self) -> None:
        """Leave all ends to Daytona."""
        for sandbox_id in list(self._tasks):
            self.forget(sandbox_id)

    async def _end(self, sandbox_id: str, lifetime: float) -> None:
        await anyio.sleep(lifetime)
        try:
            await self._delete(sandbox_id)
        except SandboxError:
            pass  # Daytona does it within a minute
