"""The proxy in front of the daemons, which checks the sandbox's id and the access token of each request."""

import asyncio
from typing import Any

from tests.emulators._serving import respond
from tests.emulators.e2b._boxes import Boxes
from tests.faults.asgi import App, Message, Receive, Send


class Proxy:
    """An ASGI application that forwards requests to the daemons."""

    def __init__(self, boxes: Boxes, daemons: App) -> None:
        self._boxes, self._daemons = boxes, daemons
        self._open: set[Any] = set()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        sandbox_id = headers.get(b"e2b-sandbox-id", "")
        box = self._boxes.alive.get(sandbox_id)
        shape, settings = self._boxes.shape, self._boxes.settings
        if box is None or box.paused:
            status, text = shape.ended if box is None else shape.paused
            message = {"message": "The sandbox was not found", "code": 502}
            content = text.format(id=sandbox_id) or {"sandboxId": sandbox_id, **message}
            await respond(send, status, content)
            return
        if headers.get(b"x-access-token") != box.token:
            output = "unauthorized access, please provide a valid access token or method signing"
            told = {"code": 401, "message": f"{output} if supported"}
            await respond(send, 401, told if shape.wrong_token else "")
            return
        if scope["path"].endswith("/StreamInput"):
            if settings.hold:
                held = await _all_of(receive)
                if held is None:
                    return
                receive = held
            if settings.idle:
                receive = _impatient(receive, send, settings.idle)
        cycle = getattr(send, "__self__", None)  # uvicorn's, unless the request has a planned fault
        self._open.add(cycle)
        try:
            await self._daemons(scope, receive, send)
        finally:
            self._open.discard(cycle)

    def break_connections(self) -> None:
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
            await respond(send, 504, "")
            return {"type": "http.disconnect"}

    return impatient
