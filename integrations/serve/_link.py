"""Carries the link to a sandbox's agent over a WebSocket, as binary messages."""

import asyncio
import contextlib

import anyio
from anyio.abc import ByteStream
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandboxkit import Operation, SandboxError

_PIECE = 256 << 10
_SILENCE = 60.0
"""Seconds without data after which a client counts as disconnected. Clients send a ping every 15 s."""
_BROKEN = (
    *(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError),
    *(SandboxError, WebSocketDisconnect, TimeoutError, RuntimeError),
)
"""Exceptions of a connection that has ended. Starlette raises RuntimeError for a closed WebSocket."""


async def carry(socket: WebSocket, stream: ByteStream) -> None:
    """Copy bytes in both directions until one of the two connections ends; then close both.

    `stream` belongs to sandboxkit's event loop, `socket` to the server's.
    """

    async def to_agent() -> None:
        while True:
            async with asyncio.timeout(_SILENCE):
                data = await socket.receive_bytes()
            await Operation(stream.send(data))

    async def to_client() -> None:
        while True:
            await socket.send_bytes(await Operation(stream.receive(_PIECE)))

    tasks: list[asyncio.Task[None]] = []
    try:
        await socket.accept()
        tasks = [asyncio.create_task(to_agent()), asyncio.create_task(to_client())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await Operation(anyio.aclose_forcefully(stream))
        with contextlib.suppress(*_BROKEN):
            await socket.close()
    for error in ended:
        if error is not None and not isinstance(error, (*_BROKEN, asyncio.CancelledError)):
            raise error
