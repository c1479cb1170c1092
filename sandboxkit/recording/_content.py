"""Values of a recording as JSON: bytes, dataclasses and errors, without secrets."""

import base64
import dataclasses
import datetime
import enum
import hashlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sandboxkit import _tags, errors
from sandboxkit.types import SandboxSpec

# Any in this module: the values of a JSON document.
Json = Any

INLINE = 64 << 10
"""Bytes of one content that stand in the file itself; a longer one is a file beside it."""
_NOT_RECORDED = frozenset({"files", "egress", "secrets", "tags"})
_DEFAULTS = SandboxSpec()


class Secrets:
    """The values of secrets, which are replaced by as many asterisks wherever they occur."""

    def __init__(self) -> None:
        self._values: set[bytes] = set()

    def add(self, values: Iterable[str]) -> None:
        """Learn more secrets."""
        self._values.update(value.encode("utf-8", "surrogateescape") for value in values if value)

    def mask(self, data: bytes) -> bytes:
        """Return the data without secrets; the length stays the same."""
        masked: bytearray | None = None
        for value in self._values:
            at = data.find(value)
            while at >= 0:
                masked = bytearray(data) if masked is None else masked
                masked[at : at + len(value)] = b"*" * len(value)
                at = data.find(value, at + 1)
        return data if masked is None else bytes(masked)

    def mask_pieces(self, pieces: list[bytes]) -> list[bytes]:
        """Mask pieces of one stream, also where a secret lies in several of them."""
        return cut(self.mask(b"".join(pieces)), pieces)

    def mask_text(self, text: str) -> str:
        """Return the text without secrets."""
        data = text.encode("utf-8", "surrogateescape")
        masked = self.mask(data)
        return text if masked == data else masked.decode("utf-8", "surrogateescape")


def cut(data: bytes, pieces: list[bytes]) -> list[bytes]:
    """Cut data into pieces that are as long as these."""
    result, at = [], 0
    for piece in pieces:
        result.append(data[at : at + len(piece)])
        at += len(piece)
    return result


class Encoder:
    """Makes JSON of values. `keep` stores a content that is too long for the file, by its digest."""

    def __init__(self, secrets: Secrets, keep: Callable[[str, bytes], None] | None = None) -> None:
        self.secrets, self._keep = secrets, keep

    def content(self, masked: bytes) -> Json:
        """Encode bytes that are masked already: as text, as base64, or as a digest if they are long."""
        if len(masked) > INLINE:
            digest = hashlib.sha256(masked).hexdigest()
            if self._keep is not None:
                self._keep(digest, masked)
            return {"sha256": digest, "bytes": len(masked)}
        try:
            return masked.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(masked).decode()}

    def value(self, value: object) -> Json:
        """Encode an argument or a result."""
        if isinstance(value, SandboxSpec):
            return self.spec(value)
        if isinstance(value, bytes):
            return self.content(self.secrets.mask(value))
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, str):
            # JSON has no bytes: what is no text in a name is written as a backslash and its number.
            return self.secrets.mask_text(value).encode(errors="backslashreplace").decode()
        if isinstance(value, datetime.datetime):
            return value.isoformat()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return {name: self.value(getattr(value, name)) for name in names}
        if isinstance(value, Mapping):
            return {self.value(key): self.value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        raise TypeError(f"a {type(value).__name__} has no form in a recording")

    def spec(self, spec: SandboxSpec) -> Json:
        """Encode the options that differ from the defaults; secrets by their names only."""
        names = [field.name for field in dataclasses.fields(spec)]
        given = {
            name: self.value(getattr(spec, name))
            for name in names
            if name not in _NOT_RECORDED and getattr(spec, name) != getattr(_DEFAULTS, name)
        }
        if spec.secrets:
            given["secrets"] = sorted(spec.secrets)
        if tags := _tags.public(spec.tags):
            given["tags"] = self.value(tags)
        return given

    def error(self, error: Exception) -> Json:
        """Encode an error by the nearest public class, its message and its attributes."""
        public = [
            kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__
        ]
        kind = public[0] if public else type(error).__name__
        known = {name: each for name, each in vars(error).items() if _plain(each)}
        return {"class": kind, "message": self.value(str(error)), **self.value(known)}


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def data_of(content: Json, load: Callable[[str], bytes]) -> bytes:
    """Return the bytes that `Encoder.content` encoded; `load` returns those of a digest."""
    if isinstance(content, str):
        return content.encode()
    if "base64" in content:
        return base64.b64decode(content["base64"])
    return load(content["sha256"])


def error_of(value: Json) -> Exception:
    """Return the error that `Encoder.error` encoded, as one of `sandboxkit.errors`."""
    known = dict(value)
    name, message = known.pop("class"), known.pop("message")
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    if kind is None:
        return errors.SandboxError(f"{name}: {message}")
    error: Exception = kind.__new__(kind, message)
    error.args = (message,)
    error.__dict__.update({"provider": None, "sandbox_id": None, **known})
    return error


def value_of(kind: Any, value: Json, load: Callable[[str], bytes]) -> Any:
    """Return the value of a type that `Encoder.value` encoded."""
    if value is None:
        return None
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        kind = next(each for each in arguments if each is not type(None))
        return value_of(kind, value, load)
    if origin in (list, tuple):
        return origin(value_of(arguments[0], each, load) for each in value)
    if kind is bytes:
        return data_of(value, load)
    if kind is datetime.datetime:
        return datetime.datetime.fromisoformat(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{name: value_of(hints[name], each, load) for name, each in value.items()})
    return value
