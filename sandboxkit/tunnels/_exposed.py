"""A port of this machine that forwards to a port of a sandbox."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

from sandboxkit._calls import _arguments
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.errors import PortError, ProviderUnavailableError
from sandboxkit.provider import Box, close_in_forks
from sandboxkit.tunnels import _pump
from sandboxkit.tunnels._context_task import ContextTask, LoopbackPort, opened

_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_BACKLOG = 1024
_log = logging.getLogger("sandboxkit")


class Exposed(LoopbackPort):
    """A port of this machine's loopback, `port`, that forwards to a port of a sandbox.

    Made by `Sandbox.expose`. It stays open until `close()`, the sandbox's `stop()` or the session's end.
    A connection that the sandbox refuses is reset.
    """

    def __repr__(self) -> str:
        return f"<Exposed {self.url}>"


def expose(life: Lifecycle, port: int, host_port: int) -> Operation[Exposed]:
    """Listen on this machine for a sandbox's port; see `Sandbox.expose`."""
    port = _arguments.port("port", port)
    host_port = _arguments.port("host_port", host_port, least=0)

    @asynccontextmanager
    async def exposed(box: Box, hold: ContextTask[Exposed]) -> AsyncIterator[Exposed]:
        await box.check_ports()
        taken: asyncio.Queue[_Pair] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda *pair: taken.put_nowait(pair), "127.0.0.1", host_port, backlog=_BACKLOG
        )
        try:
            for sock in server.sockets:
                close_in_forks(sock)
            async with anyio.create_task_group() as group:
                group.start_soon(_carry_all, taken, group, box, port)
                yield Exposed(hold, server.sockets[0].getsockname()[1])
                group.cancel_scope.cancel()
        finally:
            server.close()
            while not taken.empty():
                _pump.reset(taken.get_nowait()[1])

    return opened(life, exposed)


async def _carry_all(taken: "asyncio.Queue[_Pair]", group: TaskGroup, box: Box, port: int) -> None:
    while True:
        reader, writer = await taken.get()
        _pump.guard(writer)
        group.start_soon(_carry, reader, writer, box, port)


async def _carry(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    box: Box,
    port: int,
) -> None:
    # Every other error ends the whole port: the sandbox has ended, or its ports cannot be reached.
    try:
        try:
            stream = await box.connect(port)
        except BaseException:
            _pump.reset(writer)
            raise
        await _pump.join(stream, reader, writer)
    except* (OSError, anyio.BrokenResourceError, PortError, ProviderUnavailableError) as errors:
        _log.debug("a connection to port %d of %s: %r", port, box.id, errors)
