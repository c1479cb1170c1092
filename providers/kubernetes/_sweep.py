"""Removes finished pods, which Kubernetes itself keeps so that their state can be read."""

import asyncio
import time
from datetime import UTC, datetime

import anyio

from sandboxkit.errors import SandboxError
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._pod import ID_PATTERN, finished_at

_EVERY = 300.0
_KEPT = 300.0
"""Seconds for which a finished pod is kept, so that its end can be explained. Nothing runs in it, so
a jump of the wall clock loses only that explanation."""
_FINISHED = "status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"


class PodSweeper:
    """Removes pods of sandboxes that ended by themselves, whichever process created them."""

    def __init__(self, api: Api, *, every: float = _EVERY, kept: float = _KEPT) -> None:
        self._api, self._every, self._kept = api, every, kept
        self._last: float | None = None
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start a sweep in the background, unless one runs or the last one was recent."""
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
            pass  # creations report the same error, and a later sweep tries again

    async def sweep(self) -> int:
        """Remove the pods that ended long enough ago; return how many were removed."""
        pods = await self._api.path("pods")
        params = {"labelSelector": _tags.selector({}), "fieldSelector": _FINISHED}
        removed = 0
        async for pod in self._api.pages(pods, what="list finished sandboxes", params=params):
            name, ended = pod["metadata"]["name"], finished_at(pod)
            if ended is None or not ID_PATTERN.fullmatch(name):
                continue
            if (datetime.now(UTC) - ended).total_seconds() < self._kept:
                continue
            # The uid protects a newer pod with the same name.
            body = {"preconditions": {"uid": pod["metadata"]["uid"]}}
            try:
                await self._api.call(
                    "DELETE", f"{pods}/{name}", body, what="remove a finished sandbox"
                )
                removed += 1
            except SandboxError:
                continue  # somebody else removed it
        return removed

    async def aclose(self) -> None:
        """Cancel a running sweep. Idempotent."""
        task = self._task
        if task is not None:
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
