"""Runs the MCP server on stdin and stdout, until its client disconnects or a signal arrives."""

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
    """Serve one client, close the session, and return an exit code. Call it as the process's only work.

    The server ends when its stdin is closed, also by the client's death. SIGTERM, SIGINT and SIGHUP end
    it with 128 + the signal's number. The code is 125 if the sandbox could not be deleted; the sandbox
    then ends with this process or at the end of its lifetime. May end the process without returning.
    """
    return anyio.run(_Service(session).run)


class _Service:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._code = 0
        self._last: threading.Timer | None = None

    async def run(self) -> int:
        server = build(self._session, lifespan=self._lifespan)
        # Handle signals to the end: an impatient client sends SIGTERM while the sandbox is deleted.
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
        """Close the session when the client's connection ends."""
        try:
            yield
        finally:
            signalled = self._code != 0
            with anyio.CancelScope(shield=True):
                await self._close()
            if signalled:
                # A thread may be blocked on the open stdin; only an exit ends it.
                os._exit(self._code)
            # A write to a client that does not read may block as well.
            self._last = threading.Timer(_FLUSH_SECONDS, os._exit, (self._code,))
            self._last.daemon = True
            self._last.start()

    async def _close(self) -> None:
        try:
            with anyio.fail_after(_CLOSE_SECONDS):
                await self._session.close()
        except (SandboxError, ExceptionGroup, TimeoutError) as error:
            reason = str(error) or f"it took longer than {_CLOSE_SECONDS:g} s"
            sys.stderr.write(f"sandboxkit: error: the sandbox was not deleted: {reason}\n")
            sys.stderr.flush()
            self._code = _FAILED
