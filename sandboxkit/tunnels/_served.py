"""A port inside a sandbox that forwards to this process."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, Protocol

import anyio
from anyio.abc import ByteStream, TaskGroup

from sandboxkit._calls import _arguments
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.egress._shares import FILES
from sandboxkit.errors import ConfigurationError, ProviderUnavailableError
from sandboxkit.provider import Box, PortListener
from sandboxkit.tunnels import _pump
from sandboxkit.tunnels._connection import PortConnection
from sandboxkit.tunnels._context_task import ContextTask, LoopbackPort, opened

Handler = Callable[[PortConnection], Awaitable[None]]
"""An async function that is called with each connection; the connection closes when it returns."""

_ACCEPTS = 4
"""How many tasks accept connections at once: each accept from a distant sandbox takes a round trip."""
_log = logging.getLogger("sandboxkit")


class Served(LoopbackPort):
    """A port of a sandbox's loopback, `port`, that forwards to this process. Made by `Sandbox.serve`.

    It stays open until `close()`, the sandbox's `stop()` or the session's end. `url` is its address
    inside the sandbox.
    """

    def __repr__(self) -> str:
        return f"<Served {self.url} inside>"


class Carrier(Protocol):
    """The interface of an object that serves connections from a sandbox."""

    async def carry(self, stream: ByteStream) -> None:
        """Serve one connection from the sandbox, and close it."""
        ...


class Address(NamedTuple):
    """A server to which this process forwards connections."""

    host: str
    port: int

    async def carry(self, stream: ByteStream) -> None:
        """Connect to the server, and copy data between it and the sandbox's connection."""
        try:
            async with FILES.place(id(self)):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                _pump.guard(writer)
                await _pump.join(stream, reader, writer)
        finally:
            await stream.aclose()


class HandlerRunner:
    """Runs a handler on the caller's event loop, for each connection."""

    def __init__(self, handler: Handler) -> None:
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigurationError(
                "a handler runs on the event loop that calls serve(), and none runs here: call "
                "serve() in a coroutine, or give the address of a server, such as '127.0.0.1:9000'"
            ) from None
        self._handler = handler

    async def carry(self, stream: ByteStream) -> None:
        """Call the handler, and close the connection when it returns or fails."""
        connection = PortConnection(stream, _nothing)
        try:
            if self._loop.is_closed():
                raise ConnectionAbortedError("the event loop of the handler is closed")
            running = asyncio.run_coroutine_threadsafe(self._run(connection), self._loop)
            await asyncio.wrap_future(running)
            await connection._close()
        finally:
            await stream.aclose()

    async def _run(self, connection: PortConnection) -> None:
        try:
            await self._handler(connection)
        except Exception:  # noqa: BLE001 - the caller's error ends its connection only
            _log.exception("the handler of a served port failed")


def _nothing() -> None:
    """Do nothing: no task waits for the end of a handler's connection."""


def _carrier(to: str | Handler) -> Address | HandlerRunner:
    if not isinstance(to, str):
        return HandlerRunner(to)
    host, _, port = to.rpartition(":")
    if not host or not port.isdecimal():
        _arguments.refuse("to", to, "an address such as '127.0.0.1:9000', or an async function")
    return Address(host.removeprefix("[").removesuffix("]"), _arguments.port("to", int(port)))


def serve(life: Lifecycle, port: int, to: str | Handler) -> Operation[Served]:
    """Listen inside a sandbox and forward to this process; see `Sandbox.serve`."""
    port, carrier = _arguments.port("port", port, least=0), _carrier(to)
    return opened(life, lambda box, hold: listening(box, port, carrier, hold))


@asynccontextmanager
async def listening(
    box: Box, port: int, to: Carrier, hold: ContextTask[Served]
) -> AsyncIterator[Served]:
    """Listen on a port of a sandbox and pass its connections to `to`, until the context is left."""
    listener = await box.listen(port)
    try:
        async with anyio.create_task_group() as group:
            for _ in range(_ACCEPTS):
                group.start_soon(_accept, listener, to, group)
            yield Served(hold, listener.port)
            group.cancel_scope.cancel()
    finally:
        await listener.aclose()


async def _accept(listener: PortListener, to: Carrier, group: TaskGroup) -> None:
    while True:
        group.start_soon(_carry, await listener.accept(), to)


async def _carry(stream: ByteStream, to: Carrier) -> None:
    # Every other error ends the whole port: the sandbox has ended.
    try:
        await to.carry(stream)
    except* (OSError, anyio.BrokenResourceError, ProviderUnavailableError) as errors:
        _log.debug("a connection of a served port: %r", errors)
