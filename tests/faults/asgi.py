"""Planned faults of an emulator's HTTP server, as ASGI middleware."""

import contextlib
import operator
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from tests.faults._plan import Drop, End, HttpAnswer, Reset, Rule, Rules, Stall

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class ConnectionBroken(Exception):
    """Raised to end the application's work on a request whose connection is aborted."""


class Faults(Rules):
    """Wraps an ASGI application, records its requests, and injects the planned faults.

    A rule is for the requests whose "METHOD /path" contains its name.
    """

    def __init__(self, app: App, end_sandboxes: Callable[[], Awaitable[None]]) -> None:
        super().__init__(operator.contains)
        self._app, self._end_sandboxes = app, end_sandboxes
        self.requests: list[str] = []
        """All requests since `clear` as "METHOD /path", in order."""

    def clear(self) -> None:
        super().clear()
        self.requests.clear()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        name = f"{scope['method']} {scope['path']}"
        self.requests.append(name)
        rule = self.take(name)
        if rule is None:
            await self._app(scope, receive, send)
        elif isinstance(rule.fault, HttpAnswer):
            await _answer(rule.fault, send)
        else:
            try:
                if rule.fault == Stall():
                    await rule.cleared.wait()
                elif rule.fault != Reset():
                    with contextlib.suppress(ConnectionBroken):
                        await self._app(scope, receive, self._failing(rule, send))
            finally:
                # Uvicorn's transport. Aborting it leaves the response incomplete.
                send.__self__.transport.abort()  # type: ignore[attr-defined]

    def _failing(self, rule: Rule, send: Send) -> Send:
        pieces = 0

        async def failing(message: Message) -> None:
            nonlocal pieces
            if isinstance(rule.fault, Drop):
                raise ConnectionBroken
            if message["type"] == "http.response.body":
                pieces += 1
                if pieces > 1 or not message.get("more_body"):
                    if isinstance(rule.fault, End):
                        await self._end_sandboxes()
                    elif isinstance(rule.fault, Stall):
                        await rule.cleared.wait()
                    raise ConnectionBroken
            await send(message)

        return failing


async def _answer(answer: HttpAnswer, send: Send) -> None:
    headers = {"content-length": str(len(answer.body)), **answer.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer.body})
