"""A reader of untrusted tar streams: every size, name and count is bounded."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Read = Callable[[int], bytes]
"""Reads at most this many bytes; returns fewer only at the end of the stream."""

_BLOCK = 512
_NOTHING = bytes(_BLOCK)
_MAX_EXTENSION = 64 << 10
_PER_MEMBER = 2 << 10
_MAX_EXTENSIONS = 4
_MAX_DIGITS = 20
_FILES, _FOLDER = (b"0", b"\0", b"7"), b"5"
_LINKS = (b"1", b"2")
_WITHOUT_CONTENT = (*_LINKS, b"3", b"4", b"5", b"6")
_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_EXTENSIONS = (_PAX, _PAX_OF_ALL, _LONG_NAME, _LONG_LINK)


class ArchiveError(Exception):
    """The stream is not an archive, ends too early or exceeds a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of an archive. `read` its content before advancing to the next member."""

    name: str
    """Decoded with os.fsdecode."""
    is_file: bool
    is_folder: bool
    size: int
    """Size of the content in bytes; 0 for a link, a folder or a special file."""
    executable: bool
    link: str
    """Where a link leads: a symbolic one as it is, a hard one to an earlier member; "" if it is no link."""
    is_hard: bool
    read: Read


def members(read: Read, *, max_bytes: int, max_files: int) -> Iterator[Member]:
    """Yield the members of an archive, up to its end marker.

    Extended headers may take max_bytes + 2 KiB * max_files together and 64 KiB each. Raises
    ArchiveError for more, and for a malformed archive.
    """
    left = max_bytes + max_files * _PER_MEMBER
    name: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    extensions = 0
    while (block := _exactly(read, _BLOCK)) != _NOTHING:
        _check_sum(block)
        kind, stored = block[156:157], _number(block[124:136])
        if kind in _EXTENSIONS:
            extensions, left = extensions + 1, left - _BLOCK - stored
            if stored > _MAX_EXTENSION or left < 0 or extensions > _MAX_EXTENSIONS:
                raise ArchiveError(f"extended headers of at least {stored} bytes")
            text = _exactly(read, _padded(stored))[:stored]
            if kind == _LONG_NAME:
                name = text.partition(b"\0")[0]
            elif kind == _LONG_LINK:
                link = text.partition(b"\0")[0]
            elif kind == _PAX:
                records = _records(text)
                name, link = records.get(b"path", name), records.get(b"linkpath", link)
                if b"size" in records:
                    size = _decimal(records[b"size"])
            continue
        if name is None:
            name = _name(block)
        if kind in _WITHOUT_CONTENT:
            size = 0
        elif size is None:
            size = stored
        content = _Content(read, size)
        is_file = kind in _FILES and not (kind == b"\0" and name.endswith(b"/"))
        if kind not in _LINKS:
            link = b""
        elif link is None:
            link = block[157:257].partition(b"\0")[0]
        executable = bool(_number(block[100:108]) & 0o100)
        kinds, leads = (is_file, kind == _FOLDER), (os.fsdecode(link), kind == _LINKS[0])
        yield Member(os.fsdecode(name), *kinds, size, executable, *leads, content.read)
        content.skip()
        name = link = size = None
        extensions = 0


class _Content:
    def __init__(self, read: Read, size: int) -> None:
        self._read, self._left, self._padding = read, size, _padded(size) - size

    def read(self, size: int) -> bytes:
        data = _exactly(self._read, min(size, self._left))
        self._left -= len(data)
        return data

    def skip(self) -> None:
        while self._left:
            self.read(_MAX_EXTENSION)
        _exactly(self._read, self._padding)


def _exactly(read: Read, size: int) -> bytes:
    data = read(size)
    if len(data) < size:
        raise ArchiveError("it ends too early")
    return data


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _check_sum(block: bytes) -> None:
    if _number(block[148:156]) != sum(block) - sum(block[148:156]) + 8 * ord(" "):
        raise ArchiveError("a header's checksum is wrong")


def _number(field: bytes) -> int:
    if field[0] == 0x80:  # GNU's binary form, for numbers too large for octal digits
        return int.from_bytes(field[1:])
    digits = field.partition(b"\0")[0].strip() or b"0"
    if digits.strip(b"01234567"):
        raise ArchiveError("a header has no number where one is required")
    return int(digits, 8)


def _decimal(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise ArchiveError("an extended header has no number where one is required")
    return int(digits)


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _records(text: bytes) -> dict[bytes, bytes]:
    """Parse a pax header: each record is its own length, a space, `key=value`, a line feed."""
    records: dict[bytes, bytes] = {}
    start = 0
    while start < len(text):
        digits, space, _ = text[start : start + _MAX_DIGITS].partition(b" ")
        end = start + _decimal(digits)
        key, equals, value = text[start + len(digits) + 1 : end - 1].partition(b"=")
        if not space or not equals or end > len(text) or text[end - 1 : end] != b"\n":
            raise ArchiveError("an extended header is malformed")
        if key.startswith(b"GNU.sparse."):
            raise ArchiveError("a member is stored as a sparse file")
        records[key] = value
        start = end
    return records
