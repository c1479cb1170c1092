"""The module that runs in an agent's kernel: it encodes values for smolagents and defines tools.

Runs on Python 3.8 and later with the standard library alone.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import sys
import types
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

MEDIA_TYPE = "application/vnd.sandboxkit.smolagents+json"
MOST_VALUE = 1 << 20
MOST_FINAL = 16 << 20

display: Callable[[Any], None] = print
"""The kernel's `display`, kept here because the agent's code may rebind that name."""


class FinalAnswer(BaseException):
    """Raised by the tool `final_answer`, after it displayed the answer, to end the step."""


def encode(value: Any) -> Any:
    """Encode a value as JSON data in smolagents' format, with `__type__` for non-JSON types."""
    if value is None:
        return None
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, str):
        return str.__str__(value)  # the value of a StrEnum member, and not its name
    if isinstance(value, dict):
        if "__type__" not in value and all(type(key) is str for key in value):
            return {key: encode(each) for key, each in value.items()}
        pairs = [[encode(key), encode(each)] for key, each in value.items()]
        return {"__type__": "dict_with_complex_keys", "data": pairs}
    if isinstance(value, list):
        return [encode(each) for each in value]
    for many in (tuple, set, frozenset):
        if isinstance(value, many):
            return {"__type__": many.__name__, "data": [encode(each) for each in value]}
    if isinstance(value, (bytes, bytearray)):
        return {"__type__": "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, complex):
        return {"__type__": "complex", "real": value.real, "imag": value.imag}
    found = _of_a_module(value)
    if found is None:
        raise TypeError(
            f"a {type(value).__name__} cannot be sent out of the sandbox: convert it to a text, a "
            "number, or a list or dict of these"
        )
    return found


def _of_a_module(value: Any) -> Any:
    def made_of(module: str, name: str) -> bool:
        kind = getattr(sys.modules.get(module), name, None)
        return isinstance(kind, type) and isinstance(value, kind)

    for name in ("datetime", "date", "time"):
        if made_of("datetime", name):
            return {"__type__": name, "data": value.isoformat()}
    if made_of("datetime", "timedelta"):
        return {"__type__": "timedelta", "total_seconds": value.total_seconds()}
    for module, name, sent in (("decimal", "Decimal", "Decimal"), ("pathlib", "PurePath", "Path")):
        if made_of(module, name):
            return {"__type__": sent, "data": str(value)}
    if made_of("numpy", "ndarray"):
        return {"__type__": "ndarray", "data": encode(value.tolist()), "dtype": str(value.dtype)}
    if made_of("numpy", "generic"):
        return encode(value.item())
    if made_of("PIL.Image", "Image"):
        import io

        picture = io.BytesIO()
        value.save(picture, format="PNG")
        return {"__type__": "PIL.Image", "data": base64.b64encode(picture.getvalue()).decode()}
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        data = {name: encode(getattr(value, name)) for name in fields}
        kind = type(value)
        names = {"class_name": kind.__name__, "module": kind.__module__}
        return {"__type__": "dataclass", "data": data, **names}
    return None


class Encoded:
    """A value that `display` sends in smolagents' format. Raises ValueError above `most` bytes of JSON."""

    def __init__(self, value: Any, most: int) -> None:
        self.value = encode(value)
        size = len(json.dumps(self.value))
        if size > most:
            raise ValueError(f"the value has {size} bytes, more than {most}")

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        return {MEDIA_TYPE: self.value}


def show_last() -> None:
    """Display the encoded value of the last cell; do nothing if it cannot be encoded or is too large."""
    try:
        value = Encoded(vars(sys.modules["__main__"])["_"], MOST_VALUE)
    except Exception:  # noqa: BLE001 - the value's methods may raise anything; its text is used then
        return
    display(value)


def receive(decoder: str, values: str) -> None:
    """Set variables to `values`, decoded with smolagents' own source in `decoder`."""
    names: dict[str, Any] = {}
    exec(decoder, names)
    vars(sys.modules["__main__"]).update(names["_deserialize"](values))


def show_lacking(modules: list[str]) -> None:
    """Display those of `modules` that cannot be imported here."""
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    display(Encoded(lacking, MOST_VALUE))


def finish_with_answer() -> None:
    """Make the tool `final_answer` end the run; call this after the tools are defined."""
    names = vars(sys.modules["__main__"])
    tool = names.get("final_answer")
    if tool is None or isinstance(tool, types.FunctionType):
        return

    def final_answer(*args: Any, **kwargs: Any) -> None:
        display(Encoded(tool(*args, **kwargs), MOST_FINAL))
        raise FinalAnswer

    names["final_answer"] = final_answer
