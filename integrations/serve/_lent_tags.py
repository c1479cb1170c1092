"""Packs the tags of a client's sandbox into tags that every backend can store next to the service's own.

So no tag of a client replaces one by which the operator finds sandboxes, reserved tags of a Session included.
"""

import json
from collections.abc import Mapping

from sandboxkit import ConfigurationError

CLIENT = "serve.client"
"""The key of the tag with the client's name."""
_PACKED = "serve.tags."
_PIECE = 256
_LONGEST = 16 << 10


def pack(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags that encode `tags`, under keys that every backend accepts. Raises ConfigurationError."""
    text = json.dumps(dict(tags), separators=(",", ":"))
    if len(text) > _LONGEST or not "".join([*tags, *tags.values()]).isprintable():
        raise ConfigurationError(
            f"tags={text[:100]!r}: use printable strings, in all at most {_LONGEST} characters as JSON"
        )
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return {f"{_PACKED}{number}": piece for number, piece in enumerate(pieces)}


def unpack(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the client's own tags of a sandbox, from all its tags `stored`."""
    numbers = sorted(int(key.removeprefix(_PACKED)) for key in stored if key.startswith(_PACKED))
    text = "".join(stored[f"{_PACKED}{number}"] for number in numbers)
    return dict(json.loads(text or "{}"))
