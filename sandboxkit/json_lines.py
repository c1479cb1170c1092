"""Reads files of JSON lines: only a newline ends a line, whatever other separators its strings contain."""

import itertools
import json
import os
from collections.abc import Iterator
from typing import Any, Protocol

from sandboxkit.errors import ConfigurationError

__all__ = ["json_lines", "read_json_lines"]

_MOST_BYTES = 1 << 30
"""Largest size of a line. LiveCodeBench has rows of a few hundred million bytes."""


class _Readable(Protocol):
    """A file of bytes."""

    def readline(self, size: int, /) -> bytes: ...


# Any, throughout: a value of JSON.
def read_json_lines(path: str | os.PathLike[str], what: str) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line in the file `path`; blank lines are skipped.

    Raises ConfigurationError for a file that cannot be read and for a line that is not JSON in UTF-8 or has more
    than 1 GiB. It names the file, after `what`, and the line.
    """
    name = f"{what} {os.fspath(path)!r}"
    try:
        with open(path, "rb") as file:
            yield from json_lines(file, name)
    except OSError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from error


def json_lines(file: _Readable, name: str, *, complete: bool = False) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of each line in an open file, as `read_json_lines` does.

    With `complete`, a last line without a newline is skipped: its writer was interrupted.
    """
    for number in itertools.count(1):
        line = file.readline(_MOST_BYTES + 1)
        if len(line) > _MOST_BYTES:
            raise ConfigurationError(f"{name}, line {number}: more than {_MOST_BYTES} bytes")
        if not line or (complete and not line.endswith(b"\n")):
            return
        if line.isspace():
            continue
        try:
            value = json.loads(
                line.decode("utf-8-sig")
            )  # Windows' programs begin a file with a BOM
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{name}, line {number}: not JSON: {error}") from error
        yield number, value
