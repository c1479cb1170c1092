"""Checks the token of every request before its body is read."""

from typing import Annotated

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from sandboxkit.integrations.serve._tokens import Token, client_of

_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""Paths that need no token."""


class RequireToken:
    """Middleware that stores the client in a request's scope, and responds 401 without a valid token."""

    def __init__(self, app: ASGIApp, tokens: tuple[Token, ...]) -> None:
        self._app, self._tokens = app, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or reject it."""
        if scope["type"] not in ("http", "websocket") or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        client = client_of(self._tokens, given)
        if client is not None:
            scope.setdefault("state", {})["client"] = client
            await self._app(scope, receive, send)
            return
        detail = {"detail": "give a valid token: 'Authorization: Bearer TOKEN'"}
        refusal = JSONResponse(detail, 401, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)


def _client(connection: HTTPConnection) -> Token:
    client: Token = connection.state.client
    return client


Client = Annotated[Token, Depends(_client)]
"""The type of a route's parameter that receives the client, as its Token."""
