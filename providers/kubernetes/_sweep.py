"""Finished pods: Kubernetes keeps them for whoever may want to read their state, and we remove them."""

import asyncio
import time
from datetime import UTC, datetime

import anyio

from sandboxkit.errors import SandboxError
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._pod import ID_PATTERN, finished_at

__all__ = ["Sweeper"]

_EVERY = 300.0
_KEPT = 300.0
"""Seconds for which what has ended can still be asked how. Nothing runs in it: a wall clock that
jumps costs nothing but that."""
_FINISHED = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"


class Sweeper:
    """Removes the remains of sandboxes that ended by themselves, whoever made them."""

    def __init__(self, api: Api, *, every: float = _EVERY, kept: float = _KEPT) -> None:
        self._api, self._every, self._kept = api, every, kept
        self._last: float | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Sweep beside whatever else happens, if the last time is long ago."""
        now = time.monotonic()
        if self._task is None and (self._last is None or now - self._last >= self._every):
            self._last = now
            self._task = asyncio.create_task(self._sweep())
            self._task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        if not task.cancelled():
            task.exception()

    async def _sweep(self) -> None:
        try:
            await self.sweep()
        except SandboxError:
            pass  # whoever makes a sandbox hears what is wrong; there is another time

    async def sweep(self) -> int:
        """Remove what ended long enough ago; returns how many."""
        pods = await self._api.path("pods")
        params = {"labelSelector": _tags.selector({}), "fieldSelector": _FINISHED}
        removed = 0
        async for pod in self._api.pages(pods, what="list finished sandboxes", params=params):
            name, ended = pod["metadata"]["name"], finished_at(pod)
            if ended is None or not ID_PATTERN.fullmatch(name):
                continue
            if (datetime.now(UTC) - ended).total_seconds() < self._kept:
                continue
            # That one, and none that got its name.
            body = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            try:
                await self._api.call(
                    "DELETE", f"{pods}/{name}", body, what="remove a finished sandbox"
                )
                removed += 1
            except SandboxError:
                continue  # somebody else did
        return removed

    async def aclose(self) -> None:
        """Stop. Idempotent."""
        task = self._task
        if task is not None:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
