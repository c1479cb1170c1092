"""Checks the folders of a sandbox at which datasets and volumes are mounted."""

import posixpath
from collections.abc import Collection

from sandboxkit.errors import ConfigurationError

_SYSTEM = ("/proc", "/sys", "/dev", "/.sandboxkit")
_WRITABLE = ("/tmp", "/workspace")


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
