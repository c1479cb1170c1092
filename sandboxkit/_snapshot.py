"""Snapshot: a stored copy of a sandbox's files, from which new sandboxes start."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Self

from sandboxkit import _ambient, _arguments, _tags
from sandboxkit._lifecycle import STOP
from sandboxkit._misuse import explained
from sandboxkit._operation import Operation
from sandboxkit._pool import pools
from sandboxkit.display import Displayable
from sandboxkit.errors import ConfigurationError, SnapshotNotFoundError
from sandboxkit.provider import Provider
from sandboxkit.types import SnapshotInfo, SnapshotKind


@explained
class Snapshot(Displayable):
    """A stored copy of a sandbox's files; `session.sandbox(snapshot=...)` starts new sandboxes from it.

    `Sandbox.snapshot()` takes one. After its expiry (`info.expires_at`), the next session on its machine,
    or `sandboxkit cleanup --snapshots`, deletes it, unless a sandbox still runs from it.
    """

    def __new__(cls, *given: object) -> Self:
        """Raise ConfigurationError for a direct call: sandboxes make snapshots."""
        if not given or not isinstance(given[0], Provider):
            raise ConfigurationError(
                "a Snapshot is made by sandbox.snapshot(); get an existing one with "
                "Snapshot.from_id(id)"
            )
        return super().__new__(cls)

    def __init__(self, provider: Provider, info: SnapshotInfo) -> None:
        self._provider = provider
        self.info = info
        """The snapshot's metadata at the backend, such as its name and times."""

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} of {self._provider.name}, {self.bytes} bytes>"

    @property
    def id(self) -> str:
        """The id that any process can use in `from_id` and in the option `snapshot`."""
        return self.info.id

    @property
    def kind(self) -> SnapshotKind:
        """The content: "files", or "memory" for files and running processes."""
        return self.info.kind

    @property
    def bytes(self) -> int | None:
        """The storage in bytes that the snapshot uses at the backend; None if the backend cannot tell."""
        return self.info.bytes

    @property
    def parent(self) -> str | None:
        """The id of the snapshot from which its sandbox had started; None if it had started from an image."""
        return self.info.parent

    @property
    def tags(self) -> dict[str, str]:
        """The tags of its sandbox and those given to `snapshot()`."""
        return _tags.public(self.info.tags)

    @staticmethod
    def list(
        tags: _tags.Tags | None = None, *, provider: str | None = None
    ) -> "Operation[list[Snapshot]]":
        """List every snapshot that carries all of `tags`, whichever process took it, oldest first."""
        wanted, backend = _tags.parse(tags), _ambient.provider(provider)

        async def run() -> "list[Snapshot]":
            return [Snapshot(backend, info) for info in await listed(backend, wanted)]

        return Operation(run())

    @staticmethod
    def from_id(snapshot_id: str, *, provider: str | None = None) -> "Operation[Snapshot]":
        """Return a snapshot by its id. Raises SnapshotNotFoundError."""
        snapshot_id = _arguments.text("snapshot_id", snapshot_id)
        backend = _ambient.provider(provider)

        async def run() -> Snapshot:
            for info in await listed(backend, {}):
                if info.id == snapshot_id:
                    return Snapshot(backend, info)
            raise SnapshotNotFoundError(
                f"no snapshot {snapshot_id!r}; it was deleted, or has expired and was removed",
                provider=backend.name,
            )

        return Operation(run())

    def delete(self) -> Operation[None]:
        """Remove the snapshot. Idempotent. Raises SnapshotInUseError while a sandbox runs from it.

        Snapshots of sandboxes that started from it stay usable. Sandboxes of this process that are being
        stopped are waited for, and those that a pool keeps for later starts are stopped.
        """

        async def run() -> None:
            for pool in tuple(pools):
                pool.forget(self.id)
            stops = [each for each in asyncio.all_tasks() if each.get_name() == f"{STOP}{self.id}"]
            if stops:
                await asyncio.wait(stops)
            await self._provider.delete_snapshot(self.id)

        return Operation(run())


async def listed(provider: Provider, tags: Mapping[str, str]) -> Sequence[SnapshotInfo]:
    """Return the provider's snapshots that carry all of `tags`, oldest first."""
    found = [info async for info in provider.list_snapshots(tags)]
    return sorted(found, key=lambda info: (info.created_at.timestamp(), info.id))
