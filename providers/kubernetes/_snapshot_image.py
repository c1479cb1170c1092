"""The parts of a pod's manifest that bring a snapshot's archive to it in an image, which its node pulls."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandboxkit.providers.kubernetes._parts import AGENT_DIRECTORY, LOADER
from sandboxkit.providers.kubernetes._registry import ARCHIVE

_FOLDER = "/.sandboxkit-snapshot"
_VOLUME = SNAPSHOT_CONTAINER = "snapshot"
STAGED = f"{_FOLDER}/{ARCHIVE}"
"""The encrypted copy of the archive in the sandbox's container."""

# Any: manifests are JSON.
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SnapshotImage:
    """The image of a snapshot for one pod: an init container copies its archive into a volume."""

    reference: str
    bytes: int
    """The archive's size."""
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    """The key of the copy. It stays readable in the sandbox, and may have what the sandbox has deleted."""

    @property
    def volume(self) -> Json:
        """The pod's volume for the copy."""
        return {"name": _VOLUME, "emptyDir": {}}

    @property
    def mount(self) -> Json:
        """The mount of the copy in the sandbox's container."""
        return {"name": _VOLUME, "mountPath": _FOLDER, "readOnly": True}

    def container(self, security: Json, resources: Json) -> Json:
        """Return the init container, with the sandbox's security context and resources.

        Kubernetes allows a pod the greatest disk limit of its init containers. The copy is added there, so
        that it does not count as the sandbox's.
        """
        limits = resources["limits"]
        disk = int(limits["ephemeral-storage"].removesuffix("Mi")) + (self.bytes >> 20) + 1
        limits = {key: limits[key] for key in ("cpu", "memory") if key in limits}
        requests = {
            key: resources["requests"][key] for key in ("cpu", "memory", "ephemeral-storage")
        }
        return {
            "name": SNAPSHOT_CONTAINER,
            "image": self.reference,
            "imagePullPolicy": "IfNotPresent",  # a digest names one content
            "command": [LOADER, "stage", f"/{ARCHIVE}", STAGED, self.key],
            "workingDir": "/",
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": security
            | {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [
                {"name": "agent", "mountPath": AGENT_DIRECTORY, "readOnly": True},
                {"name": _VOLUME, "mountPath": _FOLDER},
            ],
            "resources": {
                "limits": {**limits, "ephemeral-storage": f"{disk}Mi"},
                "requests": requests,
            },
        }


def key_of(pod: Mapping[str, Any]) -> str | None:
    """Return the key of the copy of a pod's manifest; None if it has no image of a snapshot."""
    for container in pod["spec"].get("initContainers") or ():
        if container["name"] == SNAPSHOT_CONTAINER:
            return str(container["command"][-1])
    return None
