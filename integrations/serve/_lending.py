"""The HTTP routes below /v1/sandboxes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import anyio
from anyio.abc import ByteStream
from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandboxkit import Operation, SandboxError
from sandboxkit.integrations.serve._admission import BusyError
from sandboxkit.integrations.serve._bodies import reading
from sandboxkit.integrations.serve._connected import closing, while_connected, whole
from sandboxkit.integrations.serve._errors import error_json, error_response
from sandboxkit.integrations.serve._gate import Client
from sandboxkit.integrations.serve._models import (
    ExecRequest,
    RenewRequest,
    RunResult,
    SandboxRequest,
)
from sandboxkit.integrations.serve._replica import Replica

_PIECE = 256 << 10
_SILENCE = 60.0
"""Seconds without data after which a client counts as disconnected. Clients send a ping every 15 s."""
_BROKEN = (
    *(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError),
    *(SandboxError, WebSocketDisconnect, TimeoutError, RuntimeError, KeyError),
)
"""Exceptions of a connection that has ended. Starlette raises RuntimeError for a closed WebSocket,
and KeyError for a message of text, which no client of ours sends."""


def lending(replica: Replica) -> APIRouter:
    """Return the routes for the sandboxes of clients."""
    router = APIRouter(prefix="/v1/sandboxes", route_class=reading(replica.workers))
    _add_sandboxes(router, replica)
    _add_use(router, replica)
    _add_provider(router, replica)
    return router


def _add_sandboxes(router: APIRouter, replica: Replica) -> None:
    @router.post("", status_code=201)
    async def create(body: SandboxRequest, client: Client, request: Request) -> dict[str, str]:
        """Start a sandbox and return its id. It is deleted if the client disconnects before that."""
        return {"id": await while_connected(request, replica.sandboxes.create(client, body))}

    @router.get("")
    async def listing(client: Client) -> list[Mapping[str, Any]]:
        """List the client's sandboxes."""
        return await replica.sandboxes.of(client)

    @router.get("/{sandbox_id}")
    async def get(sandbox_id: str, client: Client) -> Mapping[str, Any]:
        """Describe a sandbox."""
        return await replica.sandboxes.describe(client, sandbox_id)

    @router.delete("/{sandbox_id}", status_code=204)
    async def delete(sandbox_id: str, client: Client) -> None:
        """Delete a sandbox; an unknown id is no error."""
        await replica.sandboxes.delete(client, sandbox_id)


def _add_use(router: APIRouter, replica: Replica) -> None:
    @router.post("/{sandbox_id}/exec")
    async def execute(
        sandbox_id: str, body: ExecRequest, client: Client, request: Request
    ) -> RunResult:
        """Run a command to its end. It is killed if the client disconnects."""
        [result] = await whole(request, replica.exec(client, sandbox_id, body))
        return result

    @router.get("/{sandbox_id}/files")
    async def read(sandbox_id: str, path: str, client: Client) -> Response:
        """Return the content of a file."""
        pieces = replica.read(client, sandbox_id, path)
        first = await anext(pieces, b"")  # or an error, which becomes an HTTP status

        async def content() -> AsyncGenerator[bytes, None]:
            yield first
            async for piece in pieces:
                yield piece

        return StreamingResponse(closing(content(), pieces), media_type="application/octet-stream")

    @router.put("/{sandbox_id}/files", status_code=204)
    async def write(sandbox_id: str, path: str, request: Request, client: Client) -> None:
        """Write a file; the body is its content."""
        sandbox = await replica.sandboxes.find(client, sandbox_id)
        with replica.admission.unit(client):
            await sandbox.write_file(path, await request.body())

    @router.post("/{sandbox_id}/renew", status_code=204)
    async def renew(sandbox_id: str, body: RenewRequest, client: Client) -> None:
        """Set a sandbox's remaining lifetime in seconds. 422 if it exceeds the service's maximum."""
        await replica.sandboxes.renew(client, sandbox_id, body.lifetime)


def _add_provider(router: APIRouter, replica: Replica) -> None:
    """Add the further routes that `Session("http://...")` needs."""

    @router.delete("/creations/{key}")
    async def undo(key: str, client: Client) -> dict[str, str]:
        """Undo a creation, also one in progress; return the id of its sandbox, "" if there was none."""
        return {"id": await replica.sandboxes.undo(client, key)}

    @router.get("/{sandbox_id}/end")
    async def end(sandbox_id: str, client: Client) -> dict[str, Any]:
        """Return the error that describes why a sandbox ended."""
        return error_json(await replica.sandboxes.why_ended(client, sandbox_id))

    @router.get("/{sandbox_id}/usage")
    async def usage(sandbox_id: str, client: Client) -> dict[str, Any] | None:
        """Return a sandbox's resource usage; null if the backend does not report it."""
        return await replica.sandboxes.usage(client, sandbox_id)

    @router.websocket("/{sandbox_id}/link")
    async def link(socket: WebSocket, sandbox_id: str, client: Client, owner: bool = False) -> None:
        """Open a link to a sandbox's agent.

        A link with `owner` keeps an owned sandbox alive: it ends a lease (60 s) after its last such link.
        """
        try:
            async with replica.sandboxes.link(client, sandbox_id, owner=owner) as stream:
                await _carry(socket, stream)
        except (BusyError, SandboxError) as error:
            await socket.send_denial_response(error_response(error))


async def _carry(socket: WebSocket, stream: ByteStream) -> None:
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
