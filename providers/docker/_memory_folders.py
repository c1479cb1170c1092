"""The folders of a strict container that are in memory: archived for a snapshot, unpacked at a start from it.

A commit does not see them. While the sandbox is paused, the agent's program in a second container of the same
image reads them through the sandbox's first process and writes an archive to its own layer, which is then
committed. No program of the image runs there. Each start unpacks the archive as the sandbox's user.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import APIError  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import CapacityError, ConfigurationError
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR
from sandboxkit.providers.docker._container import agent_mount, agent_path, strict_folders
from sandboxkit.types import Command, SandboxSpec

_NAME = "sandboxkit-keeper-"
_LABEL = "sandboxkit.keeper"
"""The label of the second container, with its snapshot's tag. An image's containers may have it too; their names
differ."""
_SECONDS = 600.0
"""Time limit (s) of an archive."""
_PAUSES = 10
"""How often a sandbox is asked to stand still."""


# Any: the daemon's client and answers are untyped.
def keep(
    api: Any,
    sandbox_id: str,
    base: str,
    folders: Sequence[str],
    agent_volume: str,
    image: Mapping[str, Any],
) -> None:
    """Commit an image of `base` and a sandbox's folders; `image` are arguments of the commit.

    The sandbox is paused while they are read. Raises ConfigurationError if one is not in memory.
    """
    name = f"{_NAME}{secrets.token_hex(8)}"
    argv = [agent_path(name), "pack", _archive(image["tag"]), *folders]
    body = _body(sandbox_id, base, argv, agent_mount(name, agent_volume), image["tag"])
    api.create_container_from_config(body, name)
    try:
        _pause(api, sandbox_id)
        try:
            api.start(name)
            status = api.wait(name, timeout=_SECONDS)["StatusCode"]
        finally:
            api.unpause(sandbox_id)
        if status:
            reason = api.logs(name).decode(errors="replace")[-1000:].strip()
            if "no space left" in reason.lower():
                raise CapacityError(reason)
            raise ConfigurationError(
                f"the folders of a sandbox with profile='strict' were not kept: {reason}; use another image, or "
                "profile='standard'"
            )
        api.commit(name, pause=False, **image)
    finally:
        api.remove_container(name, force=True, v=True)


def unpack(sandbox_id: str, spec: SandboxSpec) -> Command:
    """Return the command that unpacks the archive of the spec's snapshot, for the sandbox's user.

    The files then belong to that user.
    """
    archive = _archive((spec.snapshot or "").removeprefix("snapshot-"))
    workdir = spec.workdir or DEFAULT_WORKDIR
    return Command((agent_path(sandbox_id), "unpack", archive, workdir, *strict_folders(spec)))


def _archive(tag: str) -> str:
    """Return the archive's path, which no image has before the snapshot's tag is chosen."""
    return f"/.sandboxkit-files-{tag}"


def listed(api: Any) -> dict[str, str]:
    """Return the containers that archive folders: the tag of the snapshot that each makes, by name."""
    return {
        name[1:]: each["Labels"][_LABEL]
        for each in api.containers(all=True, filters={"label": _LABEL})
        for name in each["Names"]
        if name.startswith(f"/{_NAME}")
    }


def _pause(api: Any, sandbox_id: str) -> None:
    for left in reversed(range(_PAUSES)):
        try:
            api.pause(sandbox_id)
            return
        except APIError as error:
            # The kernel froze not all of a sandbox on a busy machine, and the runtime gave up.
            if "unable to freeze" not in str(error) or not left:
                raise
        time.sleep(0.1)


def _body(
    sandbox_id: str, base: str, argv: Sequence[str], mount: Mapping[str, object], tag: str
) -> dict[str, object]:
    return {
        "Image": base,
        "User": "0:0",
        "Entrypoint": argv,
        "WorkingDir": "/",  # the image's may be a place that only its own programs can enter
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {_LABEL: tag},
        "NetworkDisabled": True,
        "HostConfig": {
            "CapDrop": ["ALL"],
            # To enter the sandbox's root and to write to its own; it reads files as their owners.
            "CapAdd": ["DAC_OVERRIDE", "SETGID", "SETUID", "SYS_CHROOT", "SYS_PTRACE"],
            "LogConfig": {"Type": "json-file"},
            "Mounts": [mount],
            "NetworkMode": "none",
            "PidMode": f"container:{sandbox_id}",
            "SecurityOpt": ["no-new-privileges"],
        },
    }
