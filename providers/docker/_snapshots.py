"""Snapshots on docker: images that a commit makes of a container's writable layer, each with our record.

The record is an empty volume with one label: whoever makes an image may give it any label and, in a file for
`docker load`, any name. So an image is a snapshot only if the daemon has its record.
"""

import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.lowlevel
from docker.errors import ImageNotFound  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import (
    CapacityError,
    ConfigurationError,
    SandboxError,
    SnapshotInUseError,
    SnapshotNotFoundError,
)
from sandboxkit.provider import Provider, age, no_sandbox
from sandboxkit.providers._gvisor import SOCKET_FOLDER
from sandboxkit.providers.docker import _memory_folders
from sandboxkit.providers.docker._agent_volume import AgentVolume
from sandboxkit.providers.docker._container import (
    ID_PATTERN,
    ORIGIN,
    ContainerImage,
    strict_folders,
)
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._errors import explanation, is_status
from sandboxkit.providers.docker._volume_api import labels_of, remove_if_free
from sandboxkit.types import SandboxSpec, SnapshotInfo, SnapshotKind, SnapshotRequest

_REPOSITORY = "sandboxkit-snapshot"
_LABEL = "sandboxkit.snapshot"
_RECORD = re.compile("sandboxkit-snapshot-([0-9a-f]{16})")
_STALE = 900.0
"""Age (s) of a record from which the process that takes its snapshot was killed."""
_ID = re.compile(r"snapshot-([0-9a-f]{16})")
_MARK = re.compile(rb'"Path":("(?:[^"\\]|\\.)*/\.wh\.(?:[^"\\]|\\.)*")')
"""A changed file that a layer would have as the mark of a deletion, in the daemon's answer."""


