"""The short way to an agent on this very machine: into its socket, past the daemon.

The host's root may enter a container's network namespace, in which the agent's socket has its
name. Each answer then saves two hops through the daemon, and a second client a `docker exec`.
Where it does not work (not root, another machine, another kernel) the daemon's way is taken.
"""

import ctypes
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxkit.provider import close_in_forks
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers.docker._daemon import Daemon

__all__ = ["ShortWays", "connect"]

_CLONE_NEWNET = 0x40000000
_SECONDS = 1.0
_PAYS_FROM = 4
"""Which request to a sandbox is the first to go past the daemon: to find the way costs as much as
it spares a few of them."""


class ShortWays:
    """Finds the agents of a daemon's sandboxes on this machine, when it pays."""

    def __init__(self, daemon: Daemon, address: str) -> None:
        """`address` is the agents' abstract socket."""
        self._daemon, self._address = daemon, address
        self._requests: dict[str, int] = {}
        """So far, to sandboxes whose agents are reached through the daemon."""
        self._containers: dict[str, str] = {}
        """The daemon's own ids of those that were made here."""
        self._pids: dict[str, int] = {}

    def made(self, sandbox_id: str, container_id: str) -> None:
        """Know a new sandbox."""
        self._containers[sandbox_id] = container_id

    def count(self, sandbox_id: str) -> None:
        """Count a sandbox's requests from now on."""
        self._requests[sandbox_id] = 0

    def is_due(self, sandbox_id: str) -> bool:
        """Count a request; true for the one with which the short way is to be tried."""
        count = self._requests.get(sandbox_id)
        if count is None:
            return False
        self._requests[sandbox_id] = count + 1
        if count + 1 < _PAYS_FROM:
            return False
        del self._requests[sandbox_id]
        return True

    async def open(self, sandbox_id: str) -> ByteStream | None:
        """A stream to the agent; None where that cannot be done from here.

        Raises what the daemon answers of a sandbox that is gone.
        """
        if not self._possible():
            return None
        pid, container_id = await self._process(sandbox_id)
        stream = await connect(pid, container_id, self._address)
        if stream is not None:
            self._pids[sandbox_id] = pid
        return stream

    def pid(self, sandbox_id: str) -> int | None:
        """The agent's process on this machine, where it is known or can be found."""
        if sandbox_id not in self._pids and sandbox_id in self._containers and self._is_here():
            # Not asked of the daemon, which what delays the agent may delay as well.
            pid = _first_process(self._containers[sandbox_id])
            if pid is not None:
                self._pids[sandbox_id] = pid
        return self._pids.get(sandbox_id)

    def forget(self, sandbox_id: str) -> None:
        """It is being deleted."""
        self._requests.pop(sandbox_id, None)
        self._pids.pop(sandbox_id, None)
        self._containers.pop(sandbox_id, None)

    def _possible(self) -> bool:
        return self._is_here() and os.geteuid() == 0

    def _is_here(self) -> bool:
        return self._daemon.endpoint.socket_path is not None and sys.platform == "linux"

    async def _process(self, sandbox_id: str) -> tuple[int, str]:
        return await self._daemon.call(
            lambda api: _process_of(api.inspect_container(sandbox_id)),
            what="connect to a sandbox",
            sandbox_id=sandbox_id,
        )


def _first_process(container_id: str) -> int | None:
    """The process that is a container's first one, by what the kernel says of each."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if container_id.encode() in (folder / "cgroup").read_bytes():
                status = (folder / "status").read_bytes()
                numbers = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
                if len(numbers) > 1 and numbers[-1] == b"1":
                    return int(folder.name)
    return None


def _process_of(said: Any) -> tuple[int, str]:  # Any: what the daemon says is untyped
    """The first process of a container, and the container's own id."""
    return int(said["State"]["Pid"]), str(said["Id"])


async def connect(pid: int, container_id: str, address: str) -> ByteStream | None:
    """Open a stream to the abstract socket `address` of a container whose first process the
    daemon says is `pid`; None where that cannot be done from here."""
    if sys.platform != "linux" or os.geteuid() != 0 or pid <= 0:
        return None
    try:
        connected = await anyio.to_thread.run_sync(_connect, pid, container_id, address)
    except (OSError, RuntimeError):  # RuntimeError: no thread starts at the interpreter's exit
        return None
    return None if connected is None else UnixStream(connected)


def _connect(pid: int, container_id: str, address: str) -> socket.socket | None:
    process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if container_id not in _read(process, "cgroup"):
            return None  # the daemon counts its pids elsewhere
        network = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    finally:
        os.close(process)
    try:
        # A thread of its own: it ends in there.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_connect_within, network, address).result()
    finally:
        os.close(network)


def _read(folder: int, name: str) -> str:
    with open(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), encoding="ascii") as file:
        return file.read()


def _connect_within(network: int, address: str) -> socket.socket:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(network, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    close_in_forks(connected)
    try:
        connected.settimeout(_SECONDS)
        connected.connect(address.replace("@", "\0", 1))
        connected.setblocking(False)
    except BaseException:
        connected.close()
        raise
    return connected
