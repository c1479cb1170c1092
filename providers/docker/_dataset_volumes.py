"""Datasets on the daemon's machine: one volume for each, filled once from this machine's store.

A bind mount would not work with a daemon on another machine. Docker cannot rename or relabel a volume, so
two names make a fill atomic: the content goes into a volume with a random name, and an empty volume with
the dataset's name then points to it by a label. The daemon creates a name once; if two clients fill at
once, the second one removes its own copy. A volume that no pointer names is incomplete.
"""

import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import anyio

from sandboxkit.errors import SandboxStartError
from sandboxkit.provider import DatasetStore
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._loaders import loader, remove_abandoned
from sandboxkit.providers.docker._volume_api import labels_of, remove_if_free

_LABEL = "sandboxkit.dataset"
_CONTENT = "sandboxkit.dataset.volume"
_PREFIX = "sandboxkit-dataset-"
_POINTER = re.compile(_PREFIX + "([0-9a-f]{64})")
_VOLUME = re.compile(_PREFIX + "([0-9a-f]{64})-[0-9a-f]{16}")


class DatasetMissingError(SandboxStartError):
    """Another client has removed a dataset's volume since it was found; nothing was started."""


class DatasetVolumes:
    """The volumes of one daemon that hold datasets."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._volumes: dict[str, str] = {}
        self._lock = anyio.Lock()

    def of(self, mounts: Mapping[str, str]) -> dict[str, str]:
        """Return the volume of each mount point, after `ensure`."""
        return {point: self._volumes[digest] for point, digest in mounts.items()}

    async def ensure(self, image: str, digests: Collection[str], *, again: bool = False) -> None:
        """Find or fill the volumes of these datasets; cheap after the first call, unless `again`.

        `image` is any image that is present; loader containers are made from it. Raises
        DatasetNotFoundError if neither the daemon nor this machine's store has a dataset.
        """
        for digest in dict.fromkeys(digests):
            async with self._lock:
                if again or digest not in self._volumes:
                    self._volumes[digest] = await self._daemon.call(
                        partial(_ensure, image=image, digest=digest),
                        what="start a sandbox: a dataset could not be stored",
                    )

    async def verify(self, volumes: Collection[str]) -> None:
        """Raise DatasetMissingError unless each volume, which a container refers to, was filled by us.

        The daemon creates an empty volume for a container that names a missing one.
        """
        for volume in set(volumes):
            filled = await self._daemon.call(
                partial(_is_ours, volume=volume), what="find a dataset's volume"
            )
            if not filled:
                raise DatasetMissingError(
                    f"the volume {volume!r} was removed while a sandbox with it started: try again"
                )

    async def remove_unused(self, *, dry_run: bool) -> list[str]:
        """Remove the volumes that no container refers to; return the digests of the complete ones."""
        return await self._daemon.call(
            lambda api: _remove_unused(api, dry_run=dry_run), what="remove unused datasets"
        )


# Any: the docker package has no types.
def _is_ours(api: Any, volume: str) -> bool:
    return _LABEL in labels_of(api, volume)


def _ensure(api: Any, image: str, digest: str) -> str:
    pointer = f"{_PREFIX}{digest.removeprefix('sha256:')}"
    volume = labels_of(api, pointer).get(_CONTENT)
    if volume is not None:
        if _is_ours(api, volume):
            return volume
        for name in (volume, pointer):  # what it names was removed, and is empty if it exists
            remove_if_free(api, name)
    content = DatasetStore().archive(digest)
    volume, found = f"{pointer}-{secrets.token_hex(8)}", ""
    api.create_volume(volume, labels={_LABEL: digest})
    try:
        found = _fill(api, image, digest, content, pointer, volume)
    finally:
        if found != volume:  # the fill failed, or another client was first
            remove_if_free(api, volume)
    return found


def _fill(
    api: Any, image: str, digest: str, content: Iterator[bytes], pointer: str, volume: str
) -> str:
    """Fill a volume, let the pointer name it unless another client was first; return what it names."""
    with loader(api, image, volume) as (container, target):
        api.put_archive(container, target, content)
        # While the loader refers to the volume, nobody removes it for having no pointer.
        api.create_volume(pointer, labels={_LABEL: digest, _CONTENT: volume})
        return labels_of(api, pointer).get(_CONTENT, "")


def _remove_unused(api: Any, *, dry_run: bool) -> list[str]:
    if not dry_run:
        remove_abandoned(api)
    listed = api.volumes(filters={"name": _PREFIX}).get("Volumes") or ()
    known = {item["Name"]: item.get("Labels") or {} for item in listed}
    pointers = {
        labels[_CONTENT]: name
        for name, labels in known.items()
        if _POINTER.fullmatch(name) and _CONTENT in labels
    }
    removed = []
    for volume in sorted({*pointers, *filter(_VOLUME.fullmatch, known)}):
        if dry_run:
            free = not api.containers(all=True, filters={"volume": volume})
        else:
            free = remove_if_free(api, volume)
        if free and volume in pointers:
            if not dry_run:
                remove_if_free(api, pointers[volume])
            removed.append(known[pointers[volume]][_LABEL])
    return removed
