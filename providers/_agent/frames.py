"""The agent's wire format: frames and the fields inside them, as agent/PROTOCOL.md describes."""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

__all__ = [
    "FAR",
    "FIRST_STREAM",
    "MAX_PAYLOAD",
    "NEAR",
    "PROTOCOL_VERSION",
    "Fields",
    "Frame",
    "FrameDecoder",
    "Kind",
    "ProtocolError",
    "Windows",
]

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


class ProtocolError(Exception):
    """The agent sent data that violates the protocol."""


class Frame(NamedTuple):
    """One frame as received."""

    kind: Kind
    stream: int
    payload: bytes


def encode(kind: Kind, stream: int, payload: bytes = b"") -> bytes:
    """Encode one frame."""
    return _HEADER.pack(len(payload), kind, stream) + payload


def string(value: str | bytes) -> bytes:
    """Encode a text or byte field of any length."""
    data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    return _U32.pack(len(data)) + data


def strings(values: Iterable[str]) -> bytes:
    """Encode a field with a list of texts."""
    items = [string(value) for value in values]
    return _U32.pack(len(items)) + b"".join(items)


class Fields:
    """Reads the fields of a payload in order. Raises ProtocolError when it is too short."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._payload)

    def _take(self, size: int) -> bytes:
        data = self._payload[self._at : self._at + size]
        if len(data) < size:
            raise ProtocolError("payload too short")
        self._at += size
        return data

    def u16(self) -> int:
        """Read an unsigned 16-bit number."""
        return int.from_bytes(self._take(2), "big")

    def u32(self) -> int:
        """Read an unsigned 32-bit number."""
        return int.from_bytes(self._take(4), "big")

    def fixed(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        return self._take(size)

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self._take(len(self._payload) - self._at)

    def data(self) -> bytes:
        """Read a byte field of any length."""
        return self._take(self.u32())

    def text(self) -> str:
        """Read a text; bytes that are not UTF-8 become surrogates, as in os.fsdecode."""
        return self.data().decode("utf-8", "surrogateescape")

    def texts(self) -> list[str]:
        """Read a list of texts."""
        return [self.text() for _ in range(self.u32())]

    def info(self) -> tuple[int, int, int, int]:
        """Read the part of a file's description after its path: type, size, mode, mtime in ns."""
        kind, size, mode, mtime = _INFO.unpack(self._take(_INFO.size))
        return kind, size, mode, mtime


class FrameDecoder:
    """Decodes a byte stream, received in arbitrary chunks, into frames."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """The chunks of an incomplete frame."""
        self._size, self._due = 0, _HEADER.size
        """The number of bytes in those chunks, and the number needed before decoding can continue."""

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Raises ProtocolError on a malformed one."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._due:
                return
            data = b"".join(self._parts)
            self._parts.clear()
        at, self._due = 0, _HEADER.size
        try:
            while len(data) - at >= _HEADER.size:
                size, code, stream = _HEADER.unpack_from(data, at)
                kind = _FROM_AGENT.get(code)
                if kind is None:
                    raise ProtocolError(f"unknown frame type {code}")
                if size > MAX_PAYLOAD:
                    raise ProtocolError(f"frame of {size} bytes, the limit is {MAX_PAYLOAD}")
                end = at + _HEADER.size + size
                if len(data) < end:
                    self._due = end - at
                    break
                payload = data[at + _HEADER.size : end]
                at = end
                yield Frame(kind, stream, payload)
        finally:
            if at < len(data):
                self._parts.append(data[at:])
                self._size = len(data) - at
