"""Reads a folder that somebody else may have made: nothing outside of it is opened, whatever its links are."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandboxkit.errors import ConfigurationError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC  # a pipe would block
_MOST_DEPTH, _MOST_FILES, _MOST_BYTES = 64, 200_000, 4 << 30
_MOST_TEXT = 8 << 20


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file, folder or symbolic link in a folder."""

    name: bytes
    """The path relative to the folder."""
    mode: int
    size: int


class Folder:
    """A folder of this machine. Its own path may have links; links in it may lead to other parts of it.

    Everything is opened below the folder's descriptor. All methods raise ConfigurationError, which begins with
    `what` and names the path, for a link that leaves the folder, for devices, pipes and sockets, and for
    something that cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str], what: str) -> None:
        self.path, self._what = Path(os.path.realpath(path)), what
        self._root = os.fsencode(self.path)

    def text(self, name: str, *, most: int = _MOST_TEXT, errors: str = "strict") -> str | None:
        """Return the text of a file of at most `most` bytes; None if there is none.

        Links are followed within the folder. `errors` is that of `bytes.decode`.
        """
        if (found := self.find(name)) is None:
            return None
        with open(self.open(found), "rb") as file, self.reading(found):
            data = file.read(most + 1)
        if len(data) > most:
            raise self.refusal(found, f"has more than {most} bytes of text")
        try:
            return data.decode(errors=errors)
        except UnicodeDecodeError as error:
            raise self.refusal(found, f"is not UTF-8: {error.reason}") from error

    def subfolder(self, name: str) -> Path | None:
        """Return the path, without links, of a folder in it for `Sandbox.upload`; None if there is none.

        Raises ConfigurationError for a folder of more than 64 levels, 200,000 entries or 4 GiB as well.
        """
        if (found := self.find(name)) is None:
            return None
        inner, size = Folder(self.path / os.fsdecode(found), self._what), 0
        for count, entry in enumerate(inner.entries(), 1):
            size += entry.size if stat.S_ISREG(entry.mode) else 0
            if count > _MOST_FILES or size > _MOST_BYTES or entry.name.count(b"/") >= _MOST_DEPTH:
                limits = f"{_MOST_DEPTH} levels, {_MOST_FILES} entries or {_MOST_BYTES} bytes"
                raise inner.refusal(entry.name, f"makes it a folder of more than {limits}")
        return inner.path

    def find(self, name: str) -> bytes | None:
        """Return the path below the folder to which a path leads, without links; None if nothing is there."""
        path = os.fsencode(name)
        if b"\0" in path:
            raise self.refusal(path, "has a NUL character in its name")
        found = os.path.realpath(os.path.join(self._root, path))
        if found != self._root and not found.startswith(os.path.join(self._root, b"")):
            raise self.refusal(
                path,
                f"leads to {os.fsdecode(found)!r}, which is outside: replace the link by what it leads to",
            )
        return os.path.relpath(found, self._root) if os.path.lexists(found) else None

    def open(self, name: bytes, *, folder: bool = False) -> int:
        """Open a file, or a folder, of the folder without following any link; return its descriptor."""
        with self.reading(name):
            current = os.open(self._root, _FOLDER)
            parts = [part for part in name.split(b"/") if part not in (b"", b".")]
            assert b".." not in parts, name
            for number, part in enumerate(parts, 1):
                try:
                    flags = _FOLDER if folder or number < len(parts) else _FILE
                    inner = os.open(part, flags, dir_fd=current)
                finally:
                    os.close(current)
                current = inner
        if not folder and not stat.S_ISREG(os.fstat(current).st_mode):
            os.close(current)
            raise self.refusal(name, "is not a file")
        return current

    def entries(self) -> Iterator[FolderEntry]:
        """Yield everything below the folder, each folder before its content, in one fixed order."""
        pending = [b""]
        while pending:
            folder = pending.pop()
            descriptor = self.open(folder, folder=True)
            try:
                with self.reading(folder):
                    found = [
                        (name, os.stat(name, dir_fd=descriptor, follow_symlinks=False))
                        for name in sorted(map(os.fsencode, os.listdir(descriptor)))
                    ]
            finally:
                os.close(descriptor)
            below = []
            for name, info in found:
                entry = FolderEntry(os.path.join(folder, name), info.st_mode, info.st_size)
                if stat.S_ISDIR(info.st_mode):
                    below.append(entry.name)
                elif not stat.S_ISREG(info.st_mode) and not stat.S_ISLNK(info.st_mode):
                    raise self.refusal(
                        entry.name, "is no file, folder or link: remove it or give a copy"
                    )
                yield entry
            pending += below[::-1]

    def link(self, name: bytes) -> bytes:
        """Return the target of a symbolic link."""
        folder = self.open(os.path.dirname(name), folder=True)
        try:
            with self.reading(name):
                return os.readlink(os.path.basename(name), dir_fd=folder)
        finally:
            os.close(folder)

    def refusal(self, name: bytes, why: str) -> ConfigurationError:
        """Return the error for a path in the folder."""
        path = os.fsdecode(os.path.join(self._root, name)).rstrip("/")
        return ConfigurationError(f"{self._what}: {path!r} {why}")

    @contextmanager
    def reading(self, name: bytes) -> Iterator[None]:
        """Raise ConfigurationError for an OSError in the block."""
        try:
            yield
        except OSError as error:
            raise self.refusal(name, f"cannot be read: {error.strerror}") from error
