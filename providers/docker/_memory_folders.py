"""The folders of a strict container that are in memory: archived for a snapshot, unpacked at a start from it.

A commit does not see them. While the sandbox is paused, a second container of the same image reads them
through the sandbox's first process and writes an archive to its own layer, which is then committed.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from docker.errors import APIError  # type: ignore[import-untyped]  # ships no types

from sandboxkit.errors import CapacityError, ConfigurationError, SandboxError
from sandboxkit.types import Command

__all__ = ["UNPACK", "keep", "remove_stale"]

_ARCHIVE = "/.sandboxkit-files.tar"
_NAMES = "/.sandboxkit-names"
_LABEL = "sandboxkit.keeper"
"""The label of the second container."""
_STALE = 900.0
"""Seconds after which such a container is of a process that was killed."""
_SECONDS = 600.0
"""Time limit (s) of an archive."""
_PAUSES = 10
"""How often a sandbox is asked to stand still."""
_PACK = (
    f'cd /proc/1/root && find "$@" -mindepth 1 -print0 >{_NAMES} && '
    f"tar -S --format=posix --null --no-recursion -T {_NAMES} -cf {_ARCHIVE} && "
    f"rm {_NAMES} && chmod 444 {_ARCHIVE}"
)
UNPACK = Command(("tar", "-C", "/", "-xpf", _ARCHIVE))
"""Run by the sandbox's user, to whom the files then belong."""


# Any: the daemon's client and answers are untyped.
def keep(api: Any, sandbox_id: str, base: str, folders: Sequence[str], **image: object) -> None:
    """Commit an image of `base` and a sandbox's folders; `image` are arguments of the commit.

    The sandbox is paused while they are read. Raises ConfigurationError for an image without the programs.
    """
    name = f"sandboxkit-keeper-{secrets.token_hex(8)}"
    api.create_container_from_config(_body(sandbox_id, base, folders), name)
    try:
        _pause(api, sandbox_id)
        try:
            api.start(name)
            status = api.wait(name, timeout=_SECONDS)["StatusCode"]
        except APIError as error:
            if "executable file not found" in str(error):
                raise _failed(str(error.explanation), sandbox_id) from error
            raise
        finally:
            api.unpause(sandbox_id)
        if status:
            raise _failed(api.logs(name).decode(errors="replace")[-1000:].strip(), sandbox_id)
        api.commit(name, pause=False, **image)
    finally:
        api.remove_container(name, force=True, v=True)


def remove_stale(api: Any) -> None:
    """Remove the containers that processes left that were killed while they took a snapshot."""
    for each in api.containers(all=True, filters={"label": _LABEL}):
        if time.time() - each["Created"] > _STALE:
            api.remove_container(each["Id"], force=True, v=True)


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


def _body(sandbox_id: str, base: str, folders: Sequence[str]) -> dict[str, object]:
    return {
        "Image": base,
        "User": "0:0",
        "Entrypoint": ["sh", "-c", _PACK, "sh"],
        "Cmd": [folder.strip("/") for folder in folders],
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {_LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {
            "CapDrop": ["ALL"],
            # To see another user's root folder, and to read its files.
            "CapAdd": ["DAC_OVERRIDE", "DAC_READ_SEARCH", "SYS_PTRACE"],
            "LogConfig": {"Type": "json-file"},
            "NetworkMode": "none",
            "PidMode": f"container:{sandbox_id}",
            "SecurityOpt": ["no-new-privileges"],
        },
    }


def _failed(reason: str, sandbox_id: str) -> SandboxError:
    if "No space left" in reason:
        return CapacityError(reason, provider="docker", sandbox_id=sandbox_id)
    return ConfigurationError(
        "a snapshot of a sandbox with profile='strict' needs sh, find and GNU tar in its image: "
        f"{reason}; use another image, or profile='standard'",
        provider="docker",
        sandbox_id=sandbox_id,
    )
