"""Reads a folder into a digest of its content, and copies it on the way."""

import hashlib
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sandboxkit.datasets._folder import Folder, FolderEntry

_VERSION = b"sandboxkit dataset 1\0"
_CHUNK = 1 << 20
_TIME = 315_532_800
"""The modification time of everything in a copy: 1980-01-01, the earliest that zip archives can store."""


def read(source: str, copy: Path | None = None) -> str:
    """Return the digest of a folder's content, as "sha256:" and 64 hexadecimal digits.

    With `copy`, a new folder is made there from the bytes that were hashed: readable by all, executable
    where the owner may execute the original. Raises ConfigurationError for content that a dataset cannot
    have, and OSError if the copy cannot be written.
    """
    root = Folder(source, f"dataset {source!r}")
    target = None if copy is None else os.fsencode(copy)
    if target is not None:
        os.mkdir(target, 0o700)
    total = hashlib.sha256(_VERSION)
    folders = []
    for entry in root.entries():
        to = None if target is None else os.path.join(target, entry.name)
        kind = _kind(entry.mode)
        content = _content(root, entry, kind, to)
        total.update(b"%b %b %b\0" % (kind, content, entry.name))
        if kind == b"d":
            folders.append(to)
    for folder in (*folders[::-1], target):
        if folder is not None:  # after its content, which changes its time
            os.chmod(folder, 0o755)
            os.utime(folder, (_TIME, _TIME))
    return f"sha256:{total.hexdigest()}"


def _kind(mode: int) -> bytes:
    """Return b"d" for a folder, b"l" for a symbolic link, b"x" for an executable file, b"f" for another."""
    if stat.S_ISDIR(mode):
        return b"d"
    if stat.S_ISLNK(mode):
        return b"l"
    return b"x" if mode & stat.S_IXUSR else b"f"


def _content(root: Folder, entry: FolderEntry, kind: bytes, to: bytes | None) -> bytes:
    """Return the digest of a file's or link's content, b"" for a folder; copy it if `to` is given."""
    if kind == b"d":
        if to is not None:
            os.mkdir(to, 0o700)
        return b""
    if kind == b"l":
        target = _link(root, entry.name)
        if to is not None:
            os.symlink(target, to)
            os.utime(to, (_TIME, _TIME), follow_symlinks=False)
        return hashlib.sha256(target).hexdigest().encode()
    with open(root.open(entry.name), "rb", buffering=0) as file:
        if to is None:
            return _hashed(root, entry, file, None)
        with open(to, "xb", buffering=0) as copied:
            found = _hashed(root, entry, file, copied)
            os.fchmod(copied.fileno(), 0o755 if kind == b"x" else 0o644)
            os.utime(copied.fileno(), (_TIME, _TIME))
        return found


def _hashed(root: Folder, entry: FolderEntry, file: BinaryIO, copied: BinaryIO | None) -> bytes:
    found = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    while True:
        with root.reading(entry.name):
            count = file.readinto(buffer)  # type: ignore[attr-defined]  # a raw file has it
        if not count:
            return found.hexdigest().encode()
        found.update(buffer[:count])
        written = 0
        while copied is not None and written < count:
            written += copied.write(buffer[written:count])


def _link(root: Folder, name: bytes) -> bytes:
    """Return the target of a link. Raises ConfigurationError if it leads out of the folder."""
    target = root.link(name)
    lead = os.path.normpath(os.path.join(os.path.dirname(name), target))
    if os.path.isabs(target) or lead == b".." or lead.startswith(b"../"):
        raise root.refusal(
            name,
            f"is a link to {os.fsdecode(target)!r}, which leaves the folder: "
            "replace it by what it leads to, or by a relative link that stays inside",
        )
    return target
