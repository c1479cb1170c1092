"""A parser of the kernel holder's untrusted messages."""

import base64
import json
from typing import Any, Literal, cast

from sandboxkit.kernel._result import CellError, CellOutput
from sandboxkit.terminal import plain

_COST = 64
"""Overhead (bytes) that each display counts against the limit, as in the sandbox."""
_STREAMS = ("stdout", "stderr")


# Any, here and below: JSON that the sandbox wrote; each value is checked before use.
def message(line: bytes, token: str) -> dict[str, Any] | None:
    """Parse a line that begins with the holder's `token`; return None for any other line."""
    prefix, _, text = line.partition(b" ")
    if prefix != token.encode():
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def error(given: object) -> CellError | None:
    """Parse the exception that a cell raised; None if there is none."""
    if not isinstance(given, dict):
        return None
    names = ("name", "message", "traceback")
    texts = [plain(_printable(str(given.get(name, "")))) for name in names]
    return CellError(*texts)


class Outputs:
    """A buffer of outputs in order of arrival, bounded by `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._found: list[CellOutput] = []
        self._printed: list[str] = []  # the newest pieces of one stream
        self._stream: Literal["stdout", "stderr"] = "stdout"
        self._size, self._truncated = 0, False

    def add(self, items: object) -> None:
        """Add the outputs of one message; ignore malformed ones."""
        for item in items if isinstance(items, list) else []:
            if isinstance(item, list) and len(item) == 2:
                self._add(item[0], item[1])

    def take(self) -> tuple[tuple[CellOutput, ...], bool]:
        """Remove and return all outputs, and whether any were dropped."""
        self._join()
        taken = tuple(self._found), self._truncated
        self._found, self._size, self._truncated = [], 0, False
        return taken

    def _add(self, kind: object, value: object) -> None:
        if kind in _STREAMS and isinstance(value, str):
            value = _printable(value)
            size = len(value.encode())
            if not self._fits(size):
                return
            if kind != self._stream:
                self._join()
                self._stream = cast(Literal["stdout", "stderr"], kind)
            self._printed.append(value)
        elif kind in ("display", "result") and isinstance(value, dict):
            if not self._fits(_size(value) + _COST):
                return
            self._join()
            text = str(value.get("text/plain", ""))
            data = {str(name): _decoded(str(name), each) for name, each in value.items()}
            self._found.append(CellOutput(kind, _printable(text), data))

    def _fits(self, size: int) -> bool:
        # Twice the limit: U+FFFD is longer than the byte it replaces, and re-encoded JSON grows.
        if self._size + size > 2 * self._limit:
            self._truncated = True
            return False
        self._size += size
        return True

    def _join(self) -> None:
        if self._printed:
            self._found.append(CellOutput(self._stream, "".join(self._printed)))
            self._printed = []


def _size(value: object) -> int:
    try:
        return len(json.dumps(value))
    except RecursionError:  # nested just too deeply to be written, though it could be read
        return 1 << 62


def _decoded(name: str, given: Any) -> Any:
    if name.startswith("image/") and name != "image/svg+xml":
        try:
            return base64.b64decode(given)
        except (ValueError, TypeError):
            return b""
    if name == "application/json" or name.endswith("+json"):
        return given
    return _printable(given if isinstance(given, str) else json.dumps(given))


def _printable(text: str) -> str:
    """Escape lone surrogates, which cannot be encoded for a file or a terminal."""
    return text.encode(errors="backslashreplace").decode()
