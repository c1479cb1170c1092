"""Attributes that callers know from subprocess or another SDK: the error names ours."""

from collections.abc import Callable
from typing import Any, TypeVar

ClassT = TypeVar("ClassT", bound=type[Any])  # Any: classes with any constructor


def foreign_names(**ours: str) -> Callable[[ClassT], ClassT]:
    """Return a decorator: for a missing attribute of the class, AttributeError says what to use instead."""

    def decorated(cls: ClassT) -> ClassT:
        def missing(self: object, name: str) -> object:
            text = f"{cls.__name__!r} object has no attribute {name!r}"
            if name in ours:
                text += f"; use {ours[name]}"
            raise AttributeError(text, name=name, obj=self)

        setattr(cls, "__getattr__", missing)  # noqa: B010 - type checkers must not see it
        return cls

    return decorated
