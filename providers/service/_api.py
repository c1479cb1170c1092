"""The client of a service's HTTP API: calls with time limits, and links to agents."""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import aiohttp
import anyio
from anyio.abc import ByteStream

from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers._hosted.account import VendorAccount
from sandboxkit.providers._hosted.http_errors import retry_after
from sandboxkit.providers.service._errors import NAME, RefusalError, error_of

Json = Any
"""The service's JSON, which is untyped."""
URL_VARIABLE = "SANDBOXKIT_SERVICE_URL"
TOKEN_VARIABLE = "SANDBOXKIT_SERVICE_TOKEN"
_CLOSE_SECONDS = 1.0
_PIECE = 256 << 10


class LinkStream(ByteStream):
    """The bytes of an agent's link, as binary messages of a WebSocket.

    One task sends and one receives; any task may close it, which takes 1 s at most.

    `receive` raises BrokenResourceError when the service closes it or the connection breaks.
    """

    def __init__(self, connection: "aiohttp.ClientWebSocketResponse[bool]") -> None:
        self._connection = connection
        self._socket: socket.socket | None = connection.get_extra_info("socket")
        self._rest = memoryview(b"")
        self._closed = False

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while not self._rest:
            if self._closed:
                raise anyio.ClosedResourceError
            message = await self._connection.receive()
            if message.type is not aiohttp.WSMsgType.BINARY:
                raise anyio.ClosedResourceError if self._closed else anyio.BrokenResourceError
            self._rest = memoryview(message.data)
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return bytes(data)

    async def send(self, item: bytes) -> None:
        view = memoryview(item)
        for at in range(0, len(view), _PIECE):
            if self._closed:
                raise anyio.ClosedResourceError
            try:
                await self._connection.send_bytes(bytes(view[at : at + _PIECE]))
            except (aiohttp.ClientError, OSError) as error:
                raise anyio.BrokenResourceError(str(error)) from error

    async def send_eof(self) -> None:
        raise NotImplementedError("a WebSocket's input ends when it is closed")

    async def aclose(self) -> None:
        self._closed = True
        try:
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._connection.close()
        finally:
            # A close that was cut short leaves the connection open.
            if self._socket is not None:
                with contextlib.suppress(OSError):  # closed already
                    self._socket.shutdown(socket.SHUT_RDWR)


class ServiceApi(VendorAccount):
    """A client for one event loop. The first call connects, and so does the next after `aclose`."""

    name: ClassVar = NAME
    addresses: ClassVar = URL_VARIABLE
    refusals: ClassVar = (RefusalError,)
    unreachable: ClassVar = (aiohttp.ClientConnectorError, aiohttp.InvalidURL)
    broken: ClassVar = (aiohttp.ClientError, OSError, EOFError)

    def __init__(self, url: str | None, token: str | None, timeout: float) -> None:
        """`timeout` (s) limits each call that names no limit of its own."""
        super().__init__(timeout)
        self._url, self._token = url, token
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """The service's address, without a slash at its end."""
        return (self._url or os.environ.get(URL_VARIABLE, "")).rstrip("/")

    def check(self) -> None:
        """Raise ConfigurationError when no call could succeed."""
        if not self.url:
            raise ConfigurationError(
                f"provider 'service' needs the address of `sandboxkit serve`: set {URL_VARIABLE}, or "
                "give Session('http://HOST:8080')"
            )
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"{self.url!r} is not the address of a service: give http://HOST:PORT or https://HOST"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise ConfigurationError(
                f"the address of a service on {parts.hostname!r} has more than a host, a port and a path; "
                f"give its token in {TOKEN_VARIABLE}"
            )
        token = self._secret()
        if not (token.isascii() and token.isprintable()) or " " in token:
            raise ConfigurationError(
                f"{TOKEN_VARIABLE} is not a token: it has spaces, line breaks or other characters that "
                "tokens do not have"
            )

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> Json:
        """Make a request below /v1/sandboxes and return the answer's JSON, None for an empty one.

        Raises AmbiguousError if there was no answer within `seconds`, and the service's errors.
        """

        async def ask() -> Json:
            async with self._connections().request(
                method, f"{self.url}/v1/sandboxes{path}", json=body, headers=self._headers()
            ) as answer:
                return await answer.json() if answer.status != 204 else None

        seconds = seconds or self.timeout
        return await self.bounded(ask(), what=what, sandbox_id=sandbox_id, seconds=seconds)

    async def link(self, sandbox_id: str, *, owner: bool) -> LinkStream:
        """Open a link to a sandbox's agent. Raises what `call` does."""
        query = "?owner=true" if owner else ""

        async def ask() -> LinkStream:
            connection = await self._connections().ws_connect(
                f"{self.url}/v1/sandboxes/{sandbox_id}/link{query}",
                headers=self._headers(),
                timeout=aiohttp.ClientWSTimeout(
                    ws_close=_CLOSE_SECONDS  # pyright: ignore[reportCallIssue]  # attrs
                ),
                max_msg_size=0,
            )
            return LinkStream(connection)

        what = "connect to a sandbox"
        return await self.bounded(ask(), what=what, sandbox_id=sandbox_id, seconds=self.timeout)

    # Any: `refusals` has one class alone.
    def refused(self, error: Any, what: str, sandbox_id: str | None) -> SandboxError:
        return error_of(error, what, sandbox_id)

    async def aclose(self) -> None:
        """Close all connections. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _secret(self) -> str:
        return self._token or os.environ.get(TOKEN_VARIABLE, "")

    def _headers(self) -> Mapping[str, str]:
        token = self._secret()
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _connections(self) -> aiohttp.ClientSession:
        self.check()
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_socket),
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=True,
                cookie_jar=aiohttp.CookieJar(unsafe=True),  # for the session affinity of a proxy
                middlewares=(_refuse,),
            )
        return self._session


def _socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    close_in_forks(made)  # an owner's link must not outlive its process
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


async def _refuse(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise RefusalError for a status of 300 or above while its body is readable, WebSockets included."""
    answer = await handler(request)
    if answer.status < 300:
        return answer
    try:
        text = (await answer.read()).decode(errors="replace")
    finally:
        answer.release()
    headers = {name.lower(): value for name, value in answer.headers.items()}
    raise RefusalError(answer.status, text, retry_after(headers))
