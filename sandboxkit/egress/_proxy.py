"""The egress proxy of one sandbox: it checks each connection against the rules, makes and records it."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSStream

from sandboxkit.egress import _http, _paths, _tls
from sandboxkit.egress._audit import AuditLog, EgressRecord
from sandboxkit.egress._exchange import Meter, exchange, join
from sandboxkit.egress._http import NO_TARGET, HttpTarget, RequestHead
from sandboxkit.egress._incoming import Incoming, drain
from sandboxkit.egress._refused import EgressRefusedError
from sandboxkit.egress._resolve import addresses, dial
from sandboxkit.egress._rules import Credential, Egress
from sandboxkit.egress._shares import FILES
from sandboxkit.errors import SandboxError

_RESPONSE_SECONDS = 5.0
"""How long (s) a program may take to read a refusal or the end of a response."""
_DRAINED_BYTES = 1 << 20
_LOOK_SECONDS = 1.0
"""How often (s) a connection whose program only waits is looked at: it may have gone."""
_PLACE_SECONDS = 60.0
"""How long (s) a connection waits for the sandbox's share of this process's files."""
_REFUSED = 64
"""How many refused servers are kept, the newest."""
_PATH = 1000
"""How many characters of a path are recorded."""
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_BROKEN = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


@dataclass(slots=True)
class _ProxiedConnection:
    """One connection from the sandbox, and the facts known so far for its record."""

    stream: ByteStream
    incoming: Incoming
    meter: Meter
    began: float = field(default_factory=time.time)
    method: str = ""
    target: HttpTarget = NO_TARGET
    address: str = ""
    reason: str = ""
    allowed: bool = False
    responded: bool = False
    """Whether bytes were sent to the program, so that a refusal can only cut the connection."""


class EgressProxy:
    """The proxy of one sandbox, whose `Egress` can be changed; used on the background loop only."""

    def __init__(self, sandbox_id: str, egress: Egress) -> None:
        """Open the log of `egress`. Raises OSError."""
        self._sandbox_id, self._audit = sandbox_id, AuditLog(egress.log)
        self.refused: dict[str, float] = {}
        """The servers that were refused last, as "name:port", and when (monotonic seconds)."""
        self._phase = _Phase(sandbox_id, egress, self._audit, self.refused)

    async def change(self, egress: Egress | None, changed: Callable[[], None]) -> None:
        """Apply `egress` from now on, None to refuse everything, and close every open connection.

        `changed` is called as soon as `egress` applies. Raises OSError, without any change, if the new log
        cannot be opened.
        """
        phase, audit = self._phase, self._audit
        if egress is not None:
            self._audit = AuditLog(egress.log)
        self._phase = _Phase(self._sandbox_id, egress, self._audit, self.refused)
        changed()
        await phase.end()
        if audit is not self._audit:
            audit.close()

    async def carry(self, stream: ByteStream) -> None:
        """Serve one connection from the sandbox, and close it."""
        await self._phase.carry(stream)

    async def close(self) -> None:
        """Close every connection and the log."""
        await self._phase.end()
        self._audit.close()


class _Phase:
    """The period in which one `Egress` applies, or None; it holds its connections and byte count."""

    def __init__(
        self, sandbox_id: str, egress: Egress | None, audit: AuditLog, refused: dict[str, float]
    ) -> None:
        self._sandbox_id, self._audit, self._none = sandbox_id, audit, egress is None
        self._egress = egress = egress or Egress()
        self._refused, self._left = refused, Meter(egress.max_bytes)
        self._open: set[anyio.CancelScope] = set()
        self._none_open = anyio.Event()
        self._tls = egress.tls

    async def end(self) -> None:
        """Cut every connection, and wait until each is closed and recorded."""
        for scope in tuple(self._open):
            scope.cancel()
        while self._open:
            self._none_open = anyio.Event()
            await self._none_open.wait()

    async def carry(self, stream: ByteStream) -> None:
        own = _ProxiedConnection(stream, Incoming(stream), Meter(0, self._left))
        scope = anyio.CancelScope()
        crowded = len(self._open) >= self._egress.max_connections
        self._open.add(scope)
        watch = asyncio.create_task(_watch(own, scope))
        try:
            with scope:
                await self._serve(own, crowded=crowded)
        finally:
            watch.cancel()
            self._record(own)
            try:
                await stream.aclose()
            finally:
                self._open.discard(scope)
                if not self._open:
                    self._none_open.set()

    async def _serve(self, own: _ProxiedConnection, *, crowded: bool) -> None:
        try:
            if crowded:
                most = self._egress.max_connections
                raise EgressRefusedError(503, f"{most} connections are open already")
            await self._handle(own)
        except EgressRefusedError as error:
            own.reason = error.reason
            if error.status == 403 and own.target.name:
                self._refused[f"{own.target.name}:{own.target.port}"] = time.monotonic()
                for oldest in list(self._refused)[:-_REFUSED]:
                    del self._refused[oldest]
            if not own.responded:
                await _refuse(own.stream, error)
        except anyio.EndOfStream:
            own.reason = "the connection ended before the request was whole"
        except _BROKEN as error:
            own.reason = f"the connection broke: {error or type(error).__name__}"
        except SandboxError as error:
            own.reason = f"the sandbox ended: {error}"
            raise
        except anyio.get_cancelled_exc_class():
            own.reason = own.reason or "the network was changed, or the sandbox stopped"
            raise

    async def _handle(self, own: _ProxiedConnection) -> None:
        egress = self._egress
        with _within(egress.header_seconds, "the head of the request"):
            head = _http.request(await own.incoming.head(egress.max_header_bytes))
        own.method = head.method
        own.target = target = _http.target(head)
        if self._none:
            raise EgressRefusedError(403, "the sandbox's network is 'none' now")
        if self._left.left <= 0:
            raise EgressRefusedError(403, f"the limit max_bytes={egress.max_bytes} is reached")
        credential = egress.credential(target.name)
        if credential is not None:
            await self._with_headers(credential, head, own)
            return
        if not egress.allows(target.name, target.port):
            raise EgressRefusedError(403, f"no rule allows {target.name}:{target.port}")
        length = _http.body_length(head)
        if head.method == "CONNECT" and length != 0:
            raise EgressRefusedError(400, "CONNECT has a body")
        async with self._dialled(target.name, target.port, own) as remote:
            if head.method != "CONNECT":
                host = target.name if target.port == 80 else f"{target.name}:{target.port}"
                data = _http.forwarded(head, target, host, length, [])
                await self._exchange(data, head, length, remote, own)
                return
            own.responded = True
            await own.stream.send(_ESTABLISHED)
            with _within(egress.header_seconds, "the first message of TLS"):
                hello, name = await _tls.client_hello(own.incoming)
            if name != target.name:
                raise EgressRefusedError(403, f"TLS is for {name}, CONNECT for {target.name}")
            own.allowed = True
            own.meter.sent(len(hello))
            await remote.send(hello)
            await join(own.stream, own.incoming, remote, own.meter, egress.idle_seconds)

    async def _with_headers(
        self, credential: Credential, head: RequestHead, own: _ProxiedConnection
    ) -> None:
        """Send a request to the host of a credential, and add the credential's headers."""
        (host, port), target = credential.target, own.target
        path, _, query = target.path.partition("?")
        if head.method not in credential.methods or target.port != 80:
            raise EgressRefusedError(
                403, f"{head.method} to port {target.port} of {target.name} is not allowed"
            )
        if not _paths.is_plain(path) or not credential.allows_path(path):
            raise EgressRefusedError(403, f"the path {path[:200]!r} is not allowed")
        if name := _paths.override(head, query):
            raise EgressRefusedError(403, f"{name[:60]} names another method or path")
        length = _http.body_length(head)
        named = host if port == 443 else f"{host}:{port}"
        data = _http.forwarded(head, target, named, length, list(credential.headers.items()))
        async with self._dialled(host, port, own) as plain:
            self._tls = self._tls or ssl.create_default_context()
            try:
                with anyio.fail_after(self._egress.header_seconds):
                    remote = await TLSStream.wrap(
                        plain, hostname=host, ssl_context=self._tls, standard_compatible=False
                    )
            except _BROKEN as error:
                cause = error.__cause__ or error
                raise EgressRefusedError(502, f"no TLS with {host}: {cause}") from error
            await self._exchange(data, head, length, remote, own)

    async def _exchange(
        self,
        data: bytes,
        head: RequestHead,
        length: int | None,
        remote: ByteStream,
        own: _ProxiedConnection,
    ) -> None:
        """Send one request and forward its response; then end the connection."""

        def on_response() -> None:
            own.responded = True

        own.allowed = True
        own.meter.sent(len(data))
        await remote.send(data)
        idle, stream = self._egress.idle_seconds, own.stream
        await exchange(
            head.method, length, stream, own.incoming, remote, own.meter, idle, on_response
        )
        own.incoming.watched = False
        await stream.send_eof()
        await drain(stream, _RESPONSE_SECONDS, _DRAINED_BYTES)

    @contextlib.asynccontextmanager
    async def _dialled(
        self, name: str, port: int, own: _ProxiedConnection
    ) -> AsyncIterator[ByteStream]:
        """Resolve a name once, check its addresses, and connect to one of them."""
        found = await addresses(self._sandbox_id, self._egress, name, port)
        with _within(_PLACE_SECONDS, "a place among this process's open files (ulimit -n)", 503):
            await FILES.take(self._sandbox_id)
        try:
            remote, own.address = await dial(name, found, port)
            try:
                yield remote
            finally:
                await anyio.aclose_forcefully(remote)
        finally:
            FILES.give_back(self._sandbox_id)

    def _record(self, own: _ProxiedConnection) -> None:
        now = time.time()
        record = EgressRecord(
            time=own.began,
            sandbox=self._sandbox_id,
            method=own.method,
            name=own.target.name,
            port=own.target.port,
            path=own.target.path.partition("?")[0][:_PATH],
            address=own.address,
            allowed=own.allowed,
            reason=own.reason,
            sent=own.meter.up,
            received=own.meter.down,
            seconds=round(max(0.0, now - own.began), 6),
        )
        self._audit.add(record)


async def _watch(own: _ProxiedConnection, scope: anyio.CancelScope) -> None:
    """Cut a connection once its program has closed it, unless something that it sent is still to be forwarded."""
    try:
        while True:
            await anyio.sleep(_LOOK_SECONDS)
            if own.incoming.watched:
                await own.stream.send(b"")
    except (*_BROKEN, SandboxError):
        own.reason = own.reason or "the program closed the connection before it was answered"
        scope.cancel()


async def _refuse(stream: ByteStream, error: EgressRefusedError) -> None:
    """Send the response to a refused request, and give the program time to read it."""
    with anyio.move_on_after(_RESPONSE_SECONDS), contextlib.suppress(*_BROKEN):
        await stream.send(_http.refusal(error.status, error.shown))
        await stream.send_eof()
        await drain(stream, _RESPONSE_SECONDS, _DRAINED_BYTES)


@contextlib.contextmanager
def _within(seconds: float, what: str, status: int = 408) -> Iterator[None]:
    """Raise EgressRefusedError if the `with` block takes longer than `seconds`; `what` names the step."""
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as error:
        raise EgressRefusedError(status, f"{what} took longer than {seconds:g} s") from error
