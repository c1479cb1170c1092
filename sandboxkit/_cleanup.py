"""Clean-up: sweeps of the sandboxes that nobody ended.

Two kinds. `sweep` removes what its caller selects. `sweep_strays` runs by itself, beside the
first start of each session whose sandboxes are on this machine, and removes the few that can
only be left over: their owner was a process of this machine and is gone, and their lifetime has
passed by both clocks (see _owners). What has a living owner, an unknown one, or time left is
never touched by it: that is for its own lifetime, or for whoever asks for `sandboxkit cleanup`.
"""

from collections.abc import Mapping

from sandboxkit import _owners
from sandboxkit.errors import SandboxError
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxInfo


async def sweep_strays(provider: Provider) -> None:
    """Delete what can only be left over. What fails is left for the next sweep."""
    try:
        strays = [
            info
            async for info in provider.list({})
            if _owners.is_orphan(info) and _owners.is_expired(info)
        ]
    except SandboxError:
        return  # the start beside this says what is wrong with the backend
    for info in strays:
        try:
            await provider.delete(info.id)
        except SandboxError:
            pass


async def sweep(
    provider: Provider,
    *,
    tags: Mapping[str, str] | None = None,
    expired: bool = False,
    orphans: bool = False,
    older_than: float | None = None,
    dry_run: bool = False,
) -> list[SandboxInfo]:
    """Delete the sandboxes that carry all `tags`, are `older_than` seconds, and, when
    `expired` or `orphans` is set, are one of these. Returns what was (or would be) deleted.

    Attempts every deletion; failures are raised together as one ExceptionGroup.
    """
    chosen: list[SandboxInfo] = []
    async for info in provider.list(tags or {}):
        young = older_than is not None and _owners.age(info) < older_than
        stray = (expired and _owners.is_expired(info)) or (orphans and _owners.is_orphan(info))
        if not young and (stray or not (expired or orphans)):
            chosen.append(info)
    if dry_run:
        return chosen
    removed: list[SandboxInfo] = []
    errors: list[Exception] = []
    for info in chosen:
        try:
            await provider.delete(info.id)
            removed.append(info)
        except Exception as error:  # noqa: BLE001 - all are attempted, then raised together
            errors.append(error)
    if errors:
        raise ExceptionGroup(
            f"{len(errors)} of {len(chosen)} sandboxes could not be deleted", errors
        )
    return removed
