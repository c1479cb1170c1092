"""Planned faults of an HTTP server, as middleware: which request fails, and how."""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

Kind = Literal["status", "reset", "reset_mid_body", "stall", "stall_body", "drop", "end_sandbox"]


@dataclass
class Rule:
    """One planned fault, which applies to requests whose "METHOD /path" contains `request`."""

    request: str
    kind: Kind
    """`status`: respond with the status, without doing the work. `reset`: abort the connection, without
    doing the work. `reset_mid_body`: abort it after the first piece of the response's body. `stall`:
    never respond. `stall_body`: send nothing after the first piece of the body. `drop`: do the work,
    then abort the connection. `end_sandbox`: like `reset_mid_body`, and end all sandboxes."""
    skip: int = 0
    times: int = 1_000_000
    status: int = 500
    body: str | dict[str, Any] = ""
    headers: dict[str, str] = field(default_factory=dict)
    per_second: int = 0
    """Number of matching requests per second that pass without the fault."""
    passed: list[float] = field(default_factory=list)
    cleared: asyncio.Event = field(default_factory=asyncio.Event)

    def lets_through(self) -> bool:
        """Whether the next request may pass without the fault."""
        now = time.monotonic()
        self.passed = [each for each in self.passed if each > now - 1]
        if len(self.passed) < self.per_second:
            self.passed.append(now)
            return True
        return False


class ConnectionBroken(Exception):
    """Raised to end the application's work on a request whose connection is aborted."""


class Faults:
    """Wraps an ASGI application, records its requests, and injects the planned faults."""

    def __init__(self, app: App, end_sandboxes: Callable[[], Awaitable[None]]) -> None:
        self._app, self._end_sandboxes = app, end_sandboxes
        self._rules: list[Rule] = []
        self.requests: list[str] = []
        """All requests since `clear` as "METHOD /path", in order."""

    def plan(self, rule: Rule) -> None:
        """Add a planned fault."""
        self._rules.append(rule)

    def clear(self) -> None:
        """Remove all faults, release the requests that they stall, and clear the recorded requests."""
        for rule in self._rules:
            rule.cleared.set()
        self._rules.clear()
        self.requests.clear()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        name = f"{scope['method']} {scope['path']}"
        self.requests.append(name)
        rule = self._take(name)
        if rule is None:
            await self._app(scope, receive, send)
        elif rule.kind == "status":
            await _answer(rule, send)
        else:
            try:
                await self._fail(rule, scope, receive, send)
            finally:
                # Uvicorn's transport. Aborting it leaves the response incomplete.
                send.__self__.transport.abort()  # type: ignore[attr-defined]

    async def _fail(self, rule: Rule, scope: Message, receive: Receive, send: Send) -> None:
        if rule.kind == "reset":
            return
        if rule.kind == "stall":
            await rule.cleared.wait()
            return
        with contextlib.suppress(ConnectionBroken):
            await self._app(scope, receive, self._failing(rule, send))

    def _take(self, name: str) -> Rule | None:
        for rule in self._rules:
            if rule.request in name:
                if rule.skip:
                    rule.skip -= 1
                elif rule.lets_through():
                    pass
                elif rule.times:
                    rule.times -= 1
                    return rule
        return None

    def _failing(self, rule: Rule, send: Send) -> Send:
        pieces = 0

        async def failing(message: Message) -> None:
            nonlocal pieces
            if rule.kind == "drop":
                raise ConnectionBroken
            if message["type"] == "http.response.body":
                pieces += 1
                if pieces > 1 or not message.get("more_body"):
                    await self._break(rule)
            await send(message)

        return failing

    async def _break(self, rule: Rule) -> None:
        if rule.kind == "end_sandbox":
            await self._end_sandboxes()
        if rule.kind == "stall_body":
            await rule.cleared.wait()
        raise ConnectionBroken


async def _answer(rule: Rule, send: Send) -> None:
    text = rule.body if isinstance(rule.body, str) else json.dumps(rule.body)
    kind = "text/html" if isinstance(rule.body, str) else "application/json"
    headers = {"content-type": kind, "content-length": str(len(text.encode())), **rule.headers}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": rule.status, "headers": raw})
    await send({"type": "http.response.body", "body": text.encode()})
