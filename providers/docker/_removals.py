"""Removes the containers that failed creations may have left, in background tasks."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError

_LATE_SECONDS = 60.0
"""Seconds after which the daemon no longer carries out a creation whose answer was lost."""


@dataclass(slots=True)
class _FailedRemoval:
    """A container that a failed creation may have left."""

    settled: float
    """Time from which a removal is final; before it, the daemon may still create the container."""
    failure: SandboxError | None = None
    task: "asyncio.Task[None] | None" = None


class Removals:
    """Continues removals after callers stop waiting; `finish` reports what is left."""

    def __init__(self, delete: Callable[[str], Awaitable[None]]) -> None:
        self._delete = delete
        self._left: dict[str, _FailedRemoval] = {}
        """Failed removals by container name; `retry` and `finish` empty it once the daemon answers."""

    async def undo(self, name: str, *, answered: bool, seconds: float) -> None:
        """Start the container's removal and wait at most `seconds` for it, even if cancelled.

        `answered`: whether the daemon answered the request to create the container.
        """
        late = 0.0 if answered else _LATE_SECONDS
        left = self._left[name] = _FailedRemoval(anyio.current_time() + late)
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._begin(name, left)], timeout=seconds)

    def retry(self) -> None:
        """Start the removals again of containers that may still exist."""
        for name, left in self._left.items():
            self._begin(name, left)

    async def finish(self) -> None:
        """Retry every removal once; raises ProviderUnavailableError that names what is left."""
        with anyio.CancelScope(shield=True):
            if tasks := [left.task for left in self._left.values() if left.task is not None]:
                await asyncio.wait(tasks)
            for left in self._left.values():
                left.settled = 0.0
            if tasks := [self._begin(name, left) for name, left in self._left.items()]:
                await asyncio.wait(tasks)
        if self._left:
            names = " ".join(sorted(self._left))
            failure = next(iter(self._left.values())).failure
            raise ProviderUnavailableError(
                f"Docker did not remove {names}: {failure}. Close again, or remove them once it "
                f"answers: docker rm --force {names}"
            )

    def _begin(self, name: str, left: _FailedRemoval) -> "asyncio.Task[None]":
        if left.task is None:
            # A task of its own: it outlives the call that failed, and aclose() waits for it.
            left.task = asyncio.create_task(self._remove(name, left))
        return left.task

    async def _remove(self, name: str, left: _FailedRemoval) -> None:
        try:
            await self._delete(name)
            left.failure = None
            if anyio.current_time() >= left.settled:
                del self._left[name]
        except SandboxError as error:
            left.failure = error
        finally:
            left.task = None
