"""Snapshot: a stored copy of a sandbox's files, how it is taken, and forks: sandboxes that start from one."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar, get_args

import anyio

from sandboxkit import _ambient, _tags
from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit._life import _owners
from sandboxkit._lifecycle import STOP, Lifecycle
from sandboxkit._operation import Operation
from sandboxkit._room._pool import pools
from sandboxkit.display import Displayable
from sandboxkit.errors import ConfigurationError, SandboxError, SnapshotNotFoundError
from sandboxkit.provider import Box, Provider
from sandboxkit.types import SandboxSpec, SnapshotInfo, SnapshotKind, SnapshotRequest

S = TypeVar("S")

TTL = 86400.0
"""The default lifetime (s) of a snapshot."""


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


def take(
    life: Lifecycle, name: str | None, ttl: float, tags: _tags.Tags | None, kind: SnapshotKind
) -> Operation[Snapshot]:
    """Take a snapshot of a sandbox; see `Sandbox.snapshot`."""
    life.refuse_ended()
    provider = life.provider
    _arguments.positive("ttl", ttl, unit="seconds")
    name = None if name is None else _arguments.text("name", name)
    own = {**_marked(life.spec), **_tags.parse(tags)}
    _arguments.one_of("kind", kind, get_args(SnapshotKind))
    _refuse_reset(life.spec)
    provider.check_snapshot(life.spec, kind)

    async def run(box: Box) -> Snapshot:
        # A pause stops the programs as well, and whichever of the two is done first would continue them.
        async with life.clock.one:
            info = await box.take_snapshot(SnapshotRequest(kind, name, own, time.time() + ttl))
        spec, known = life.spec, life.made > 0  # a sandbox's id alone does not tell its options
        if known and spec.network == "none" and spec.native_rules is None:
            life.context.narrowed[info.id] = spec.egress or "none"
        return Snapshot(provider, info)

    return Operation(life.call(run), of=life)


def fork(
    life: Lifecycle, n: int, make: Callable[[SandboxSpec], tuple[S, Lifecycle]], *, by_id: bool
) -> Operation[list[S | SandboxError]]:
    """Start `n` sandboxes from the files of a sandbox; see `Sandbox.fork`.

    `make` returns a sandbox that has not started, and its lifecycle. `by_id`: the sandbox was reached by
    its id, so its options are unknown, and ConfigurationError is raised.
    """
    life.refuse_ended()
    _arguments.integer("n", n)
    _refuse_reset(life.spec)
    if by_id:
        raise ConfigurationError(
            f"sandbox {life.id!r} was reached by its id, which does not tell its options: take a snapshot() "
            "and start session.sandbox(snapshot=...)"
        )
    life.provider.check_snapshot(life.spec, "files")
    lost = contextlib.ExitStack()  # stops them if they start just as the operation is cancelled

    async def run(box: Box) -> list[S | SandboxError]:
        own = _marked(life.spec)
        async with life.clock.one:
            info = await box.take_snapshot(SnapshotRequest("files", None, own, time.time() + TTL))
        # The snapshot has the files, and life.spec the network, as they are now.
        spec = dataclasses.replace(life.spec, snapshot=info.id, files={})
        made = [make(spec) for _ in range(n)]
        left = [own for _, own in made]

        async def after(ended: Lifecycle) -> None:
            left.remove(ended)
            if not left:
                with contextlib.suppress(SandboxError):  # it expires
                    await life.provider.delete_snapshot(info.id)

        results: list[S | SandboxError] = [sandbox for sandbox, _ in made]

        async def start(number: int) -> None:
            try:
                await made[number][1].started()
            except SandboxError as error:
                results[number] = error
                made[number][1].stop()

        with contextlib.ExitStack() as failed:
            for each in left:
                each.after, each.pooled = after, False
                failed.callback(each.stop)
            async with anyio.create_task_group() as group:
                for number in range(n):
                    group.start_soon(start, number)
            lost.push(failed.pop_all())
        return results

    return Operation(life.call(run), lost=lost.close, of=life)


def _marked(spec: SandboxSpec) -> dict[str, str]:
    return {**_tags.public(spec.tags), _tags.BIRTH: _owners.birth()}


def _refuse_reset(spec: SandboxSpec) -> None:
    if spec.reuse == "reset":
        raise ConfigurationError(
            "a sandbox with reuse='reset' has no snapshot: a reset empties its writable folders; "
            "make it with reuse='never'"
        )
