"""The server's name in the first message of a TLS connection."""

from sandboxkit.egress import _names
from sandboxkit.egress._incoming import Incoming
from sandboxkit.egress._refused import EgressRefusedError

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
