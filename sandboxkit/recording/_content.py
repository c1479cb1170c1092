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
"""The longest content (bytes) that the recording holds itself; a longer one gets a file of its own."""
_NOT_RECORDED = frozenset({"files", "egress", "secrets", "tags"})
_DEFAULTS = SandboxSpec()


class Secrets:
    """A set of secret values; its methods replace each occurrence by asterisks of the same length."""

    def __init__(self) -> None:
        self._values: set[bytes] = set()

    def add(self, values: Iterable[str]) -> None:
        """Add secret values."""
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
        """Mask secrets in the pieces of one stream, including secrets that span several pieces."""
        return cut(self.mask(b"".join(pieces)), pieces)

    def mask_text(self, text: str) -> str:
        """Return the text without secrets."""
        data = text.encode("utf-8", "surrogateescape")
        masked = self.mask(data)
        return text if masked == data else masked.decode("utf-8", "surrogateescape")


def cut(data: bytes, pieces: list[bytes]) -> list[bytes]:
    """Split `data` into pieces with the lengths of `pieces`."""
    result, at = [], 0
    for piece in pieces:
        result.append(data[at : at + len(piece)])
        at += len(piece)
    return result


class Encoder:
    """Encodes values as JSON, without secrets. `keep(sha256, data)` stores contents over 64 KiB."""

    def __init__(self, secrets: Secrets, keep: Callable[[str, bytes], None] | None = None) -> None:
        self.secrets, self._keep = secrets, keep

    def content(self, masked: bytes) -> Json:
        """Encode masked bytes: as text if they are UTF-8, else as base64; over 64 KiB as a digest."""
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
        """Encode an argument or a result. Raises TypeError for a type that has no encoding."""
        if isinstance(value, SandboxSpec):
            return self.spec(value)
        if isinstance(value, bytes):
            return self.content(self.secrets.mask(value))
        if isinstance(value, enum.Enum):
            return value.value
        if isinstance(value, str):
            # JSON has no bytes: bytes that are not UTF-8 become backslash escapes.
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
        raise TypeError(f"a recording cannot store a {type(value).__name__}")

    def spec(self, spec: SandboxSpec) -> Json:
        """Encode the options that differ from the defaults; of secrets, only the names."""
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
        """Encode an error as its nearest public class, its message and its plain attributes."""
        public = [
            kind.__name__ for kind in type(error).__mro__ if kind.__module__ == errors.__name__
        ]
        kind = public[0] if public else type(error).__name__
        known = {name: each for name, each in vars(error).items() if _plain(each)}
        return {"class": kind, "message": self.value(str(error)), **self.value(known)}


def _plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def data_of(content: Json, load: Callable[[str], bytes]) -> bytes:
    """Decode bytes that `Encoder.content` encoded; `load(sha256)` returns a content that was stored."""
    if isinstance(content, str):
        return content.encode()
    if "base64" in content:
        return base64.b64decode(content["base64"])
    return load(content["sha256"])


def error_of(value: Json) -> Exception:
    """Decode an error that `Encoder.error` encoded, as a class of `sandboxkit.errors`."""
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
    """Decode a value of the type `kind` that `Encoder.value` encoded; see `data_of` for `load`."""
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
