"""The client of a cluster's API server: REST calls, watches and exec streams, with time limits."""

import json
import re
import socket
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from ssl import SSLContext
from typing import Any, TypedDict, TypeVar

import aiohttp
import anyio

from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotFoundError
from sandboxkit.provider import close_in_forks
from sandboxkit.providers.kubernetes._access import Access, read_access
from sandboxkit.providers.kubernetes._errors import (
    Refusal,
    connection_error,
    error_of,
    refusal_of,
)
from sandboxkit.providers.kubernetes._exec import CLOSE_SECONDS, PROTOCOLS, PodExecStream

Json = Any
"""The server's JSON, which is untyped."""
CORE = "/api/v1"
"""The root of the paths of Kubernetes' first resources."""
Params = Mapping[str, str | int]
Headers = dict[str, str]
T = TypeVar("T")

_PAGE = 500
_CALLS = 64
"""Limit of requests and handshakes in flight. Open streams and watches do not count."""
_WATCH_SECONDS = 240
"""How long (s) the server keeps a watch open; the next watch resumes where it ended."""
_WATCH_SILENCE = 100.0
"""A watch silent for so many seconds is dead: a server sends a bookmark about every minute."""
_CLOSE_LOOKS = 500
_NOT_RUNNING = re.compile(
    r"container not found|does not have a host assigned|completed pod|pod does not exist"
)
_UNANSWERED = (aiohttp.ClientError, OSError, EOFError)
"""Exceptions that aiohttp raises when the network fails; OSError includes TimeoutError."""


