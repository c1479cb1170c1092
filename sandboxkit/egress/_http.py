"""A strict parser of HTTP/1.1 heads: it refuses messages that another parser could read differently."""

import re
from dataclasses import dataclass

from sandboxkit.egress import _names
from sandboxkit.egress._refused import EgressRefusedError

_NO_WORD = re.compile(r"[^a-z0-9]")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_REQUEST = re.compile(r"([A-Z]{1,20}) ([!-~]+) (HTTP/1\.[01])", re.ASCII)
_STATUS = re.compile(r"HTTP/1\.[01] ([1-5][0-9]{2})(?: .*)?", re.ASCII)
_VALUE = re.compile(r"[\t -~\x80-\xff]*")
_CHUNK = re.compile(rb"[0-9A-Fa-f]{1,15}")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
_UNSEEN = re.compile(r"[^ -~]")
_PATH = re.compile(r"/[!-\"$-~]*", re.ASCII)
"""A path with its query: visible characters, no fragment."""
HOP_BY_HOP = frozenset(
    {
        "connection",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "upgrade",
    }
)
"""Headers that concern one connection only."""

Headers = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The first line and the headers of a request."""

    method: str
    target: str
    version: str
    headers: Headers

    def values(self, name: str) -> list[str]:
        """Return the values of the header `name`, which is given in lower case."""
        return [value for each, value in self.headers if each.lower() == name]


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """The server that a request is for; with plain HTTP also the path and its query."""

    name: str
    port: int
    path: str = ""


NO_TARGET = HttpTarget("", 0)
"""The target of an invalid request."""


def request(head: bytes) -> RequestHead:
    """Parse a request's head. Raises EgressRefusedError if it is invalid."""
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _REQUEST.fullmatch(first)
    if found is None:
        raise EgressRefusedError(400, "the first line is not METHOD TARGET HTTP/1.1")
    return RequestHead(found[1], found[2], found[3], _headers(lines))


def _headers(lines: list[str]) -> Headers:
    headers: Headers = []
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise EgressRefusedError(400, f"{line[:60]!r} is not a header")
        headers.append((name, value.strip(" \t")))
    return headers


def target(head: RequestHead) -> HttpTarget:
    """Return the server that a request is for. Raises EgressRefusedError if it is unclear or invalid."""
    if head.method == "CONNECT":
        server, path = _authority(head.target, None), ""
    else:
        scheme, found, rest = head.target.partition("://")
        if not found or scheme.lower() != "http":
            raise EgressRefusedError(400, "the target is not http://NAME/...; use CONNECT for TLS")
        at = re.search(r"[/?]|$", rest)
        assert at is not None
        server, path = _authority(rest[: at.start()], 80), rest[at.start() :]
        path = path if path.startswith("/") else f"/{path}"
        if not _PATH.fullmatch(path):
            raise EgressRefusedError(400, "the target's path has characters that no URL has")
    hosts = head.values("host")
    if len(hosts) > 1 or (not hosts and head.version == "HTTP/1.1" and head.method != "CONNECT"):
        raise EgressRefusedError(400, f"the request has {len(hosts)} Host headers")
    # Some clients send CONNECT with a Host that lacks the port.
    default = server[1] if head.method == "CONNECT" else 80
    if hosts and _authority(hosts[0], default) != server:
        raise EgressRefusedError(
            400, f"Host is {hosts[0][:60]!r}, the target {server[0]}:{server[1]}"
        )
    return HttpTarget(*server, path)


def _authority(text: str, default: int | None) -> tuple[str, int]:
    name, colon, number = text.partition(":")
    host, port = _names.host(name), _names.port(number) if colon else default
    if host is None:
        raise EgressRefusedError(
            403, f"{text[:60]!r} is not a host name (addresses are refused: use a name)"
        )
    if port is None:
        raise EgressRefusedError(400, f"{text[:60]!r} has no valid port")
    return host, port


