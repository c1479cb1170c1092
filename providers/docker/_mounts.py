"""Mounts of the daemon's volumes in a container: datasets read-only, and volumes to write to."""

from collections.abc import Mapping
from functools import partial

import anyio

from sandboxkit.errors import SandboxStartError
from sandboxkit.provider import volume_of
from sandboxkit.providers.docker import _dataset_volumes, _volumes
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._volume_api import labels_of


class MountMissingError(SandboxStartError):
    """Somebody has removed what a sandbox mounts since it was found; nothing was started."""


class DockerMounts:
    """The datasets and volumes of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._volumes: dict[str, str] = {}
        """Maps a source of `SandboxSpec.mounts` to the daemon's volume."""
        self._lock = anyio.Lock()

    async def ensure(self, image: str, mounts: Mapping[str, str], *, again: bool = False) -> None:
        """Make what `SandboxSpec.mounts` names; cheap after the first call, unless `again`.

        Containers that are never started are made from `image`, which is any that is present. Raises
        DatasetNotFoundError if neither the daemon nor this machine's store has a dataset.
        """
        for source in dict.fromkeys(mounts.values()):
            async with self._lock:
                if again or source not in self._volumes:
                    name = volume_of(source)
                    self._volumes[source] = await self._daemon.call(
                        partial(_dataset_volumes.ensure, image=image, digest=source)
                        if name is None
                        else partial(_volumes.ensure, image=image, name=name, replace=again),
                        what="start a sandbox: what it mounts could not be stored",
                    )

    def of(self, mounts: Mapping[str, str]) -> list[dict[str, object]]:
        """Return the container's mounts as Docker's create call takes them, after `ensure`."""
        return [
            {
                "Type": "volume",
                "Source": self._volumes[source],
                "Target": point,
                "ReadOnly": volume_of(source) is None,
                "VolumeOptions": {"NoCopy": True},
            }
            for point, source in mounts.items()
        ]

    async def verify(self, mounts: Mapping[str, str]) -> None:
        """Raise MountMissingError unless all that a created container mounts was made by us.

        The daemon creates an empty volume, without labels, for a container that names a missing one.
        """
        for source in set(mounts.values()):
            labels = await self._daemon.call(
                partial(labels_of, volume=self._volumes[source]), what="find what a sandbox mounts"
            )
            if not labels.keys() & {_dataset_volumes.LABEL, _volumes.LABEL}:
                raise MountMissingError(
                    f"{source!r} was removed while a sandbox with it started: try again"
                )

    async def remove_unused_datasets(self, *, dry_run: bool) -> list[str]:
        """Remove the datasets that no container refers to; return the digests of the complete ones."""
        return await self._daemon.call(
            partial(_dataset_volumes.remove_unused, dry_run=dry_run), what="remove unused datasets"
        )

    async def volumes(self) -> list[str]:
        """Return the names of all volumes, sorted."""
        return await self._daemon.call(_volumes.names, what="list volumes")

    async def remove_volume(self, name: str) -> None:
        """Remove a volume. Raises VolumeError if there is none, or if a container refers to it."""
        for source in [each for each in self._volumes if volume_of(each) == name]:
            del self._volumes[source]
        await self._daemon.call(
            partial(_volumes.remove, name=name), what=f"remove the volume {name!r}"
        )
