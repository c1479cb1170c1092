"""The agent's wire format: frames and the fields inside them, as agent/PROTOCOL.md describes."""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from sandboxkit.providers._agent.failures import ProtocolError

PROTOCOL_VERSION = 3
MAGIC = b"SBXK"
MAX_PAYLOAD = 4 << 20
CHUNK_BYTES = 64 << 10
FIRST_STREAM = 1
"""The stream of a session's first request."""

_HEADER = struct.Struct(">IBI")
_U32 = struct.Struct(">I")
_INFO = struct.Struct(">BQIq")


class Windows(NamedTuple):
    """The initial flow-control windows (bytes) of one stream, by direction; agents accept 64 KiB to
    8 MiB."""

    from_agent: int = 1 << 20
    to_agent: int = 256 << 10


NEAR = Windows()
FAR = Windows(from_agent=4 << 20, to_agent=2 << 20)
"""Windows for a long round trip: a window bounds the bytes in flight, and so the throughput."""


class Kind(IntEnum):
    """Frame types. The agent sends EOF, CREDIT and the types from WELCOME on."""

    HELLO = 1
    EXEC = 2
    DATA = 3
    EOF = 4
    CREDIT = 5
    RESIZE = 6
    KILL = 7
    CALL = 8
    WELCOME = 16
    STDOUT = 17
    STDERR = 18
    EXIT = 19
    DONE = 20
    FAIL = 21
    BYE = 22
    OPENED = 23


_FROM_AGENT = {
    kind.value: kind for kind in Kind if kind >= Kind.WELCOME or kind in (Kind.EOF, Kind.CREDIT)
}


class Frame(NamedTuple):
    """One frame as received."""

    kind: Kind
    stream: int
    payload: bytes


def encode(kind: Kind, stream: int, payload: bytes | memoryview = b"") -> bytes:
    """Encode one frame."""
    return b"".join((_HEADER.pack(len(payload), kind, stream), payload))


def string(value: str | bytes) -> bytes:
    """Encode a text or byte field of any length."""
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    return _U32.pack(len(data)) + data


def strings(values: Iterable[str]) -> bytes:
    """Encode a field with a list of texts."""
    items = [string(value) for value in values]
    return _U32.pack(len(items)) + b"".join(items)


def unpack(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    """Decode a payload of numbers alone. Raises ProtocolError if its size is another."""
    if len(payload) != layout.size:
        raise ProtocolError(f"{len(payload)} bytes in the place of {layout.size}")
    return layout.unpack(payload)


class Fields:
    """Reads the fields of a payload in order. Raises ProtocolError when it is too short."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._payload)

    def fixed(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        data = self._payload[self._at : self._at + size]
        if len(data) < size:
            raise ProtocolError("payload too short")
        self._at += size
        return data

    def u16(self) -> int:
        """Read an unsigned 16-bit number."""
        return int.from_bytes(self.fixed(2), "big")

    def u32(self) -> int:
        """Read an unsigned 32-bit number."""
        return int.from_bytes(self.fixed(4), "big")

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.fixed(len(self._payload) - self._at)

    def data(self) -> bytes:
        """Read a byte field of any length."""
        return self.fixed(self.u32())

    def text(self) -> str:
        """Read a text; bytes that are not UTF-8 become surrogates, as in os.fsdecode."""
        return self.data().decode("utf-8", "surrogateescape")

    def texts(self) -> list[str]:
        """Read a list of texts."""
        return [self.text() for _ in range(self.u32())]

    def info(self) -> tuple[int, int, int, int]:
        """Read the part of a file's description after its path: type, size, mode, mtime in ns."""
        kind, size, mode, mtime = _INFO.unpack(self.fixed(_INFO.size))
        return kind, size, mode, mtime


class FrameDecoder:
    """Decodes a byte stream, received in arbitrary pieces, into frames."""

    def __init__(self) -> None:
        self._header = b""
        """The bytes of an incomplete header."""
        self._begun: tuple[Kind, int] | None = None
        """The type and stream of a frame whose payload is incomplete."""
        self._part = bytearray()
        self._missing = 0
        """What has arrived of that payload, and the number of bytes that have not."""

    def feed(self, *pieces: bytes | memoryview) -> Iterator[Frame]:
        """Yield the frames that `pieces` complete. Raises ProtocolError on a malformed one."""
        for piece in pieces:
            at = 0
            while at < len(piece):
                begun = self._begun
                if begun is None:
                    size = _HEADER.size - len(self._header)
                    self._header += piece[at : at + size]
                    at += size
                    if at > len(piece):
                        break
                    begun = self._begin()
                part = piece[at : at + self._missing]
                at += len(part)
                self._missing -= len(part)
                if self._part or self._missing:
                    # One buffer: a piece may be a single byte, and a list would keep each.
                    self._part += part
                    if self._missing:
                        break
                payload = bytes(self._part or part)
                self._part.clear()
                self._begun = None
                yield Frame(*begun, payload)

    def _begin(self) -> tuple[Kind, int]:
        size, code, stream = _HEADER.unpack(self._header)
        kind = _FROM_AGENT.get(code)
        if kind is None:
            raise ProtocolError(f"unknown frame type {code}")
        if size > MAX_PAYLOAD:
            raise ProtocolError(f"frame of {size} bytes, the limit is {MAX_PAYLOAD}")
        self._header, self._missing = b"", size
        self._begun = begun = (kind, stream)
        return begun
