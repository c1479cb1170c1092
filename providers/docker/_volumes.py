"""Writable volumes on the daemon's machine, which containers share and which outlive them."""

import io
import struct
import tarfile
import time
from typing import Any

from docker.errors import NotFound  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.errors import ConfigurationError, VolumeError
from sandboxkit.providers.docker._loaders import loader, remove_abandoned
from sandboxkit.providers.docker._volume_api import labels_of, remove_if_free

LABEL = "sandboxkit.volume"
_PREFIX = "sandboxkit-volume-"
_ACL_VERSION, _UNNAMED = 2, 0xFFFFFFFF
_USER_OBJ, _GROUP_OBJ, _OTHER = 0x01, 0x04, 0x20


# Any: the docker package has no types.
def names(api: Any) -> list[str]:
    """Return the names of all volumes, sorted."""
    listed = api.volumes(filters={"label": LABEL}).get("Volumes") or ()
    return sorted(item["Labels"][LABEL] for item in listed)


def ensure(api: Any, image: str, name: str, *, replace: bool) -> str:
    """Create a volume in which users of all sandboxes may write, and return the daemon's name for it.

    It does no harm to one that exists. With `replace`, a volume without our label is one that the daemon has just made for a container.
    """
    volume = f"{_PREFIX}{name}"
    if LABEL not in labels_of(api, volume) and not (replace and remove_if_free(api, volume)):
        try:
            api.inspect_volume(volume)
        except NotFound:
            pass
        else:
            raise ConfigurationError(
                f"Docker has a volume {volume!r} that sandboxkit did not make: remove it, or name the "
                f"volume otherwise than {name!r}"
            )
    api.create_volume(volume, labels={LABEL: name})
    with loader(api, image, volume) as (container, target):
        # From above, because the daemon leaves the folder that it unpacks into as it is.
        api.put_archive(container, "/", _writable_folder(target.strip("/")))
    return volume


def remove(api: Any, name: str) -> None:
    """Remove a volume. Raises VolumeError if there is none, or if a container refers to it."""
    volume = f"{_PREFIX}{name}"
    if LABEL not in labels_of(api, volume):
        raise VolumeError(
            f"Docker has no volume {name!r} of sandboxkit; `sandboxkit volumes ls` shows all"
        )
    remove_abandoned(api)
    if not remove_if_free(api, volume):
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
