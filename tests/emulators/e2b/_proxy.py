"""The proxy in front of the daemons, which checks the sandbox's id and the access token of each request."""

import asyncio
import json
from typing import Any

from tests.emulators._faults import App, Message, Receive, Send
from tests.emulators.e2b._boxes import Boxes

_STREAMED = "/StreamInput"


class Proxy:
    """An ASGI application that forwards requests to the daemons."""

    def __init__(self, boxes: Boxes, daemons: App) -> None:
        self._boxes, self._daemons = boxes, daemons
        self._open: set[Any] = set()
        self.holds_inputs = False
        """Whether it forwards a request only when its body is complete, as many proxies do."""
        self.idle_seconds: float | None = None
        """After how long it ends a streamed request of which nothing comes; None for never."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        sandbox_id = headers.get(b"e2b-sandbox-id", "")
        box = self._boxes.alive.get(sandbox_id)
        shape = self._boxes.shape
        if box is None or box.paused:
            status, text = shape.ended if box is None else shape.paused
            if text:
                await plain(send, status, text.format(id=sandbox_id))
                return
            output = "The sandbox was not found"
            await _refuse(send, 502, {"sandboxId": sandbox_id, "message": output, "code": 502})
            return
        if headers.get(b"x-access-token") != box.token:
            if not shape.wrong_token:
                await plain(send, 401, "")
                return
            output = "unauthorized access, please provide a valid access token or method signing"
            await _refuse(send, 401, {"code": 401, "message": f"{output} if supported"})
            return
        if self.holds_inputs and scope["path"].endswith(_STREAMED):
            held = await _all_of(receive)
            if held is None:
                return
            receive = held
        if self.idle_seconds and scope["path"].endswith(_STREAMED):
            receive = _impatient(receive, send, self.idle_seconds)
        cycle = getattr(send, "__self__", None)  # uvicorn's, unless the request has a planned fault
        self._open.add(cycle)
        try:
            await self._daemons(scope, receive, send)
        finally:
            self._open.discard(cycle)

    def break_connections(self) -> None:
        """Abort all connections with an open request to a daemon."""
        for cycle in self._open - {None}:
            cycle.transport.abort()


async def _all_of(receive: Receive) -> Receive | None:
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    if messages[-1]["type"] == "http.disconnect":
        return None  # a request that the client cancelled is not forwarded

    async def held() -> Message:
        return messages.pop(0) if messages else await receive()

    return held


def _impatient(receive: Receive, send: Send, seconds: float) -> Receive:
    async def impatient() -> Message:
        try:
            return await asyncio.wait_for(receive(), seconds)
        except TimeoutError:
            await plain(send, 504, "")
            return {"type": "http.disconnect"}

    return impatient


async def plain(send: Send, status: int, text: str) -> None:
    """Respond with plain text."""
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})


async def _refuse(send: Send, status: int, output: dict[str, Any]) -> None:
    headers = [(b"content-type", b"application/json; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(output).encode()})
