"""Connections from a sandbox to chosen ports of the host.

The sandbox cannot choose a port: it has a fixed set of ports of its own, and `HostPorts.url` leads each to
a port of the host.
"""

import asyncio
import functools
import ipaddress
from urllib.parse import urlsplit, urlunsplit

import verifiers.v1 as vf

from sandboxkit import ConfigurationError, Sandbox
from sandboxkit.tunnels import PortConnection, Served

_PORTS = 8
_CHUNK_BYTES = 64 * 1024


class HostPorts:
    """The host's ports that one sandbox can reach. Call `start` before `url`, and `close` at the end."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._failed = "it is not started"
        self._inside: list[Served] = []
        self._ports: list[int] = []

    async def start(self) -> None:
        """Listen in the sandbox. If its backend cannot do that, `url` raises with the reason."""
        try:
            for number in range(_PORTS):
                handler = functools.partial(self._carry, number)
                self._inside.append(await self._sandbox.serve(0, handler))
        except ConfigurationError as error:
            self._failed = str(error)

    def url(self, url: str) -> str:
        """Map a loopback URL of the host to one for use in the sandbox; return other URLs unchanged.

        Raises vf.SandboxError if the sandbox cannot reach the host, or has no port left.
        """
        parts = urlsplit(url)
        if not _is_loopback(parts.hostname or ""):
            return url
        if not self._inside:
            raise vf.SandboxError(f"the sandbox has no way to {url}: {self._failed}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port not in self._ports:
            if len(self._ports) == _PORTS:
                raise vf.SandboxError(f"the sandbox has no port left for {url}")
            self._ports.append(port)
        inside = self._inside[self._ports.index(port)]
        return urlunsplit(parts._replace(netloc=f"127.0.0.1:{inside.port}"))

    async def close(self) -> None:
        """Close the ports and every connection."""
        for each in self._inside:
            await each.close()

    async def _carry(self, number: int, connection: PortConnection) -> None:
        """Carry a connection to the host's port; a connection that breaks ends its other half."""
        if number >= len(self._ports):
            return  # no URL was asked for yet
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[number])
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_outward(connection, writer))
                both.create_task(_inward(reader, connection))
        except* ConnectionError:
            writer.transport.abort()
        finally:
            writer.close()


async def _outward(connection: PortConnection, writer: asyncio.StreamWriter) -> None:
    while data := await connection.receive(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def _inward(reader: asyncio.StreamReader, connection: PortConnection) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await connection.send(data)
    await connection.send_eof()


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
