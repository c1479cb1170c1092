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

import anyio.to_thread
from anyio.abc import ByteStream, UNIXSocketStream

__all__ = ["connect"]

_CLONE_NEWNET = 0x40000000
_SECONDS = 1.0


async def connect(pid: int, container_id: str, address: str) -> ByteStream | None:
    """Open a stream to the abstract socket `address` of a container whose first process the
    daemon says is `pid`; None where that cannot be done from here."""
    if sys.platform != "linux" or os.geteuid() != 0 or pid <= 0:
        return None
    try:
        connected = await anyio.to_thread.run_sync(_connect, pid, container_id, address)
    except (OSError, RuntimeError):  # RuntimeError: no thread starts at the interpreter's exit
        return None
    return None if connected is None else await UNIXSocketStream.from_socket(connected)


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
    try:
        connected.settimeout(_SECONDS)
        connected.connect(address.replace("@", "\0", 1))
        connected.setblocking(False)
    except BaseException:
        connected.close()
        raise
    return connected
