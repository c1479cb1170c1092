"""Connections from a sandbox to selected ports of the host.

The sandbox cannot select a host port: it has a fixed set of ports, and `HostPorts.url` assigns a port
of the host to each.
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
    """Forwards ports of one sandbox to ports of the host. Call `start` before `url`, `close` at the end."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._failed = "it is not started"
        self._inside: list[Served] = []
        self._ports: list[int] = []

    async def start(self) -> None:
        """Listen on ports in the sandbox. If its backend does not support that, `url` raises an error."""
        try:
            for number in range(_PORTS):
                handler = functools.partial(self._carry, number)
                self._inside.append(await self._sandbox.serve(0, handler))
        except ConfigurationError as error:
            self._failed = str(error)

    def url(self, url: str) -> str:
        """Return the URL by which the sandbox reaches a loopback URL of the host.

        Returns other URLs unchanged. Raises vf.SandboxError if the backend does not support ports, or if
        no port is left.
        """
        parts = urlsplit(url)
        if not _is_loopback(parts.hostname or ""):
            return url
        if not self._inside:
            raise vf.SandboxError(f"the sandbox cannot reach {url}: {self._failed}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port not in self._ports:
            if len(self._ports) == _PORTS:
                raise vf.SandboxError(f"the sandbox has no port left for {url}")
            self._ports.append(port)
        inside = self._inside[self._ports.index(port)]
        return urlunsplit(parts._replace(netloc=f"127.0.0.1:{inside.port}"))

    async def close(self) -> None:
        """Close the ports and all connections."""
        for each in self._inside:
            await each.close()

    async def _carry(self, number: int, connection: PortConnection) -> None:
        """Forward a connection to the host's port; if one side breaks, close the other."""
        if number >= len(self._ports):
            return  # the port has no URL yet
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
