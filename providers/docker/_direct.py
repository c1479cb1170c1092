"""Direct connections to agents on this machine, which bypass the Docker daemon.

The host's root may enter a container's network namespace, where the agent's abstract socket can
be reached. This saves two hops through the daemon for each answer, and a `docker exec` for each
further client. Where it is impossible (not root, another machine, another kernel) connections go
through the daemon.
"""

import ctypes
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxkit.provider import close_in_forks
from sandboxkit.providers._agent.unix import UnixStream
from sandboxkit.providers._capabilities import Capability, lacking
from sandboxkit.providers.docker._daemon import Daemon

_CLONE_NEWNET = 0x40000000
_SECONDS = 1.0
_CGROUPS = (
    "pids/docker/{}",  # cgroup v1, the daemon's cgroupfs driver
    "docker/{}",  # cgroup v2
    "pids/system.slice/docker-{}.scope",  # v1, its systemd driver
    "system.slice/docker-{}.scope",  # v2
)
"""Where Docker puts a container's control group below /sys/fs/cgroup, by the container's id."""
_PROCESSOR_FILES = ("cpuacct.usage", "cpu.stat")
"""The files with the CPU time of a control group: nanoseconds in v1, a table in v2."""


@dataclass
class DirectRoute:
    """The data for a direct connection to one sandbox's agent, as far as it is known."""

    container_id: str | None = None
    """The daemon's id of the container; None unless this provider created it."""
    pid: int | None = None
    """The agent's pid on this machine."""


class DirectConnections:
    """Opens direct connections to the agents of one daemon's sandboxes."""

    def __init__(self, daemon: Daemon, address: str) -> None:
        """`address` is the abstract socket on which every agent listens."""
        self._daemon, self._address = daemon, address

    async def open(self, sandbox_id: str, way: DirectRoute) -> ByteStream | None:
        """Open a stream to the agent; return None if a direct connection is impossible.

        Raises SandboxNotFoundError if the sandbox is gone, or another translated daemon error.
        """
        if not self._possible():
            return None
        if way.container_id is not None:
            # The daemon's answer to "inspect" takes this process 2 ms to read: ask it last.
            pid = way.pid or _process_in_cgroup(way.container_id)
            if pid is not None:
                stream = await connect(pid, way.container_id, self._address)
                if stream is not None:
                    way.pid = pid
                    return stream
        pid, container_id = await self._process(sandbox_id)
        stream = await connect(pid, container_id, self._address)
        if stream is not None:
            way.pid = pid
        return stream

    def pid(self, way: DirectRoute) -> int | None:
        """Return the agent's pid on this machine; None if it cannot be found."""
        if way.pid is None and way.container_id is not None and self._is_here():
            # Read from /proc: whatever delays the agent may delay the daemon, too.
            way.pid = _process_in_cgroup(way.container_id) or _first_process(way.container_id)
        return way.pid

    def processor_seconds(self, way: DirectRoute) -> float | None:
        """Return the CPU time (s) of all the container's processes so far; None if it is counted elsewhere."""
        if way.container_id is None or not self._is_here():
            return None
        for place in _CGROUPS:
            group = Path(
                "/sys/fs/cgroup", place.replace("pids/", "cpuacct/").format(way.container_id)
            )
            for name in _PROCESSOR_FILES:
                with suppress(OSError):  # there is no such group
                    text = (group / name).read_text()
                    return _seconds(text)
        return None

    def _possible(self) -> bool:
        return self._is_here() and _may_enter()

    def _is_here(self) -> bool:
        return self._daemon.endpoint.socket_path is not None and sys.platform == "linux"

    async def _process(self, sandbox_id: str) -> tuple[int, str]:
        return await self._daemon.call(
            lambda api: _process_of(api.inspect_container(sandbox_id)),
            what="connect to a sandbox",
            sandbox_id=sandbox_id,
        )


def _process_in_cgroup(container_id: str) -> int | None:
    """Find the pid of a container's first process in its control group; None if it is elsewhere."""
    for place in _CGROUPS:
        with suppress(OSError):  # there is no such group, or the process has ended
            group = Path("/sys/fs/cgroup", place.format(container_id))
            for pid in (group / "cgroup.procs").read_text().split():
                if _is_first(Path("/proc", pid)):
                    return int(pid)
    return None


def _seconds(text: str) -> float:
    if text.strip().isdecimal():
        return int(text) / 1e9
    return int(text.partition("usage_usec ")[2].split()[0]) / 1e6


def _first_process(container_id: str) -> int | None:
    """Find the pid of a container's first process in /proc; None if it is not there."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if container_id.encode() in (folder / "cgroup").read_bytes() and _is_first(folder):
                return int(folder.name)
    return None


def _is_first(folder: Path) -> bool:
    """Return whether a process, given its folder in /proc, has pid 1 in a namespace of its own."""
    status = (folder / "status").read_bytes()
    numbers = status.partition(b"\nNSpid:")[2].partition(b"\n")[0].split()
    return len(numbers) > 1 and numbers[-1] == b"1"


def _process_of(answer: Any) -> tuple[int, str]:  # Any: the daemon's answers are untyped
    """Return the pid of a container's first process, and the container's id."""
    return int(answer["State"]["Pid"]), str(answer["Id"])


async def connect(pid: int, container_id: str, address: str) -> ByteStream | None:
    """Open a stream to the abstract socket `address` in a container; None if that is impossible.

    `pid` is the container's first process, as the daemon reports it.
    """
    if sys.platform != "linux" or not _may_enter() or pid <= 0:
        return None
    try:
        connected = await anyio.to_thread.run_sync(_connect, pid, container_id, address)
    except (OSError, RuntimeError):  # RuntimeError: no thread starts at the interpreter's exit
        return None
    return None if connected is None else UnixStream(connected)


def _may_enter() -> bool:
    return not lacking(Capability.CAP_SYS_ADMIN, Capability.CAP_SYS_PTRACE)


def _connect(pid: int, container_id: str, address: str) -> socket.socket | None:
    process = os.open(f"/proc/{pid}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if container_id not in _read(process, "cgroup"):
            return None  # the daemon's pids belong to another pid namespace
        network = os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    finally:
        os.close(process)
    try:
        # setns moves the calling thread for good: use one that ends afterwards.
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
