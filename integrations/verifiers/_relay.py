"""A relay for connections from a sandbox to chosen host ports, over a command's stdin and stdout.

The sandbox cannot choose a port: it has a fixed set of listeners, and the host maps each to a port in
`url`. Data is framed in both directions with a header of connection, listener and length.
"""

import asyncio
import contextlib
import ipaddress
import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import verifiers.v1 as vf

from sandboxkit import Process, Sandbox, SandboxError

_PROGRAM = Path(__file__).with_name("_relay_in_sandbox.py")
_LISTENERS = 8
_CONNECTIONS = 256
_START_SECONDS = 60.0
_FRAME = struct.Struct(">III")
_LARGEST = 64 * 1024


class Relay:
    """The relay of one sandbox. Call `start` before `url`, and `close` at the end."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failed = "it is not started"
        self._listeners: list[int] = []
        self._ports: list[int] = []
        self._connections: dict[int, asyncio.StreamWriter] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._sending = asyncio.Lock()

    async def start(self) -> None:
        """Start the relay. If the sandbox does not support it, `url` raises with the reason.

        Raises vf.SandboxError if the relay does not start in time.
        """
        program = ["python3", "-c", _PROGRAM.read_text(), str(_LISTENERS)]
        self._process = self._sandbox.exec(program, stdin=True, output_limit=_LARGEST)
        incoming = aiter(self._process.stdout.bytes())
        try:
            async with asyncio.timeout(_START_SECONDS):
                first = bytearray()
                while b"\n" not in first:
                    first += await anext(incoming)
        except StopAsyncIteration:
            self._failed = await self._ending()
            return
        except TimeoutError:
            raise vf.SandboxError(f"the relay did not start in {_START_SECONDS:g} s") from None
        line, _, rest = bytes(first).partition(b"\n")
        self._listeners = json.loads(line)
        self._reading = asyncio.create_task(self._read(rest, incoming))

    def url(self, url: str) -> str:
        """Map a loopback URL of the host to one for use in the sandbox; return other URLs unchanged.

        Raises vf.SandboxError if the relay does not run or has no listener left.
        """
        parts = urlsplit(url)
        if not _is_loopback(parts.hostname or ""):
            return url
        if not self._listeners:
            raise vf.SandboxError(
                f"the sandbox has no way to {url}: the relay needs python3 in its image "
                f"({self._failed})"
            )
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if port not in self._ports:
            if len(self._ports) == _LISTENERS:
                raise vf.SandboxError(f"the relay has no listener left for {url}")
            self._ports.append(port)
        inside = self._listeners[self._ports.index(port)]
        return urlunsplit(parts._replace(netloc=f"127.0.0.1:{inside}"))

    async def close(self) -> None:
        """End the relay and close every connection."""
        if self._process is not None:
            self._process.kill()
        tasks = [task for task in (self._reading, *self._answers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    async def _ending(self) -> str:
        assert self._process is not None
        try:
            result = await self._process
        except SandboxError as error:
            return str(error)
        return f"it ended with status {result.returncode}"

    async def _read(self, rest: bytes, incoming: AsyncIterator[bytes]) -> None:
        buffer = bytearray(rest)
        while True:
            while len(buffer) >= _FRAME.size:
                number, listener, size = _FRAME.unpack_from(buffer)
                if size > _LARGEST:
                    return  # not written by our relay
                if len(buffer) < _FRAME.size + size:
                    break
                data = bytes(buffer[_FRAME.size : _FRAME.size + size])
                del buffer[: _FRAME.size + size]
                await self._take(number, listener, data)
            try:
                buffer += await anext(incoming)
            except StopAsyncIteration:
                return

    async def _take(self, number: int, listener: int, data: bytes) -> None:
        connection = self._connections.get(number)
        if not data:
            if connection is not None:
                connection.close()
            return
        try:
            if connection is None:
                connection = await self._connect(number, listener)
            connection.write(data)
            await connection.drain()
        except OSError:
            await self._send(number, listener, b"")

    async def _connect(self, number: int, listener: int) -> asyncio.StreamWriter:
        if listener >= len(self._ports) or len(self._connections) >= _CONNECTIONS:
            raise ConnectionRefusedError
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[listener])
        self._connections[number] = writer
        answer = asyncio.create_task(self._answer(number, listener, reader, writer))
        self._answers.add(answer)
        answer.add_done_callback(self._answers.discard)
        return writer

    async def _answer(
        self,
        number: int,
        listener: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(_LARGEST):
                    await self._send(number, listener, data)
                await self._send(number, listener, b"")
        finally:
            self._connections.pop(number, None)
            writer.close()

    async def _send(self, number: int, listener: int, data: bytes) -> None:
        assert self._process is not None
        async with self._sending:
            await self._process.stdin.write(_FRAME.pack(number, listener, len(data)) + data)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
