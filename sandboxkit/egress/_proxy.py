"""The egress proxy of one sandbox: it checks each connection against the rules, makes and records it.

It resolves each name once, so that the addresses that are checked are also those that are dialled. At the end are its checks of what servers may read differently: the path of a request, and the name in a ClientHello.
"""

import asyncio
import contextlib
import errno
import ipaddress
import re
import socket
import ssl
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, SocketAttribute, SocketStream
from anyio.streams.tls import TLSStream

from sandboxkit.egress import _http, _names
from sandboxkit.egress._audit import AuditLog, EgressRecord
from sandboxkit.egress._exchange import Meter, exchange, join
from sandboxkit.egress._http import NO_TARGET, HttpTarget, RequestHead, plain_name
from sandboxkit.egress._incoming import Incoming, drain
from sandboxkit.egress._refused import EgressRefusedError
from sandboxkit.egress._rules import Credential, Egress
from sandboxkit.egress._shares import FILES, LOOKUPS
from sandboxkit.errors import SandboxError
from sandboxkit.provider import close_in_forks

_RESOLVE_SECONDS = _DIAL_SECONDS = 10.0
_ALL_DIALS_SECONDS = 30.0
_ADDRESSES = 64
"""The largest number of addresses of a name; each is checked on the event loop."""
_NOT_PUBLIC = tuple(
    ipaddress.ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT
        "168.63.129.16/32",  # Azure's agent of the machine
        "192.0.0.0/24",  # protocol assignments
        "192.88.99.0/24",  # 6to4 relays
        "::/96",  # IPv4-compatible
        "::ffff:0:0/96",  # IPv4-mapped
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64 of a local network
        "2001::/23",  # Teredo and other protocol assignments
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "5f00::/16",  # segment routing
        "100::/63",  # discarded
        "fec0::/10",  # site-local
    )
)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is a public unicast address that embeds no other address."""
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


def is_own(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address is one of this machine's own: a connection to it would not leave the machine.

    Raises OSError if no socket can be made to find out.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return False  # nothing is dialled there
        raise
    with probe:
        try:
            probe.connect((str(address), 9))  # sends nothing
        except OSError:
            return False  # it cannot be reached either
        return ipaddress.ip_address(probe.getsockname()[0].partition("%")[0]) == address


async def addresses(sandbox_id: str, egress: Egress, name: str, port: int) -> list[str]:
    """Return the addresses of a name.

    Raises EgressRefusedError if there is none or too many, or if `egress` does not allow one of them.
    """
    found = [egress.hosts[name]] if name in egress.hosts else await _lookup(sandbox_id, name, port)
    for text in found:
        address = ipaddress.ip_address(text)
        try:
            public = is_public(address) and not is_own(address)
        except OSError as error:  # too many open files
            raise EgressRefusedError(502, f"{text} cannot be checked: {error}") from error
        if not (public or egress.allows_private(address)):
            raise EgressRefusedError(
                403,
                f"{name} has the address {text}, which is not public and not in private=",
                shown=f"{name} has an address that is not public: Egress(private=...) can allow it",
            )
    return found


async def _lookup(sandbox_id: str, name: str, port: int) -> list[str]:
    async def run() -> list[str] | str:
        """Return the addresses, or the problem; nobody may wait for it any more."""
        try:
            infos = await anyio.to_thread.run_sync(
                lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM),
                limiter=anyio.CapacityLimiter(1),
            )
        except (OSError, UnicodeError) as error:
            return str(error)
        finally:
            LOOKUPS.give_back(sandbox_id)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    found: list[str] | str = f"no answer within {_RESOLVE_SECONDS:g} s"
    with anyio.move_on_after(_RESOLVE_SECONDS):
        await LOOKUPS.take(sandbox_id)
        found = await asyncio.shield(asyncio.create_task(run()))
    if isinstance(found, str):
        raise EgressRefusedError(502, f"{name} cannot be resolved: {found}")
    if not 0 < len(found) <= _ADDRESSES:
        raise EgressRefusedError(502, f"{name} has {len(found)} addresses, not 1 to {_ADDRESSES}")
    return found


async def dial(name: str, addresses: list[str], port: int) -> tuple[SocketStream, str]:
    """Connect to the first address that accepts; return the connection and the address.

    Raises EgressRefusedError if none accepts within 10 s each, and 30 s in all.
    """
    problem: OSError | None = None
    end = anyio.current_time() + _ALL_DIALS_SECONDS
    for address in addresses:
        try:
            with anyio.fail_after(min(_DIAL_SECONDS, end - anyio.current_time())):
                stream = await anyio.connect_tcp(address, port)
        except OSError as error:
            problem = error
        else:
            close_in_forks(stream.extra(SocketAttribute.raw_socket))
            return stream, address
    raise EgressRefusedError(
        502,
        f"{name}:{port} cannot be reached at {', '.join(addresses)}: {str(problem) or 'no answer'}",
        shown=f"{name}:{port} cannot be reached",
    ) from problem


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
                hello, name = await client_hello(own.incoming)
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
        if not is_plain(path) or not credential.allows_path(path):
            raise EgressRefusedError(403, f"the path {path[:200]!r} is not allowed")
        if name := override(head, query):
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


_DOUBTFUL = re.compile(r"%(?![0-9a-f]{2})|%2f|%5c|%2e|%25|%00|\\|//|;|[^!-~]", re.IGNORECASE)
_MARKS = "./\\?#%;&"
"""Characters with a meaning in a path; other letters that are read as one of them are doubtful."""
_OVERRIDES = frozenset(
    {
        "x-http-method-override",
        "x-http-method",
        "x-method-override",
        "x-original-method",
        "x-forwarded-method",
        "x-original-url",
        "x-original-uri",
        "x-rewrite-url",
        "x-override-url",
        "x-forwarded-uri",
        "x-forwarded-path",
        "x-forwarded-prefix",
        "x-envoy-original-path",
        "x-replaced-path",
        "x-script-name",
    }
)
"""Headers that some servers obey in the place of the request's own method or path."""
_FIELDS = frozenset({"_method", *_OVERRIDES})


