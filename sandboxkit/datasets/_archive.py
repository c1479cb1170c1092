"""Writes a stored snapshot as a tar stream, for a copy of it elsewhere."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 1 << 20


def archive(folder: Path) -> Iterator[bytes]:
    """Yield a tar of a stored dataset, whose modes and times are those to be shown."""
    yield _header(folder, ".")
    for path in sorted(folder.rglob("*")):
        yield _header(path, str(path.relative_to(folder)))
        if path.is_file() and not path.is_symlink():
            with open(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk
            yield bytes(-path.stat().st_size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _header(path: Path, name: str) -> bytes:
    found = path.lstat()
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = found.st_mode & 0o777, int(found.st_mtime)
    if path.is_symlink():
        entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(path)
    elif path.is_dir():
        entry.type = tarfile.DIRTYPE
    else:
        entry.size = found.st_size
    # GNU's format keeps the bytes of names that are not UTF-8.
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
