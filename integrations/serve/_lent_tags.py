"""Packs the tags of a client's sandbox into tags that every backend can store next to the service's own.

A client that is itself sandboxkit uses reserved tags, which would clash with those of the service's session.
"""

import json
from collections.abc import Mapping

CLIENT = "serve.client"
"""The key of the tag with the client's name."""
_PACKED = "serve.tags."
_PIECE = 256
_OURS = ("sandboxkit.", "serve.")


def pack(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags that encode `tags`, under keys that every backend accepts."""
    text = json.dumps(dict(tags), separators=(",", ":"))
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return {f"{_PACKED}{number}": piece for number, piece in enumerate(pieces)}


def unpack(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the client's own tags of a sandbox, from all its tags `stored`."""
    if f"{_PACKED}0" not in stored:
        return {key: value for key, value in stored.items() if not key.startswith(_OURS)}
    numbers = sorted(int(key.removeprefix(_PACKED)) for key in stored if key.startswith(_PACKED))
    tags: dict[str, str] = json.loads("".join(stored[f"{_PACKED}{number}"] for number in numbers))
    return tags