def body_length(head: RequestHead) -> int | None:
    """Return the size (bytes) of a request's body, or None if it comes in chunks.

    Raises EgressRefusedError if the headers are ambiguous.
    """
    lengths, codings = head.values("content-length"), head.values("transfer-encoding")
    if codings:
        if lengths or head.version == "HTTP/1.0":
            raise EgressRefusedError(400, "Transfer-Encoding with Content-Length or HTTP/1.0")
        if [each.lower() for each in codings] != ["chunked"]:
            raise EgressRefusedError(400, f"Transfer-Encoding is {codings!r}, not 'chunked'"[:120])
        return None
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise EgressRefusedError(400, f"Content-Length is {lengths!r}"[:120])
    return int(lengths[0]) if lengths else 0


def chunk_size(line: bytes) -> int:
    """Return the size (bytes) that the first line of a chunk gives. Raises EgressRefusedError."""
    if not _CHUNK.fullmatch(line):
        raise EgressRefusedError(400, f"{line[:60]!r} is not the size of a chunk")
    return int(line, 16)


def plain_name(header: str) -> str:
    """Return a header's name as CGI and WSGI servers read it: lower case, and `-` for what is no letter or digit."""
    return _NO_WORD.sub("-", header.lower())


def forwarded(
    head: RequestHead, to: HttpTarget, host: str, length: int | None, added: Headers
) -> bytes:
    """Return the head to send to the server: the path of `to`, the Host header `host`, and `added` headers.

    A header whose name some servers take for one of the proxy's is dropped, such as `Content_Length`. The framing is
    written anew for a body of `length` bytes, or in chunks if `length` is None.
    """
    named = {
        each.strip().lower() for value in head.values("connection") for each in value.split(",")
    }
    dropped = HOP_BY_HOP | named | {name.lower() for name, _ in added}
    dropped |= {"host", "content-length", "transfer-encoding"}
    headers: Headers = [("Host", host)]
    headers += [(name, value) for name, value in head.headers if plain_name(name) not in dropped]
    headers += added
    if length is None:
        headers.append(("Transfer-Encoding", "chunked"))
    elif length or head.method in ("POST", "PUT", "PATCH"):
        headers.append(("Content-Length", str(length)))
    headers.append(("Connection", "close"))
    return _written(f"{head.method} {to.path} HTTP/1.1", headers)


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of a response, as it is forwarded to the sandbox, and the size of its body."""

    status: int
    data: bytes
    length: int | None
    """The size of the body in bytes; None if it ends with the connection."""


def response(head: bytes, method: str) -> ResponseHead:
    """Parse the head of the response to a request with `method`; `data` gets "Connection: close".

    Raises EgressRefusedError if it is invalid.
    """
    first, *lines = head.decode("latin-1").split("\r\n")
    found = _STATUS.fullmatch(first)
    if found is None:
        raise EgressRefusedError(502, "the server's response is not HTTP/1.1")
    status = int(found[1])
    headers = [(name, value) for name, value in _headers(lines) if name.lower() not in HOP_BY_HOP]
    lengths = {value for name, value in headers if name.lower() == "content-length"}
    chunked = any(name.lower() == "transfer-encoding" for name, _ in headers)
    length: int | None = None
    if status < 200 or status in (204, 304) or method == "HEAD":
        length = 0
    elif not chunked and lengths:
        if len(lengths) > 1 or not _LENGTH.fullmatch(min(lengths)):
            raise EgressRefusedError(502, "the server's response has an unclear Content-Length")
        length = int(min(lengths))
    if status >= 200:
        headers.append(("Connection", "close"))
    return ResponseHead(status, _written(first, headers), length)


def refusal(status: int, reason: str) -> bytes:
    """Return the whole HTTP response to a refused request; pip, wget and Go show no more than its first line."""
    text = _UNSEEN.sub("?", f"sandboxkit: {reason}")
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(text) + 1))]
    head = _written(f"HTTP/1.1 {status} {text[:300]}", [*headers, ("Connection", "close")])
    return head + f"{text}\n".encode("ascii")


def _written(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