class DockerSnapshots(Provider):
    """The part of the docker provider that has to do with snapshots.

    The daemon pauses the container while it commits it. A snapshot is one image, tagged with its id. The
    folders of a strict sandbox, which are in memory, are an archive in the image. The container's own labels
    are blank there. The daemon's layers keep times in seconds, fill holes, and drop extended attributes of users.
    """

    daemon: Daemon
    agent: AgentVolume

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        if spec.isolation == "gvisor" and spec.snapshot is None:
            raise ConfigurationError(
                "isolation='gvisor': gVisor may hold files that Docker's commit does not see; take the "
                "snapshot in a sandbox without isolation=, and start gVisor sandboxes from it"
            )
        if kind != "files":
            raise ConfigurationError(
                f"kind={kind!r}: a snapshot on docker keeps files alone; use kind='files'"
            )

    async def take_snapshot_of(self, sandbox_id: str, request: SnapshotRequest) -> SnapshotInfo:
        """Commit a container's files; see `Box.take_snapshot`."""
        if not ID_PATTERN.fullmatch(sandbox_id):
            raise no_sandbox(sandbox_id)
        labels, about = await self.daemon.call(
            lambda api: _of_container(api, sandbox_id),
            what="describe a sandbox",
            sandbox_id=sandbox_id,
        )
        kept = SandboxSpec(profile=about["profile"])
        if about.pop("gvisor"):
            kept = replace(kept, isolation="gvisor")
        self.check_snapshot(kept, request.kind)
        if volumes := about.pop("volumes"):
            raise ConfigurationError(
                f"sandbox {sandbox_id!r} cannot be kept: its image declares the volumes {volumes}, which a "
                "commit does not see; use an image without VOLUME"
            )
        tag = secrets.token_hex(8)
        about |= {"name": request.name, "tags": dict(request.tags)}
        about |= {"created": time.time(), "expires": request.expires}
        config = {"Labels": dict.fromkeys(labels, ""), "WorkingDir": about.pop("workdir")}
        image: dict[str, Any] = {"repository": _REPOSITORY, "tag": tag, "conf": config}
        volume = (await self.agent.ensure(about["base"])).name if about["folders"] else ""

        def commit(api: Any) -> None:
            api.create_volume(f"{_REPOSITORY}-{tag}", labels={_LABEL: json.dumps(about)})
            if about["folders"]:
                _memory_folders.keep(
                    api, sandbox_id, about["base"], about["folders"], volume, image
                )
            else:
                try:
                    api.commit(sandbox_id, pause=True, **image)
                finally:  # it ran on until the commit, which some of the names fail
                    _refuse_marks(api, sandbox_id)

        try:
            await self.daemon.call(
                commit,
                what="take a snapshot",
                sandbox_id=sandbox_id,
                shield=True,
            )
            # A cancellation that came during the commit is still pending.
            await anyio.lowlevel.checkpoint()
            about, made = await self._described_image(f"snapshot-{tag}")
            return _info(self.name, f"snapshot-{tag}", about, int(made["Size"]))
        except BaseException as error:
            with anyio.CancelScope(shield=True), suppress(SandboxError):
                await self.delete_snapshot(f"snapshot-{tag}")
            if isinstance(error, CapacityError):
                raise await self._full(sandbox_id, error) from error
            raise

    async def _full(self, sandbox_id: str, error: CapacityError) -> CapacityError:
        size = "an unknown number of"
        with suppress(SandboxError):
            (found,) = await self.daemon.call(
                lambda api: api.containers(size=True, filters={"name": sandbox_id}),
                what="measure a sandbox",
            )
            size = str(int(found["SizeRw"]))
        return CapacityError(
            f"{error}; the sandbox has written {size} bytes: free space on the daemon's machine, for example "
            "with sandboxkit cleanup --snapshots"
        )

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        for snapshot_id, about, size in await self.daemon.call(_listed, what="list snapshots"):
            info = _info(self.name, snapshot_id, about, size)
            if tags.items() <= info.tags.items():
                yield info

    async def delete_snapshot(self, snapshot_id: str) -> None:
        match = _ID.fullmatch(snapshot_id)
        if match is None:
            return
        try:
            await self.daemon.call(
                lambda api: _remove(api, match[1]),
                what="remove a snapshot",
                allow=lambda error: is_status(error, 409),
                shield=True,
            )
        except Exception as error:
            if not is_status(error, 409):
                raise
            raise SnapshotInUseError(
                f"snapshot {snapshot_id!r} is in use: {explanation(error)}; stop the sandboxes that started "
                "from it"
            ) from error

    async def _snapshot_image(self, spec: SandboxSpec) -> ContainerImage:
        """Return the image of the spec's snapshot.

        Raises SnapshotNotFoundError, and ConfigurationError for a spec that names another image.
        """
        snapshot_id = spec.snapshot or ""
        about, image = await self._described_image(snapshot_id)
        if spec.image not in (None, about["image"]):
            raise ConfigurationError(
                f"image={spec.image!r}: snapshot {snapshot_id!r} was taken of a sandbox with the image "
                f"{about['image']!r}; leave image= out"
            )
        profile, folders = about.get("profile", "standard"), about.get("folders", [])
        if profile != spec.profile:
            raise ConfigurationError(
                f"profile={spec.profile!r}: snapshot {snapshot_id!r} was taken of a sandbox with "
                f"profile={profile!r}; give that"
            )
        if profile == "strict" and folders != strict_folders(spec):
            raise ConfigurationError(
                f"workdir={spec.workdir!r}: snapshot {snapshot_id!r} has the folders {folders}; give the "
                "workdir of its sandbox"
            )
        tag = snapshot_id.removeprefix("snapshot-")
        config = image["Config"] or {}
        return ContainerImage(
            f"{_REPOSITORY}:{tag}",
            image["Id"],
            about["user"],
            (),
            tuple(config.get("Env") or ()),
            config.get("WorkingDir") or "",
            about,
        )

    async def _described_image(self, snapshot_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a snapshot's record, and what the daemon knows of its image."""
        match = _ID.fullmatch(snapshot_id)
        try:
            if match is not None:
                image, labels = await self.daemon.call(
                    lambda api: (
                        api.inspect_image(f"{_REPOSITORY}:{match[1]}"),
                        labels_of(api, f"{_REPOSITORY}-{match[1]}"),
                    ),
                    what="look up a snapshot",
                    allow=lambda error: is_status(error, 404),
                )
                if _LABEL in labels:
                    return json.loads(labels[_LABEL]), image
        except Exception as error:
            if not is_status(error, 404):
                raise
        raise SnapshotNotFoundError(
            f"no snapshot {snapshot_id!r} on the daemon at {self.daemon.endpoint.url}; it was deleted, or "
            "has expired and was removed"
        )


# Any: the daemon's answers are untyped.
def _of_container(api: Any, sandbox_id: str) -> tuple[list[str], dict[str, Any]]:
    """Return the names of a container's labels, and what the record of its snapshot says of its image."""
    container = api.inspect_container(sandbox_id)
    image = api.inspect_image(container["Image"])
    labels = container["Config"].get("Labels") or {}
    origin = json.loads(labels[ORIGIN])
    is_strict = bool(container["HostConfig"].get("ReadonlyRootfs"))
    # The root of a strict sandbox never changes, so its snapshots all lie on the first image.
    base = origin["base"] or container["Image"]
    folders = container["HostConfig"].get("Tmpfs") or {}
    about = {
        "profile": "strict" if is_strict else "standard",
        "folders": sorted(each for each in folders if folders[each][:2] == "rw")
        if is_strict
        else [],
        "base": base,
        "volumes": list(image["Config"].get("Volumes") or ()),
        "image": origin["image"],
        "user": origin["user"],
        "workdir": image["Config"].get("WorkingDir") or "/",
        "below": int((api.inspect_image(base) if is_strict else image)["Size"]),
        "parent": origin["parent"],
    }
    about["gvisor"] = SOCKET_FOLDER in folders
    return list(labels), about


def _refuse_marks(api: Any, sandbox_id: str) -> None:
    """Raise ConfigurationError for a file whose name means in a layer that other files are deleted."""
    url, held = api._url("/containers/{0}/changes", sandbox_id), b""
    with api._get(url, stream=True) as response:  # of a million files, of which none is held
        api._raise_for_status(response)
        for piece in response.iter_content(1 << 16):
            held = held[max(held.rfind(b'"Path":'), 0) :] + piece
            if found := _MARK.search(held):
                raise ConfigurationError(
                    f"sandbox {sandbox_id!r} cannot be kept: {json.loads(found[1])!r} would be lost, and other files "
                    "with it, because .wh. marks deletions in the layers of images; rename it, archive it with tar, "
                    "or use provider='local'"
                )


def _listed(api: Any) -> list[tuple[str, dict[str, Any], int]]:
    """Return id, record and size of each snapshot; remove what kills have left of captures."""
    keepers = _memory_folders.listed(api)  # before their records
    tagged = {
        tag.rpartition("/")[2]: image  # Podman puts a registry before it
        for image in api.images(_REPOSITORY)
        for tag in image["RepoTags"] or ()
    }
    found, recent = [], set[str]()
    for volume in api.volumes(filters={"label": _LABEL}).get("Volumes") or ():
        if (match := _RECORD.fullmatch(volume["Name"])) is None:
            continue
        about = json.loads(volume["Labels"][_LABEL])
        image = tagged.get(f"{_REPOSITORY}:{match[1]}")
        if age(_info("docker", match[1], about, 0)) <= _STALE:
            recent.add(match[1])  # it may be being taken
        elif image is None:
            remove_if_free(api, volume["Name"])
        if image is not None:
            found.append((f"snapshot-{match[1]}", about, int(image["Size"])))
    for name, tag in keepers.items():
        if tag not in recent:
            api.remove_container(name, force=True, v=True)
    return found


def _remove(api: Any, tag: str) -> None:
    """Remove a snapshot's image, and then its record; nothing without a record."""
    if _LABEL not in labels_of(api, f"{_REPOSITORY}-{tag}"):
        return
    with suppress(ImageNotFound):
        # Not forced: an image that a container uses would stay for ever, without its tag.
        api.remove_image(f"{_REPOSITORY}:{tag}")
    remove_if_free(api, f"{_REPOSITORY}-{tag}")


def _info(provider: str, snapshot_id: str, about: Mapping[str, Any], size: int) -> SnapshotInfo:
    return SnapshotInfo(
        id=snapshot_id,
        provider=provider,
        kind="files",
        bytes=max(size - int(about["below"]), 0),
        created_at=datetime.fromtimestamp(about["created"], UTC),
        expires_at=datetime.fromtimestamp(about["expires"], UTC),
        parent=about["parent"],
        name=about["name"],
        tags=about["tags"],
    )
