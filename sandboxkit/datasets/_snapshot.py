"""Reads a folder into a digest of its content, and copies it on the way."""

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sandboxkit.errors import ConfigurationError

_VERSION = b"sandboxkit dataset 1\0"
_CHUNK = 1 << 20
_TIME = 315_532_800
"""The modification time of everything in a copy: 1980-01-01, the earliest that zip archives can store."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    """The path relative to the folder."""
    kind: bytes
    """b"d" for a folder, b"l" for a symbolic link, b"x" for an executable file, b"f" for another."""


def read(source: str, copy: Path | None = None) -> str:
    """Return the digest of a folder's content, as "sha256:" and 64 hexadecimal digits.

    With `copy`, a new folder is made there from the bytes that were hashed: readable by all, executable
    where the owner may execute the original. Raises ConfigurationError for content that a dataset cannot
    have, and OSError if the copy cannot be written.
    """
    root = os.fsencode(source)
    target = None if copy is None else os.fsencode(copy)
    if target is not None:
        os.mkdir(target, 0o700)
    total = hashlib.sha256(_VERSION)
    folders = []
    for entry in _entries(root):
        to = None if target is None else os.path.join(target, entry.name)
        content = _content(root, entry, to)
        total.update(b"%b %b %b\0" % (entry.kind, content, entry.name))
        if entry.kind == b"d":
            folders.append(to)
    for folder in (*folders[::-1], target):
        if folder is not None:  # after its content, which changes its time
            os.chmod(folder, 0o755)
            os.utime(folder, (_TIME, _TIME))
    return f"sha256:{total.hexdigest()}"


def _entries(root: bytes) -> Iterator[_Entry]:
    """Yield everything below the folder, each folder before its content, in one fixed order."""
    pending = [b""]
    while pending:
        folder = pending.pop()
        with _reading(root, folder), os.scandir(os.path.join(root, folder)) as found:
            names = sorted(each.name for each in found)
        below = []
        for name in names:
            entry = _Entry(path := os.path.join(folder, name), _kind(root, path))
            yield entry
            if entry.kind == b"d":
                below.append(path)
        pending += below[::-1]


def _kind(root: bytes, name: bytes) -> bytes:
    with _reading(root, name):
        mode = os.lstat(os.path.join(root, name)).st_mode
    if stat.S_ISDIR(mode):
        return b"d"
    if stat.S_ISLNK(mode):
        return b"l"
    if stat.S_ISREG(mode):
        return b"x" if mode & stat.S_IXUSR else b"f"
    raise _refusal(
        root, name, "is no file, folder or link: a dataset cannot have it; remove it or give a copy"
    )


def _content(root: bytes, entry: _Entry, to: bytes | None) -> bytes:
    """Return the digest of a file's or link's content, b"" for a folder; copy it if `to` is given."""
    if entry.kind == b"d":
        if to is not None:
            os.mkdir(to, 0o700)
        return b""
    if entry.kind == b"l":
        target = _link(root, entry.name)
        if to is not None:
            os.symlink(target, to)
            os.utime(to, (_TIME, _TIME), follow_symlinks=False)
        return hashlib.sha256(target).hexdigest().encode()
    with _reading(root, entry.name):
        # Not blocking and no link followed: something else may have taken the file's place.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(os.path.join(root, entry.name), flags)
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _refusal(root, entry.name, "changed while it was read: stop what writes there")
        if to is None:
            return _hashed(root, entry, file, None)
        with open(to, "xb", buffering=0) as copied:
            found = _hashed(root, entry, file, copied)
            os.fchmod(copied.fileno(), 0o755 if entry.kind == b"x" else 0o644)
            os.utime(copied.fileno(), (_TIME, _TIME))
        return found


def _hashed(root: bytes, entry: _Entry, file: BinaryIO, copied: BinaryIO | None) -> bytes:
    found = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    while True:
        with _reading(root, entry.name):
            count = file.readinto(buffer)  # type: ignore[attr-defined]  # a raw file has it
        if not count:
            return found.hexdigest().encode()
        found.update(buffer[:count])
        written = 0
        while copied is not None and written < count:
            written += copied.write(buffer[written:count])


def _link(root: bytes, name: bytes) -> bytes:
    """Return the target of a link. Raises ConfigurationError if it leads out of the folder."""
    with _reading(root, name):
        target = os.readlink(os.path.join(root, name))
    lead = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if os.path.isabs(target) or lead == b".." or lead.startswith(b"../"):
        raise _refusal(
            root,
            name,
            f"is a link to {os.fsdecode(target)!r}, which leaves the folder: "
            "replace it by what it leads to, or by a relative link that stays inside",
        )
    return target


@contextmanager
def _reading(root: bytes, name: bytes) -> Iterator[None]:
    """Raise ConfigurationError for an OSError in the block."""
    try:
        yield
    except OSError as error:
        raise _refusal(root, name, f"cannot be read: {error.strerror}") from error


def _refusal(root: bytes, name: bytes, why: str) -> ConfigurationError:
    path = os.fsdecode(os.path.join(root, name)).rstrip("/")
    return ConfigurationError(f"dataset {os.fsdecode(root)!r}: {path!r} {why}")
