"""The server on standard input and output, and its end: with its client, or by a signal."""

import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.server.mcpserver import MCPServer

from sandboxkit import SandboxError, Session
from sandboxkit.integrations.mcp._server import build

_CLOSE_SECONDS = 30.0
_FLUSH_SECONDS = 3.0
_FAILED = 125


def serve(session: Session) -> int:
    """Serve one client, close the session, and return an exit code. It is the whole program.

    The client is gone when it has closed our input, which its death does, too; SIGTERM, SIGINT and
    SIGHUP end the server as well, with 128 and their number. Where the sandbox could not be deleted
    it is 125; it then ends with this process, or with its lifetime.
    """
    return anyio.run(_Service(session).run)


class _Service:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._code = 0
        self._last: threading.Timer | None = None

    async def run(self) -> int:
        server = build(self._session, lifespan=self._lifespan)
        # To the end: a client that finds our end too slow sends SIGTERM while the sandbox is deleted.
        with anyio.open_signal_receiver(signal.SIGHUP, signal.SIGINT, signal.SIGTERM) as signals:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    async for number in signals:
                        self._code = 128 + number
                        return group.cancel_scope.cancel()

                group.start_soon(watch)
                await server.run_stdio_async()
                group.cancel_scope.cancel()
        if self._last is not None:
            self._last.cancel()
        return self._code

    @asynccontextmanager
    async def _lifespan(self, server: MCPServer[None]) -> AsyncIterator[None]:
        """What the calls of the client happen in; when it ends no more come."""
        try:
            yield
        finally:
            signalled = self._code != 0
            with anyio.CancelScope(shield=True):
                await self._close()
            if signalled:
                # A thread may be reading our input, which is open: nothing else would end that.
                os._exit(self._code)
            # Nor a write to a client that does not read.
            self._last = threading.Timer(_FLUSH_SECONDS, os._exit, (self._code,))
            self._last.daemon = True
            self._last.start()

    async def _close(self) -> None:
        try:
            with anyio.fail_after(_CLOSE_SECONDS):
                await self._session.close()
        except (SandboxError, ExceptionGroup, TimeoutError) as error:
            said = str(error) or f"it took longer than {_CLOSE_SECONDS:g} s"
            sys.stderr.write(f"sandboxkit: error: the sandbox was not deleted: {said}\n")
            sys.stderr.flush()
            self._code = _FAILED
