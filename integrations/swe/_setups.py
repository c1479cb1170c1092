"""Sets a task up once, and starts its episodes from a snapshot of the result."""

import asyncio
from collections.abc import Awaitable, Callable

from sandboxkit import Sandbox, SandboxError, Session, Snapshot
from sandboxkit.integrations._outages import stop_broken
from sandboxkit.integrations.swe._task import Task


class TaskSetups:
    """Snapshots of tasks after their seeds and `setup.sh`, each made before the task's first episode.

    Give it to `SweEnv` or `SwePool`. Processes that a set-up leaves running are not in a snapshot. On
    exit the snapshots are deleted; one that a sandbox still uses expires after `ttl` seconds. With a
    provider that has no snapshots the first episode raises ConfigurationError.
    """

    def __init__(self, session: Session, *, ttl: float = 86400.0) -> None:
        self.session, self.ttl = session, ttl
        self._taken: dict[str, Snapshot] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def of(self, task: Task, prepare: Callable[[], Awaitable[Sandbox]]) -> Snapshot:
        """Return the task's snapshot; the first call makes it from the sandbox that `prepare` returns.

        Concurrent calls wait for the first one. If that raises, the next call tries again.
        """
        async with self._locks.setdefault(task.id, asyncio.Lock()):
            if task.id not in self._taken:
                sandbox = await prepare()
                try:
                    tags = {"swe-task": task.id[:64]}
                    self._taken[task.id] = await sandbox.snapshot(task.id, ttl=self.ttl, tags=tags)
                finally:
                    await stop_broken(sandbox)
            return self._taken[task.id]

    def forget(self, task: Task) -> None:
        """Drop the task's snapshot, which no longer exists: the next episode sets the task up again."""
        self._taken.pop(task.id, None)

    async def close(self) -> None:
        """Delete the snapshots that no sandbox uses. Idempotent."""
        taken, self._taken = self._taken, {}
        for snapshot in taken.values():
            try:
                await snapshot.delete()
            except SandboxError:
                pass  # a sandbox uses it; it expires after `ttl`

    async def __aenter__(self) -> "TaskSetups":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
