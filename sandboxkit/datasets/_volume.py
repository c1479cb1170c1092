"""Volume: a folder that sandboxes write to and that outlives them; and where sandboxes may mount."""

import posixpath
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit.errors import ConfigurationError

_SYSTEM = ("/proc", "/sys", "/dev", "/.sandboxkit")
_WRITABLE = ("/tmp", "/workspace")
_PREFIX = "volume:"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")


@explained
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


def check_mounts(points: Collection[str], workdir: str | None) -> None:
    """Raise ConfigurationError for a folder where a mount would hide what a sandbox needs.

    `points` are absolute paths without "..".
    """
    for point in points:
        why = _objection(point, points, workdir)
        if why:
            raise ConfigurationError(f"mounts at {point!r}: {why}; use a folder such as '/data'")


def _objection(point: str, points: Collection[str], workdir: str | None) -> str:
    path = "/" + posixpath.normpath(point).lstrip("/")
    if path != point:
        return f"write {path!r}, the shortest form of the path"
    if any(_within(path, folder) for folder in _SYSTEM):
        return "this folder is the system's"
    for folder in (*_WRITABLE, *((workdir,) if workdir else ())):
        if _within(folder, path):
            return f"it would hide {folder!r}, which is writable"
    for other in points:
        if other != point and _within(path, other):
            return f"it lies in {other!r}, where something else is mounted"
    return ""


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
