"""Loader containers: never started, they are a way for a client to write into a volume of the daemon."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from docker.errors import APIError  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.provider import is_alive, owner

_CLIENT = "sandboxkit.loader"
"""The label with the process that made it."""
_LOADER = "sandboxkit-loader-"
_LOADED_WITHIN = 24 * 3600
"""Age (s) from which a loader container of another machine is abandoned."""


# Any: the docker package has no types.
@contextmanager
def loader(api: Any, image: str, volume: str) -> Iterator[tuple[str, str]]:
    """Make a container that mounts a volume, yield its id and the mount point, and remove it in the end.

    `image` is any image that is present. It has no link at the mount point, whose name is random.
    """
    name = f"{_LOADER}{secrets.token_hex(8)}"
    target = f"/.{name}"
    mount = {"Type": "volume", "Source": volume, "Target": target}
    container = api.create_container_from_config(
        {
            "Image": image,
            "Entrypoint": [target],  # a folder: nothing can be run
            "Labels": {_CLIENT: owner()},
            "HostConfig": {
                "NetworkMode": "none",
                "Mounts": [mount | {"VolumeOptions": {"NoCopy": True}}],
            },
        },
        name,
    )["Id"]
    try:
        yield container, target
    finally:
        api.remove_container(container, force=True, v=True)


def remove_abandoned(api: Any) -> None:
    """Remove loader containers of killed clients, which keep volumes in use."""
    loaders = [
        item
        for item in api.containers(all=True, filters={"label": _CLIENT})
        if any(name.startswith(f"/{_LOADER}") for name in item["Names"])
    ]
    newest = max((item["Created"] for item in loaders), default=0)
    for item in loaders:
        old = item["Created"] < newest - _LOADED_WITHIN
        if old or is_alive(item["Labels"][_CLIENT]) is False:
            with suppress(APIError):  # another client has just removed it
                api.remove_container(item["Id"], force=True, v=True)
