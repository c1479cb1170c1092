"""Where datasets and volumes lie in a PersistentVolumeClaim, and how pods mount them."""

from collections.abc import Mapping
from typing import Any

from sandboxkit.provider import volume_of

STORE = "/storage"
"""Where a keeper pod mounts the whole claim."""
_ROOT = "sandboxkit"
_VOLUME = "storage"

# Any: manifests are JSON.
Json = dict[str, Any]


def claim_volume(claim: str) -> Json:
    """Return a pod's volume of the claim."""
    return {"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}


def mounts_of(mounts: Mapping[str, str], *, keeper: bool) -> list[Json]:
    """Return a container's mounts of `SandboxSpec.mounts`; a keeper's has the whole claim."""
    if keeper:
        return [{"name": _VOLUME, "mountPath": STORE}]
    return [
        {
            "name": _VOLUME,
            "mountPath": point,
            "subPath": f"{_ROOT}/{'/'.join(folder_of(source))}",
            "readOnly": volume_of(source) is None,
        }
        for point, source in mounts.items()
    ]


def folder_of(source: str) -> tuple[str, str]:
    """Return the kind, "datasets" or "volumes", and the folder's name for a value of `SandboxSpec.mounts`."""
    name = volume_of(source)
    return ("datasets", source.removeprefix("sha256:")) if name is None else ("volumes", name)


def used_by(pod: Mapping[str, Any], kind: str) -> set[str]:
    """Return the names of the datasets or volumes that a pod mounts."""
    paths = [
        str(mount.get("subPath", "")).split("/")
        for container in pod["spec"]["containers"]
        for mount in container.get("volumeMounts") or ()
        if mount["name"] == _VOLUME
    ]
    return {path[2] for path in paths if len(path) == 3 and path[:2] == [_ROOT, kind]}
