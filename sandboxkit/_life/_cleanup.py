"""Clean-up: deletion of sandboxes that their owners left behind.

`sweep` deletes the sandboxes that its caller selects. `sweep_strays` runs automatically, in parallel
to the first start of each session whose sandboxes are on this machine. It deletes a sandbox only if
its owner was a process of this machine that is gone, and its lifetime has passed by both clocks
(see `_owners.py`). It never touches a sandbox with a live or unknown owner, or with lifetime left:
that sandbox ends with its lifetime, or by `sandboxkit cleanup`. It also deletes expired snapshots.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from sandboxkit._life import _owners
from sandboxkit.errors import SandboxError, SnapshotInUseError
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxInfo, SnapshotInfo

InfoT = TypeVar("InfoT", SandboxInfo, SnapshotInfo)


async def sweep_strays(provider: Provider) -> None:
    """Delete expired sandboxes whose owner is gone. The next sweep retries failed deletions."""
    try:
        strays = [
            info
            async for info in provider.list({})
            if _owners.is_orphan(info) and _owners.is_expired(info)
        ]
        await sweep_snapshots(provider)
    except (SandboxError, ExceptionGroup):
        return  # the concurrent start reports the backend's error
    for info in strays:
        with suppress(SandboxError):
            await provider.box(info.id).delete()


async def sweep_snapshots(
    provider: Provider,
    *,
    tags: Mapping[str, str] | None = None,
    older_than: float | None = None,
    dry_run: bool = False,
) -> list[SnapshotInfo]:
    """Delete expired snapshots; with `tags` or `older_than` (s), delete all snapshots that match these.

    Return the deleted snapshots; with `dry_run`, delete nothing and return those that would be deleted.
    Snapshots in use are kept. Every deletion is attempted; other failures are raised together as one
    ExceptionGroup.
    """
    chosen = [
        info
        async for info in provider.list_snapshots(tags or {})
        if not (older_than and _owners.age(info) < older_than)
        and (tags or older_than is not None or _owners.is_expired(info))
    ]
    delete = None if dry_run else provider.delete_snapshot
    return await _deleted(chosen, delete, "snapshots", SnapshotInUseError)


async def sweep(
    provider: Provider,
    *,
    tags: Mapping[str, str] | None = None,
    expired: bool = False,
    orphans: bool = False,
    older_than: float | None = None,
    dry_run: bool = False,
) -> list[SandboxInfo]:
    """Delete the sandboxes that carry all `tags` and are at least `older_than` seconds old.

    With `expired` or `orphans`, delete only expired sandboxes, orphans, or either. Return the deleted
    sandboxes; with `dry_run`, delete nothing and return those that would be deleted.

    Every deletion is attempted; failures are raised together as one ExceptionGroup.
    """
    chosen: list[SandboxInfo] = []
    async for info in provider.list(tags or {}):
        stray = (expired and _owners.is_expired(info)) or (orphans and _owners.is_orphan(info))
        young = older_than and _owners.age(info) < older_than
        if not young and (stray or not (expired or orphans)):
            chosen.append(info)
    return await _deleted(
        chosen, None if dry_run else lambda found: provider.box(found).delete(), "sandboxes"
    )


async def _deleted(
    chosen: list[InfoT],
    delete: Callable[[str], Awaitable[None]] | None,
    what: str,
    *kept: type[SandboxError],
) -> list[InfoT]:
    """Delete all `chosen`, unless `delete` is None, except those that raise `kept`; raise all failures together."""
    if delete is None:
        return chosen
    deleted: list[InfoT] = []
    errors: list[Exception] = []
    for info in chosen:
        try:
            with suppress(*kept):
                await delete(info.id)
                deleted.append(info)
        except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {len(chosen)} {what} could not be deleted", errors)
    return deleted
