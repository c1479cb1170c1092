"""The file of a recording: one line of JSON per call; long contents are in a separate folder."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from sandboxkit._calls import _arguments
from sandboxkit.errors import ConfigurationError
from sandboxkit.json_lines import json_lines
from sandboxkit.recording._content import Json

VERSION = 1
LIMIT = 1 << 30
"""Size limit (bytes) of a recording, including its folder."""
_log = logging.getLogger("sandboxkit")


class Writer:
    """Appends lines to a new file, which only its user can read.

    The first line creates the file. Each line is written immediately, so a killed process leaves at most
    one incomplete line, the last. When the limit is reached or the disk is full, the recording ends with
    a log message, and the calls continue. Raises ConfigurationError if the file cannot be new.
    """

    def __init__(self, path: str | os.PathLike[str], header: Json) -> None:
        self.path = Path(_arguments.local_path("record", path))
        if self.path.exists() or self.folder.exists():
            raise ConfigurationError(
                f"record={str(self.path)!r} exists already: remove it and the folder "
                f"{self.folder.name!r}, or give another name"
            )
        if not self.path.parent.is_dir():
            raise ConfigurationError(
                f"record={str(self.path)!r}: make the folder {str(self.path.parent)!r} first"
            )
        self._header, self._left, self._file = header, LIMIT, -1
        self._ended = False

    @property
    def folder(self) -> Path:
        """The folder of long contents; each file is named by its SHA-256."""
        return folder_of(self.path)

    def line(self, value: Json) -> None:
        """Append one line."""
        self._guarded(lambda: self._append(value))

    def keep(self, digest: str, data: bytes) -> None:
        """Store a long content under its digest, unless it is stored already."""
        self._guarded(lambda: self._store(digest, data))

    def close(self) -> None:
        """End the recording. Without any call, the file has only the header."""
        self._guarded(self._open)
        self._ended = True
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _guarded(self, write: Callable[[], None]) -> None:
        if self._ended:
            return
        try:
            write()
        except OSError as error:
            self._ended = True
            _log.error("the recording %s ends here: %s", self.path, error)

    def _append(self, value: Json) -> None:
        self._open()
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        if not self._take(len(data)):
            data = json.dumps({"ended": "the recording reached its limit"}).encode() + b"\n"
        _write(self._file, data)

    def _store(self, digest: str, data: bytes) -> None:
        target = self.folder / digest
        if target.exists() or not self._take(len(data)):
            return
        self.folder.mkdir(mode=0o700, exist_ok=True)
        file = os.open(f"{target}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write(file, data)
        finally:
            os.close(file)
        os.replace(f"{target}.part", target)

    def _take(self, size: int) -> bool:
        self._left -= size
        if self._left < 0:
            self._ended = True
            _log.error("the recording %s ends here: it reached its limit", self.path)
        return not self._ended

    def _open(self) -> None:
        if self._file < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self.path, flags, 0o600)
            _write(self._file, json.dumps(self._header).encode() + b"\n")


def folder_of(path: Path) -> Path:
    """Return the folder of a recording's long contents."""
    return path.with_name(f"{path.name}.files")


def read(path: str | os.PathLike[str]) -> Iterator[Json]:
    """Iterate over the lines of a recording, header first; an incomplete last line is skipped.

    Raises ConfigurationError for a file that is not a recording.
    """
    file = Path(_arguments.local_path("replay", path))
    name = f"replay={str(file)!r}"
    try:
        with file.open("rb") as opened:
            lines = json_lines(opened, name, complete=True)
            _, header = next(lines, (0, None))
            if not isinstance(header, dict) or header.get("recording") != VERSION:
                raise ConfigurationError(
                    f"{name} is not a recording of this version: make one with Session(record=...)"
                )
            yield header
            for _, line in lines:
                yield line
    except OSError as error:
        raise ConfigurationError(f"{name}: {error.strerror}") from error


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
