"""Tags: labels on sandboxes, given as strings or a mapping and stored as key-value pairs."""

import re
from collections.abc import Iterable, Mapping

from sandboxkit._calls import _arguments
from sandboxkit.errors import ConfigurationError

Tags = str | Iterable[str] | Mapping[str, str]

RESERVED = "sandboxkit."
SESSION = "sandboxkit.session"
OWNER = "sandboxkit.owner"
DETACH = "sandboxkit.detach"
EXPIRES = "sandboxkit.expires"
BIRTH = "sandboxkit.birth"

_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
_MAX_VALUE = 256


def parse(tags: Tags | None) -> dict[str, str]:
    """Normalise tags: "run:42" and "run=42" give {"run": "42"}, "flag" gives {"flag": ""}.

    Raises ConfigurationError for a key or value that not every backend can store.
    """
    if tags is None:
        return {}
    if not isinstance(tags, Iterable):
        _arguments.refuse("tags", tags, "'run:42', a list of such strings or a mapping")
    if isinstance(tags, Mapping):
        pairs = list(tags.items())
    else:
        texts = [tags] if isinstance(tags, str) else list(tags)
        pairs = [_split(text) for text in texts]
    result: dict[str, str] = {}
    for key, value in pairs:
        _check(key, value)
        if result.setdefault(key, value) != value:
            raise ConfigurationError(
                f"tag {key!r} is given twice: {result[key]!r} and {value!r}; give it once"
            )
    return result


def public(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags without those reserved for sandboxkit."""
    return {key: value for key, value in tags.items() if not key.startswith(RESERVED)}


def _split(text: str) -> tuple[str, str]:
    if not isinstance(text, str):
        raise ConfigurationError(
            f"a tag is a string such as 'run:42', not {_arguments.shown(text)}"
        )
    match = re.search("[:=]", text)
    return (text[: match.start()], text[match.end() :]) if match else (text, "")


def _check(key: object, value: object) -> None:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ConfigurationError(
            f"bad tag key {_arguments.shown(key)}: use 1 to 63 letters, digits, '.', '_', '/' or '-', "
            "beginning and ending with a letter or digit"
        )
    if key.startswith(RESERVED):
        raise ConfigurationError(f"bad tag key {key!r}: {RESERVED!r} is reserved; choose another")
    if not isinstance(value, str) or len(value) > _MAX_VALUE or not value.isprintable():
        raise ConfigurationError(
            f"bad value {_arguments.shown(value)} of tag {key!r}: use a printable string of at most "
            f"{_MAX_VALUE} characters"
        )
