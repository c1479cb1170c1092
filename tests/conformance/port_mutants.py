"""Providers, and functions of the SDK beside them, whose ports are wrong in one way each."""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, ClassVar

from anyio.abc import ByteStream, TaskGroup

from sandboxkit.errors import PortError
from sandboxkit.provider import PortListener
from sandboxkit.testing import fake
from sandboxkit.testing.fake import FakeBox, FakeConnection, FakePortListener
from sandboxkit.tunnels import _exposed, _pump, _served

leaked: list[Callable[[], Coroutine[Any, Any, None]]] = []  # Any: as asyncio declares it
"""Functions that close the listeners that mutants left open."""


class Patched(FakeBox):
    """A sandbox for whose test an attribute of another module is replaced."""

    patch: ClassVar[tuple[object, str, object]]
    """Its owner, its name and its replacement."""


def patched(owner: object, name: str, replacement: object) -> type[Patched]:
    """A sandbox for whose test this attribute is replaced."""

    class Replacing(Patched):
        patch = (owner, name, replacement)

    return Replacing


class _WithoutEnd(FakeConnection):
    async def send_eof(self) -> None:
        pass


DropsTheEnd = patched(fake, "FakeConnection", _WithoutEnd)
"""The end of one direction of a connection is not passed on."""


class _Mixed(FakeConnection):
    newest: ClassVar[bytes] = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = await super().receive(max_bytes)
        given, _Mixed.newest = _Mixed.newest or data, data
        return given


MixesConnections = patched(fake, "FakeConnection", _Mixed)
"""A connection receives the data of another one."""


class _Repeating(FakeConnection):
    cuts: ClassVar[int] = 0

    def __init__(self, stream: Any) -> None:  # Any: anyio's socket stream, passed on
        super().__init__(stream)
        self._seen, self._newest = _Repeating.cuts, b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if self._seen != _Repeating.cuts:
            self._seen = _Repeating.cuts
            return self._newest
        self._newest = await super().receive(max_bytes)
        return self._newest


class RepeatsAfterACut(Patched):
    """What was received last before a link broke is received again."""

    patch = (fake, "FakeConnection", _Repeating)

    async def cut(self) -> None:
        _Repeating.cuts += 1


async def _without_waiting(stream: ByteStream, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(await stream.receive())


BuffersWithoutLimit = patched(_pump, "_inward", _without_waiting)
"""`expose` reads on from the sandbox while its client reads nothing."""


EndsRefusedConnections = patched(_pump, "reset", asyncio.StreamWriter.close)
"""A client of `expose` takes a refused connection for one that ended without data."""


async def _kept_server(
    accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
    *arguments: Any,  # Any: those of asyncio.start_server
    **named: Any,
) -> SimpleNamespace:
    writers: list[asyncio.StreamWriter] = []

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        accept(reader, writer)

    server = await asyncio.start_server(accepted, *arguments, **named)

    async def close() -> None:
        server.close()
        for writer in writers:
            writer.close()

    leaked.append(close)
    return SimpleNamespace(sockets=server.sockets, close=lambda: None)


KeepsExposing = patched(
    _exposed, "asyncio", SimpleNamespace(Queue=asyncio.Queue, start_server=_kept_server)
)
"""The listener of `expose` is not closed."""


async def _stays_open(self: FakePortListener) -> None:
    leaked.append(self._listener.aclose)


KeepsServing = patched(FakePortListener, "aclose", _stays_open)
"""The listener of `serve` is not closed."""


async def _one_by_one(listener: PortListener, to: _served.Carrier, group: TaskGroup) -> None:
    while True:
        await _served._carry(await listener.accept(), to)


ServesOneByOne = patched(_served, "_accept", _one_by_one)
"""`serve` takes a further connection when an earlier one has ended."""


class AcceptsForNobody(FakeBox):
    """A connection to a port on which nobody listens begins, and then breaks."""

    async def connect(self, port: int) -> ByteStream:
        try:
            return await super().connect(port)
        except PortError:
            with socket.create_server(("127.0.0.1", 0)) as nobody:
                return await super().connect(nobody.getsockname()[1])


class ServesAnotherPort(FakeBox):
    """`serve` listens on some other port if its own is taken."""

    async def listen(self, port: int) -> PortListener:
        try:
            return await super().listen(port)
        except PortError:
            return await super().listen(0)
