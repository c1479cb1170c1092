"""Volume: a folder that sandboxes write to and that outlives them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sandboxkit import _arguments
from sandboxkit.errors import ConfigurationError

_PREFIX = "volume:"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Volume:
    """A writable folder for the option `mounts`, kept by the provider under this name.

    The first sandbox that mounts a volume creates it, empty. All sandboxes of the provider that mount the
    same name share one folder, also at the same time, and every sandbox can change what another one wrote.
    It stays until `sandboxkit volumes rm NAME`. Its size is not limited, except by the
    claim on kubernetes.

    `name` has 1 to 32 characters: a to z, 0 to 9, and hyphens between them. Raises ConfigurationError for
    another name.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"Volume(name={_arguments.shown(self.name)}): use 1 to 32 characters of a-z, 0-9 and "
                "hyphens between them, such as 'pip-cache'"
            )

    @property
    def source(self) -> str:
        """The text that stands for this volume in `SandboxSpec.mounts`: "volume:" and its name."""
        return _PREFIX + self.name


def volume_of(source: str) -> str | None:
    """Return the name of the volume that a value of `SandboxSpec.mounts` stands for; None for a dataset."""
    name = source.removeprefix(_PREFIX)
    return name if name != source and _NAME.fullmatch(name) else None


def split_mounts(mounts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the datasets of `SandboxSpec.mounts`, mount point to digest, and its volumes, mount point to
    name."""
    volumes = {point: name for point, text in mounts.items() if (name := volume_of(text))}
    return {point: text for point, text in mounts.items() if point not in volumes}, volumes
