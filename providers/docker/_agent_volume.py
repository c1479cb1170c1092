"""The agent's binary on the daemon's machine: one read-only volume, made once per version.

The volume also holds the /etc/hosts of sandboxes without a network.

A bind mount would not work with a daemon on another machine. A copy into each container raised
the time of a start from 167 ms to 223 ms (a volume adds nothing) and fails on a read-only root.
The volume is filled through a container that is never started.
"""

import hashlib
import io
import secrets
import tarfile
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
from docker.errors import NotFound  # type: ignore[import-untyped]  # the package ships no types

from sandboxkit.providers._agent import binary
from sandboxkit.providers.docker import _answers
from sandboxkit.providers.docker._container import GO_SETTINGS, agent_path
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._loaders import loader, remove_abandoned
from sandboxkit.providers.docker._loopback import HOSTS

_LABEL = "sandboxkit.agent"
_HOSTS_NAME = "hosts"


@dataclass(frozen=True, slots=True)
class FilledVolume:
    """The volume as the daemon knows it."""

    name: str
    hosts: str
    """Path of the volume's /etc/hosts on the daemon's machine."""


class AgentVolume:
    """Creates and fills the agent volume of one daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._volume: FilledVolume | None = None
        self._lock = anyio.Lock()

    async def ensure(self, image: str, *, refill: bool = False) -> FilledVolume:
        """Return the volume, filled if it is new; cheap after the first call.

        `image` is any image that is present; the loader container is made from it. A volume that
        exists is assumed to be filled. If it is empty (another process is still filling it, or
        somebody emptied it) the sandbox's container does not start: call again with `refill`.
        """
        async with self._lock:
            if self._volume is None or refill:
                path = binary.path((await self._daemon.info()).architecture)
                content = await anyio.to_thread.run_sync(path.read_bytes)
                name = f"sandboxkit-agent-{hashlib.sha256(content + HOSTS).hexdigest()[:16]}"
                self._volume = await self._daemon.call(
                    lambda api: _ensure(api, name, image, content, refill=refill),
                    what="start a sandbox: the agent could not be stored",
                )
            return self._volume


def exec_agent(api: Any, sandbox_id: str) -> str:
    """Make an exec of the agent that connects a further client, and return its id."""
    socket = _answers.agent_socket(api.inspect_container(sandbox_id))
    argv = [agent_path(sandbox_id), "connect", socket]
    made = api.exec_create(sandbox_id, argv, stdin=True, user="0:0", environment=GO_SETTINGS)
    return str(made["Id"])


def _ensure(api: Any, name: str, image: str, content: bytes, *, refill: bool) -> FilledVolume:
    try:
        volume = FilledVolume(name, f"{api.inspect_volume(name)['Mountpoint']}/{_HOSTS_NAME}")
        if not refill:
            return volume
    except NotFound:
        created = api.create_volume(name, labels={_LABEL: "1"})
        volume = FilledVolume(name, f"{created['Mountpoint']}/{_HOSTS_NAME}")
    with loader(api, image, name) as (container, target):
        api.put_archive(container, target, _archive(content))
        remove_abandoned(api)
    return volume


def _archive(content: bytes) -> bytes:
    """Return a tar with the agent under a temporary name and a hard link for its real name.

    The daemon unpacks in place. The link makes the complete file appear atomically, so that no
    container starts half an agent. An agent that already runs keeps its old file.
    """
    buffer = io.BytesIO()
    own = f".agent-{secrets.token_hex(8)}"
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo(".")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
        hosts = tarfile.TarInfo(_HOSTS_NAME)
        hosts.size, hosts.mode = len(HOSTS), 0o644
        tar.addfile(hosts, io.BytesIO(HOSTS))
        member = tarfile.TarInfo(own)
        member.size, member.mode = len(content), 0o755
        tar.addfile(member, io.BytesIO(content))
        link = tarfile.TarInfo("agent")
        link.type, link.linkname, link.mode = tarfile.LNKTYPE, own, 0o755
        tar.addfile(link)
    return buffer.getvalue()
