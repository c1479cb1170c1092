"""Writable volumes on the daemon's machine, which containers share and which outlive them."""

import io
import struct
import tarfile
import time
from collections.abc import Collection
from functools import partial
from typing import Any

import anyio
from docker.errors import NotFound  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.errors import ConfigurationError, SandboxStartError, VolumeError
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._loaders import loader, remove_abandoned
from sandboxkit.providers.docker._volume_api import labels_of, remove_if_free

_LABEL = "sandboxkit.volume"
_PREFIX = "sandboxkit-volume-"
_ACL_VERSION, _UNNAMED = 2, 0xFFFFFFFF
_USER_OBJ, _GROUP_OBJ, _OTHER = 0x01, 0x04, 0x20


class VolumeMissingError(SandboxStartError):
    """Somebody has removed a volume since it was found; nothing was started."""


class WritableVolumes:
    """The volumes of one daemon that sandboxes write to."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._ready: set[str] = set()
        self._lock = anyio.Lock()

    async def ensure(self, image: str, names: Collection[str], *, again: bool = False) -> None:
        """Create the volumes that do not exist; cheap after the first call, unless `again`.

        `image` is any image that is present; a container that is never started is made from it.
        """
        for name in dict.fromkeys(names):
            async with self._lock:
                if again or name not in self._ready:
                    await self._daemon.call(
                        partial(_prepare, image=image, name=name, replace=again),
                        what="start a sandbox: a volume could not be made",
                    )
                    self._ready.add(name)

    async def verify(self, names: Collection[str]) -> None:
        """Raise VolumeMissingError unless each volume, which a container refers to, was made by us.

        The daemon creates an unlabelled volume for a container that names a missing one.
        """
        for name in set(names):
            labels = await self._daemon.call(
                partial(labels_of, volume=volume_name(name)), what="find a volume"
            )
            if _LABEL not in labels:
                raise VolumeMissingError(
                    f"the volume {name!r} was removed while a sandbox with it started: try again"
                )

    async def names(self) -> list[str]:
        """Return the names of all volumes, sorted."""
        return await self._daemon.call(_names, what="list volumes")

    async def remove(self, name: str) -> None:
        """Remove a volume. Raises VolumeError if there is none, or if a container refers to it."""
        self._ready.discard(name)
        await self._daemon.call(partial(_remove, name=name), what=f"remove the volume {name!r}")


def volume_name(name: str) -> str:
    """Return the daemon's name for a volume."""
    return f"{_PREFIX}{name}"


# Any: the docker package has no types.
def _names(api: Any) -> list[str]:
    listed = api.volumes(filters={"label": _LABEL}).get("Volumes") or ()
    return sorted(item["Labels"][_LABEL] for item in listed)


def _prepare(api: Any, image: str, name: str, *, replace: bool) -> None:
    """Create a volume in which users of all sandboxes may write; do no harm to one that exists.

    With `replace`, a volume without our label is one that the daemon has just made for a container.
    """
    volume = volume_name(name)
    if _LABEL not in labels_of(api, volume) and not (replace and remove_if_free(api, volume)):
        try:
            api.inspect_volume(volume)
        except NotFound:
            pass
        else:
            raise ConfigurationError(
                f"Docker has a volume {volume!r} that sandboxkit did not make: remove it, or name the "
                f"volume otherwise than {name!r}"
            )
    api.create_volume(volume, labels={_LABEL: name})
    with loader(api, image, volume) as (container, target):
        # From above, because the daemon leaves the folder that it unpacks into as it is.
        api.put_archive(container, "/", _writable_folder(target.strip("/")))


def _remove(api: Any, name: str) -> None:
    if _LABEL not in labels_of(api, volume_name(name)):
        raise VolumeError(
            f"Docker has no volume {name!r} of sandboxkit; `sandboxkit volumes ls` shows all"
        )
    remove_abandoned(api)
    if not remove_if_free(api, volume_name(name)):
        raise VolumeError(
            f"volume {name!r} is in use: stop the sandboxes that mount it, and try again"
        )


def _writable_folder(name: str) -> bytes:
    """Return a tar that makes a folder writable for all, and by default whatever is made in it.

    Sandboxes run as different users, and a program's umask would keep others from changing its files. A
    default access control list takes the place of the umask.
    """
    entries = [(_USER_OBJ, 7), (_GROUP_OBJ, 7), (_OTHER, 7)]
    acl = struct.pack("<I", _ACL_VERSION) + b"".join(
        struct.pack("<HHI", tag, mode, _UNNAMED) for tag, mode in entries
    )
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o777
    folder.mtime = time.time()
    # Records of a PAX header are text; those of extended attributes have bytes, as GNU tar writes them.
    folder.pax_headers = {
        "SCHILY.xattr.system.posix_acl_default": acl.decode("utf-8", "surrogateescape"),
        "hdrcharset": "BINARY",
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(folder)
    return archive.getvalue()