def is_plain(path: str) -> bool:
    """Return whether a path, without its query, has no parts that servers may decode or skip."""
    if _DOUBTFUL.search(path):
        return False
    try:
        text = unquote_to_bytes(path).decode()  # strict: no overlong form
    except UnicodeDecodeError:
        return False
    if any(unicodedata.category(each) in ("Cc", "Zl", "Zp") for each in text):
        return False
    alike = unicodedata.normalize("NFKC", text)
    if any(alike.count(mark) != path.replace("%", "").count(mark) for mark in _MARKS):
        return False
    return not any(part in (".", "..") for part in path.split("/"))


def override(head: RequestHead, query: str) -> str:
    """Return the header or the field of the query that names another method or path, "" if none does.

    A field `_method` in a body is not seen.
    """
    names = [name for name, _ in head.headers if plain_name(name) in _OVERRIDES]
    fields = [
        unquote_to_bytes(each.partition("=")[0]).decode("latin-1") for each in query.split("&")
    ]
    return next(iter(names + [each for each in fields if each.lower() in _FIELDS]), "")


_HANDSHAKE, _CLIENT_HELLO, _SERVER_NAME, _HOST_NAME = 22, 1, 0, 0
_RECORD = 16 << 10
"""The largest record of TLS (bytes)."""


async def client_hello(incoming: Incoming) -> tuple[bytes, str]:
    """Return the first record of a connection and the server's name in it.

    Raises EgressRefusedError if the record is not one whole ClientHello with exactly one name.
    """
    header = await incoming.exactly(5)
    if header[0] != _HANDSHAKE or header[1] != 3:
        raise EgressRefusedError(403, "the data after CONNECT is not TLS")
    size = int.from_bytes(header[3:5], "big")
    if not 0 < size <= _RECORD:
        raise EgressRefusedError(403, f"a record of TLS has {size} bytes")
    record = await incoming.exactly(size)
    return header + record, server_name(record)


class _TruncatedError(Exception):
    """A field is longer than the rest of the message."""


class _Fields:
    """A reader of a TLS message, whose fields are preceded by their lengths."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __bool__(self) -> bool:
        return bool(self._data)

    def take(self, size: int) -> bytes:
        if size > len(self._data):
            raise _TruncatedError
        data, self._data = self._data[:size], self._data[size:]
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def field(self, size: int) -> bytes:
        """Return the next field, whose length is encoded in `size` bytes before it."""
        return self.take(self.number(size))


def server_name(record: bytes) -> str:
    """Return the server's name in a record's ClientHello. Raises EgressRefusedError."""
    message = _Fields(record)
    try:
        kind, hello = message.number(1), _Fields(message.field(3))
        if kind != _CLIENT_HELLO or message:
            raise EgressRefusedError(403, "the first record of TLS is not one ClientHello")
        hello.take(2 + 32)  # version and random
        hello.field(1)  # session id
        hello.field(2)  # ciphers
        hello.field(1)  # compression
        extensions = _Fields(hello.field(2)) if hello else _Fields(b"")
        found: list[bytes] = []
        while extensions:
            kind, content = extensions.number(2), extensions.field(2)
            if kind == _SERVER_NAME:
                found.append(content)
        if hello:
            raise EgressRefusedError(403, "the ClientHello of TLS has bytes after its extensions")
        if len(found) != 1:
            raise EgressRefusedError(403, f"TLS names {len(found)} servers; exactly one is needed")
        return _one_name(found[0])
    except _TruncatedError:
        raise EgressRefusedError(
            403, "the ClientHello of TLS is not whole in one record, or malformed"
        ) from None


def _one_name(content: bytes) -> str:
    several = _Fields(content)
    names = _Fields(several.field(2))
    kind, raw = names.number(1), names.field(2)
    name = _names.host(raw.decode("latin-1"))
    if kind != _HOST_NAME or names or several or name is None:
        raise EgressRefusedError(
            403, f"TLS has the server name {raw[:60]!r}, which is not one name"
        )
    return name
