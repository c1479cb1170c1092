"""Encodes tags for Modal, which allows 1 to 63 letters, digits, dots, dashes and underscores.

Allowed characters stay as they are, readable in Modal's dashboard. Any other byte becomes "_x"
and two hex digits, and a long value continues in further tags, whose names end in "_x-1", "_x-2"...
"""

import re
from collections.abc import Mapping

from sandboxkit.errors import ConfigurationError

_LIMIT = 63
_EMPTY = "_x."
_PLAIN = re.compile(rb"[A-Za-z0-9.-]")
_UNIT = re.compile(r"_x[0-9A-F]{2}|.", re.DOTALL)
_ESCAPE = re.compile(r"_x([0-9A-F]{2})")
_MORE = re.compile(r"(.+)_x-([1-9][0-9]*)")


def encode(tags: Mapping[str, str]) -> dict[str, str]:
    """Encode tags for Modal. Raises ConfigurationError for a key too long to be stored."""
    stored: dict[str, str] = {}
    for key, value in tags.items():
        pieces = _split(_escape(value))
        for index, piece in enumerate(pieces):
            name = _escape(key) + (f"_x-{index}" if index else "")
            if len(name) > _LIMIT:
                raise ConfigurationError(
                    f"modal cannot store the tag {key!r}: its name takes {len(name)} characters "
                    f"of at most {_LIMIT}; choose a shorter one without '/'"
                )
            stored[name] = piece
    return stored


def decode(stored: Mapping[str, str]) -> dict[str, str]:
    """Decode the tags that Modal has stored; tags of other programs are returned unchanged."""
    values: dict[str, dict[int, str]] = {}
    for name, piece in stored.items():
        more = _MORE.fullmatch(name)
        key, index = (more[1], int(more[2])) if more else (name, 0)
        values.setdefault(key, {})[index] = piece
    return {
        _unescape(key): _unescape("".join(pieces[index] for index in sorted(pieces)))
        for key, pieces in values.items()
    }


def _escape(text: str) -> str:
    data = text.encode()
    units = []
    for index in range(len(data)):
        byte = data[index : index + 1]
        harmless = byte == b"_" and data[index + 1 : index + 2] != b"x"
        units.append(byte.decode() if harmless or _PLAIN.fullmatch(byte) else f"_x{byte[0]:02X}")
    return "".join(units) or _EMPTY


def _unescape(text: str) -> str:
    if text == _EMPTY:
        return ""
    # latin-1 maps each character to one byte.
    unescaped = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
    try:
        return unescaped.encode("latin-1").decode()
    except UnicodeError:
        return text  # a tag that another program has set


def _split(text: str) -> list[str]:
    pieces = [""]
    for unit in _UNIT.findall(text):
        if len(pieces[-1]) + len(unit) > _LIMIT:
            pieces.append("")
        pieces[-1] += unit
    return pieces
