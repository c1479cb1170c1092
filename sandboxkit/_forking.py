"""Snapshots of a sandbox, and sandboxes that start from its files."""

import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import TypeVar, get_args

import anyio

from sandboxkit import _arguments, _owners, _tags
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit._snapshot import Snapshot
from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.types import SandboxSpec, SnapshotKind

S = TypeVar("S")

TTL = 86400.0
"""The default lifetime (s) of a snapshot."""


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

    async def run(sandbox_id: str) -> Snapshot:
        # A pause stops the programs as well, and whichever of the two is done first would continue them.
        async with life.clock.one:
            info = await provider.take_snapshot(
                sandbox_id, kind=kind, name=name, tags=own, expires=time.time() + ttl
            )
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

    async def run(sandbox_id: str) -> list[S | SandboxError]:
        own = _marked(life.spec)
        async with life.clock.one:
            info = await life.provider.take_snapshot(
                sandbox_id, kind="files", name=None, tags=own, expires=time.time() + TTL
            )
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
