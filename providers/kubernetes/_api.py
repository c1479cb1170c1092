"""One cluster's API server: REST calls, watches and exec streams, each with its time limit."""

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
    NAME,
    Refusal,
    connection_error,
    error_of,
    refusal_of,
)
from sandboxkit.providers.kubernetes._exec import CLOSE_SECONDS, PROTOCOLS, ExecStream

__all__ = ["Api", "Json"]

Json = Any
"""What the server says is untyped."""
Params = Mapping[str, str | int]
Headers = dict[str, str]
T = TypeVar("T")

_PAGE = 500
_CALLS = 64
"""Requests and handshakes in flight at a time. Streams and watches that are open do not count."""
_WATCH_SECONDS = 240
"""After so long the server ends a watch, and another goes on where it was."""
_WATCH_SILENCE = 100.0
"""A server sends a bookmark a minute: one that says nothing for so long is not there any more."""
_CLOSE_LOOKS = 500
_NOT_RUNNING = re.compile(
    r"container not found|does not have a host assigned|completed pod|pod does not exist"
)
_UNANSWERED = (aiohttp.ClientError, OSError, EOFError)
"""What aiohttp raises for the network's sake; OSError has TimeoutError in it."""


class Api:
    """Connects at the first call. From one event loop; after `aclose` the next call connects anew.

    Without a `kubeconfig` it is $KUBECONFIG, ~/.kube/config, or the service account of the pod
    that this runs in. `namespace` is the given one, that of the context or of the pod, "default".
    Credentials that the server does not take any more are read anew, once for all who need them.
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
        """The namespace to use; only after `open`, if none was given."""
        if self._namespace is None:
            assert self._access is not None, "open() first"
            return self._access.namespace
        return self._namespace

    @property
    def server(self) -> str:
        """The server's URL, "" before `open`."""
        return self._access.server if self._access is not None else ""

    async def open(self) -> None:
        """Read the configuration, which `namespace` and `server` need. `call` and all do it too.

        Raises ConfigurationError, or AuthenticationError for a login program that fails.
        """
        await self._opened()

    async def path(self, resource: str, name: str = "") -> str:
        """The path of a core resource of the namespace, such as "pods", or of one of them."""
        await self.open()
        base = f"/api/v1/namespaces/{self.namespace}/{resource}"
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
        """One request; returns the parsed answer. `what` completes "Kubernetes cannot ...".

        Raises what `error_of` says of a refusal (`refusal_of(error)` has `.status`, `.reason`), and
        ProviderUnavailableError when there is no answer within `seconds`: it may have been
        done then.
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
                f"Kubernetes cannot {what}: what {self.server} answers is not Kubernetes'",
                provider=NAME,
                sandbox_id=sandbox_id,
            ) from error

    async def pages(
        self, path: str, *, what: str, params: Params | None = None
    ) -> AsyncGenerator[Json, None]:
        """The items of a list, fetched in pages of 500; none comes twice.

        Where the server has forgotten where it was (410), the items that follow are as of now.
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
        """The events after `resource_version`, bookmarks included, until the server ends them.

        Entered when the server has agreed. Entering and iterating raise as `call` does;
        refusal_of(error).status is 410 where the version is too old.
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
                        said = event["object"]
                        refusal = Refusal(int(said.get("code") or 500), json.dumps(said))
                        raise error_of(refusal, what) from refusal
                    yield event
        except (*_UNANSWERED, ValueError, LookupError) as error:
            raise connection_error(error, what, self.server) from error

    async def exec(
        self, pod: str, container: str, argv: Sequence[str], *, sandbox_id: str | None = None
    ) -> ExecStream:
        """Start a program in a container. Whether it could be started, its stream tells.

        Raises as `call`: SandboxNotFoundError for a pod or container that is not there or does
        not run.
        """
        path = await self.path("pods", pod) + "/exec"
        query = [("container", container), ("stdin", "true"), ("stdout", "true")]
        query += [("stderr", "true"), *(("command", word) for word in argv)]

        async def ask(session: aiohttp.ClientSession, access: Access, who: Headers) -> ExecStream:
            return ExecStream(
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
            if refusal is not None and _NOT_RUNNING.search(refusal.said):
                raise SandboxNotFoundError(
                    f"sandbox {pod!r} does not run: {refusal}",
                    provider=NAME,
                    sandbox_id=sandbox_id,
                ) from refusal
            raise

    async def aclose(self) -> None:
        """Close all connections, and return when they are closed. Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        # Of one in TLS, closing waits for the server's word, and nobody waits for it.
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
        """Ask within `seconds`, and once more where only our credentials had expired."""
        access, again = await self._opened(), False
        while True:
            try:
                async with self._room:
                    with anyio.fail_after(self._timeout if seconds is None else seconds):
                        return await ask(self._connections(), access, await access.headers())
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
        # A machine that vanishes must not leave a stream or a watch waiting for ever.
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
    """Turn a refusal into an exception while its words can still be read: a WebSocket's, too."""
    answer = await handler(request)
    if answer.status < 300:
        return answer
    try:
        said = (await answer.read()).decode(errors="replace")
    finally:
        answer.release()
    raise Refusal(answer.status, said, answer.headers.get("Retry-After"))