class Api:
    """A client for one event loop. The first call connects, and so does the next after `aclose`.

    `kubeconfig` defaults to $KUBECONFIG, then ~/.kube/config, then this pod's service account.
    `namespace` defaults to that of the context or of the pod, then to "default". After a 401 the
    credentials are read again, once for all calls that failed.
    """

    def __init__(
        self,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        namespace: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._namespace, self._timeout = namespace, timeout
        self._access: Access | None = None
        self._session: aiohttp.ClientSession | None = None
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._lock = anyio.Lock()
        self._room = anyio.CapacityLimiter(_CALLS)

    @property
    def namespace(self) -> str:
        """The namespace to use. If none was given, call `open` before reading this."""
        if self._namespace is None:
            assert self._access is not None, "open() first"
            return self._access.namespace
        return self._namespace

    @property
    def server(self) -> str:
        """The server's URL; "" before `open`."""
        return self._access.server if self._access is not None else ""

    async def open(self) -> None:
        """Read the configuration, for `namespace` and `server`; every call does this by itself.

        Raises ConfigurationError, or AuthenticationError if the login program fails.
        """
        await self._opened()

    async def path(self, resource: str, name: str = "", *, root: str = CORE) -> str:
        """Return the path of a resource in the namespace, such as "pods", or of one object."""
        await self.open()
        base = f"{root}/namespaces/{self.namespace}/{resource}"
        return f"{base}/{name}" if name else base

    async def call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        what: str,
        params: Params | None = None,
        content_type: str = "application/json",
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> Json:
        """Make one request and return the parsed response; `what` completes "Kubernetes cannot ...".

        Raises the error of `error_of` for an error response (`refusal_of(error)` has `.status` and
        `.reason`). Raises ProviderUnavailableError without a response in `seconds`; the server may
        still have carried out the request.
        """
        headers = {} if body is None else {"Content-Type": content_type}
        data = None if body is None else json.dumps(body).encode()

        async def ask(session: aiohttp.ClientSession, access: Access, who: Headers) -> bytes:
            async with session.request(
                method,
                access.server + path,
                params=params,
                data=data,
                headers=who | headers,
                **_route(access),
            ) as answer:
                return await answer.read()

        text = await self._asked(ask, what, sandbox_id, seconds)
        try:
            return json.loads(text)
        except ValueError as error:
            raise ProviderUnavailableError(
                f"Kubernetes cannot {what}: the answer of {self.server} is not a Kubernetes API response"
            ) from error

    async def pages(
        self, path: str, *, what: str, params: Params | None = None
    ) -> AsyncGenerator[Json, None]:
        """Yield the items of a list, each once, fetched in pages of 500.

        If the continue token has expired (410), the remaining items show the current state.
        """
        seen: set[str] = set()
        place = ""
        while True:
            here = {"limit": _PAGE} | ({"continue": place} if place else {})
            try:
                page = await self.call("GET", path, what=what, params={**(params or {}), **here})
            except ProviderUnavailableError as error:
                refusal = refusal_of(error)
                if not place or refusal is None or refusal.status != 410:
                    raise
                place = refusal.go_on
                continue
            for item in page.get("items") or ():
                name = item["metadata"]["name"]
                if name not in seen:
                    seen.add(name)
                    yield item
            place = page["metadata"].get("continue") or ""
            if not place:
                return

    @asynccontextmanager
    async def watch(
        self, path: str, resource_version: str, *, params: Params | None = None
    ) -> AsyncIterator[AsyncGenerator[Json, None]]:
        """Yield the events after `resource_version`, bookmarks included, until the server ends them.

        The context is entered once the server has accepted the watch. Entering and iterating raise
        what `call` raises; `refusal_of(error).status` is 410 if the version is too old.
        """
        what = f"watch {path.rpartition('/')[2]}"
        query = {
            **(params or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": _WATCH_SECONDS,
            "resourceVersion": resource_version,
        }

        async def ask(
            session: aiohttp.ClientSession, access: Access, who: Headers
        ) -> aiohttp.ClientResponse:
            return await session.get(
                access.server + path,
                params=query,
                headers=who,
                timeout=aiohttp.ClientTimeout(sock_read=_WATCH_SILENCE),
                **_route(access),
            )

        answer = await self._asked(ask, what)
        try:
            async with aclosing(self._events(answer, what)) as events:
                yield events
        finally:
            answer.close()

    async def _events(
        self, answer: aiohttp.ClientResponse, what: str
    ) -> AsyncGenerator[Json, None]:
        rest = b""
        try:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        refusal = Refusal(int(status.get("code") or 500), json.dumps(status))
                        raise error_of(refusal, what) from refusal
                    yield event
        except (*_UNANSWERED, ValueError, LookupError) as error:
            raise connection_error(error, what, self.server) from error

    async def exec(
        self, pod: str, container: str, argv: Sequence[str], *, sandbox_id: str | None = None
    ) -> PodExecStream:
        """Start a program in a container; its stream reports whether the program could start.

        Raises what `call` raises, and SandboxNotFoundError if the pod or container does not exist
        or does not run.
        """
        path = await self.path("pods", pod) + "/exec"
        query = [("container", container), ("stdin", "true"), ("stdout", "true")]
        query += [("stderr", "true"), *(("command", word) for word in argv)]

        async def ask(
            session: aiohttp.ClientSession, access: Access, who: Headers
        ) -> PodExecStream:
            return PodExecStream(
                await session.ws_connect(
                    access.server + path,
                    params=query,
                    headers=who,
                    protocols=PROTOCOLS,
                    timeout=aiohttp.ClientWSTimeout(
                        ws_close=CLOSE_SECONDS  # pyright: ignore[reportCallIssue]  # attrs
                    ),
                    max_msg_size=0,
                    **_route(access),
                )
            )

        try:
            return await self._asked(ask, f"start a program in {pod!r}", sandbox_id)
        except SandboxError as error:
            refusal = refusal_of(error)
            if refusal is not None and _NOT_RUNNING.search(refusal.message):
                raise SandboxNotFoundError(f"sandbox {pod!r} does not run: {refusal}") from refusal
            raise

    async def aclose(self) -> None:
        """Close all connections and wait until they are closed. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        # Closing a TLS connection would wait for the server's close_notify, so shut the socket down.
        left = [each for each in self._sockets if each.fileno() >= 0]
        for each in left:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSE_LOOKS):
            if all(each.fileno() < 0 for each in left):
                break
            await anyio.sleep(CLOSE_SECONDS / _CLOSE_LOOKS)

    async def _asked(
        self,
        ask: Callable[[aiohttp.ClientSession, Access, Headers], Awaitable[T]],
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> T:
        """Make a request within `seconds`; after a 401, retry it once with new credentials."""
        access, again = await self._opened(), False
        while True:
            try:
                async with self._room:
                    with anyio.fail_after(self._timeout if seconds is None else seconds):
                        return await ask(self._connections(), access, access.headers())
            except Refusal as refusal:
                if refusal.status != 401 or again:
                    raise error_of(refusal, what, sandbox_id=sandbox_id) from refusal
            except _UNANSWERED as error:
                raise connection_error(error, what, access.server) from error
            access, again = await self._opened(instead_of=access), True

    async def _opened(self, instead_of: Access | None = None) -> Access:
        if self._access is instead_of:
            async with self._lock:
                if self._access is instead_of:
                    self._access = await read_access(self._kubeconfig, self._context)
        assert self._access is not None
        return self._access

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, socket_factory=self._socket)
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_refuse,),
            )
        return self._session

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        close_in_forks(made)
        self._sockets.add(made)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # Keepalives end a stream or a watch whose peer has vanished.
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, option):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        return made


class _Route(TypedDict):
    ssl: SSLContext | bool
    server_hostname: str | None
    proxy: str | None


def _route(access: Access) -> _Route:
    return {"ssl": access.ssl, "server_hostname": access.server_name, "proxy": access.proxy}


async def _refuse(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Raise Refusal for a response of 300 or above while its body is readable, WebSockets included."""
    answer = await handler(request)
    if answer.status < 300:
        return answer
    try:
        text = (await answer.read()).decode(errors="replace")
    finally:
        answer.release()
    raise Refusal(answer.status, text, answer.headers.get("Retry-After"))
