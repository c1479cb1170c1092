"""Error messages for attribute names of subprocess or other SDKs: they name our replacement."""

from collections.abc import Callable
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type[Any])  # Any: classes with any constructor


def foreign_names(**ours: str) -> Callable[[ClassT], ClassT]:
    """Return a class decorator. `ours` maps a missing attribute to its replacement, which the
    AttributeError then names."""

    def decorated(cls: ClassT) -> ClassT:
        def missing(self: object, name: str) -> object:
            text = f"{cls.__name__!r} object has no attribute {name!r}"
            if name in ours:
                text += f"; use {ours[name]}"
            raise AttributeError(text, name=name, obj=self)

        setattr(cls, "__getattr__", missing)  # noqa: B010 - type checkers must not see it
        return cls

    return decorated
