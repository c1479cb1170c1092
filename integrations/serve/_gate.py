"""Checks who sends a request, by its token or else by where it comes from, before its body is read."""

import ipaddress
from collections import Counter
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends, HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandboxkit.integrations.serve._tokens import Token, client_of

_OPEN = frozenset({"/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"})
"""Paths that need no token."""
EACH = 16 << 10
"""Bytes for which a request counts beside its body."""


class RequireToken:
    """Middleware that stores the client in a request's scope, and responds 401 without a valid token.

    Without tokens it responds 403 to what a web page could send: a request for a name that is not this machine's
    loopback (which a page's own name may be made to mean), or one whose Origin is not there.
    """

    def __init__(self, app: ASGIApp, tokens: tuple[Token, ...], most: int) -> None:
        """The requests in progress of a client may have `most` bytes; more get 429."""
        self._app, self._tokens, self._most = app, tokens, most
        self._held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or reject it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self._tokens and (stranger := _stranger(headers)):
            detail = {
                "detail": f"a service without tokens serves this machine alone, not {stranger}: "
                "use http://localhost, or start it with tokens"
            }
            await JSONResponse(detail, 403)(scope, receive, send)
            return
        if scope["path"] in _OPEN:
            await self._app(scope, receive, send)
            return
        client = client_of(self._tokens, headers.get(b"authorization", ""))
        if client is not None:
            scope.setdefault("state", {})["client"] = client
            await self._pass(client.name, scope, receive, send)
            return
        detail = {"detail": "give a valid token: 'Authorization: Bearer TOKEN'"}
        refusal = JSONResponse(detail, 401, {"WWW-Authenticate": "Bearer"})
        await refusal(scope, receive, send)

    async def _pass(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request, whose body counts from its first byte to the end of the response."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            held += size
            self._held[client] += size
            if self._held[client] > self._most:
                detail = f"the requests of {client!r} in progress have more than {self._most} bytes"
                raise HTTPException(429, detail, {"Retry-After": "1"})

        async def counted() -> Message:
            message = await receive()
            hold(len(message.get("body") or b""))
            return message

        try:
            hold(EACH)
            await self._app(scope, counted, send)
        except HTTPException as error:
            refusal = JSONResponse({"detail": error.detail}, error.status_code, error.headers)
            await refusal(scope, receive, send)
        finally:
            self._held[client] -= held


def _stranger(headers: dict[bytes, str]) -> str:
    """Return the header that names another place than this machine's loopback; an empty string for none."""
    places = {"Host": "//" + headers.get(b"host", ""), "Origin": headers.get(b"origin")}
    for name, place in places.items():
        try:
            local = place is None or is_loopback(urlsplit(place).hostname or "")
        except ValueError:
            local = False
        if not local:
            return f"{name} {str(place).removeprefix('//')!r}"
    return ""


def is_loopback(host: str) -> bool:
    """Return whether a name or an address is that of this machine's loopback, whatever a resolver says."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _client(connection: HTTPConnection) -> Token:
    client: Token = connection.state.client
    return client


Client = Annotated[Token, Depends(_client)]
"""The type of a route's parameter that receives the client, as its Token."""
