"""Mounts of the daemon's volumes in a container: datasets read-only, and volumes to write to."""

from collections.abc import Mapping

from sandboxkit.provider import split_mounts
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._dataset_volumes import DatasetMissingError, DatasetVolumes
from sandboxkit.providers.docker._volumes import VolumeMissingError, WritableVolumes, volume_name

MISSING = (DatasetMissingError, VolumeMissingError)
"""The errors of `DockerMounts.verify`; `ensure` with `again` makes what is missing."""


class DockerMounts:
    """The datasets and volumes of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.datasets = DatasetVolumes(daemon)
        self.volumes = WritableVolumes(daemon)

    async def ensure(self, image: str, mounts: Mapping[str, str], *, again: bool = False) -> None:
        """Make what `SandboxSpec.mounts` names, with an image that is present; cheap unless `again`."""
        datasets, volumes = split_mounts(mounts)
        await self.datasets.ensure(image, datasets.values(), again=again)
        await self.volumes.ensure(image, volumes.values(), again=again)

    def of(self, mounts: Mapping[str, str]) -> list[dict[str, object]]:
        """Return the container's mounts as Docker's create call takes them, after `ensure`."""
        datasets, volumes = split_mounts(mounts)
        written = {point: volume_name(name) for point, name in volumes.items()}
        return [
            *(_mount(point, name, True) for point, name in self.datasets.of(datasets).items()),
            *(_mount(point, name, False) for point, name in written.items()),
        ]

    async def verify(self, mounts: Mapping[str, str]) -> None:
        """Raise one of MISSING unless all that a created container mounts was made by us."""
        datasets, volumes = split_mounts(mounts)
        await self.datasets.verify(self.datasets.of(datasets).values())
        await self.volumes.verify(volumes.values())


def _mount(point: str, volume: str, read_only: bool) -> dict[str, object]:
    return {
        "Type": "volume",
        "Source": volume,
        "Target": point,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }
