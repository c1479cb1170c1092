"""Error messages for names of subprocess, Docker and other SDKs: they name our replacement.

`foreign_names.json` has the names by the class where they are missing, each after our replacement.
"""

import functools
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

ClassT = TypeVar("ClassT", bound=type[Any])  # Any: classes with any constructor
_MISSING = "__getattr__"
_LOOKED_AT = 40
"""How many characters of a wrong name are compared with the right ones."""


@functools.cache
def _replacements() -> dict[tuple[str, str], str]:
    import json  # imported only when there is a mistake to report

    table = json.loads(Path(__file__).with_name("foreign_names.json").read_text())
    return {
        (owner, name): ours
        for owner, rows in table.items()
        for ours, names in rows.items()
        for name in names.split()
    }


def replacement(owner: str, name: str) -> str:
    """Return what to use for a missing name of `owner`, a class or a group of the table; "" if unknown."""
    return _replacements().get((owner, name), "")


def argument(call: str, name: str, known: Collection[str]) -> str:
    """Return what to use for an argument that is none of the `known` ones; "" if that is unknown."""
    given = replacement(f"{call}()", name) or replacement("arguments", name)
    for ours in given.split("|"):
        if ours in known or " " in ours:
            return used(ours)
    return ""


def used(ours: str) -> str:
    """Return a replacement as an instruction."""
    return ours if ours.startswith("leave it out") else f"use {ours}"


def nearest(given: object, names: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the most similar name, or "" when no name is similar."""
    from difflib import get_close_matches  # imported only when there is a mistake to report

    found = (
        get_close_matches(given[:_LOOKED_AT].lower(), names, 1) if isinstance(given, str) else []
    )
    return f" (did you mean {found[0]!r}?)" if found else ""


class ForeignNames(type):
    """A metaclass: a missing attribute of the class itself names our replacement, as `Image.debian_slim` does."""

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> NoReturn:
            ours = "" if name.startswith("_") else replacement(cls.__name__, name)
            remedy = f"; {used(ours)}" if ours else ""
            text = f"type object {cls.__name__!r} has no attribute {name!r}{remedy}"
            raise AttributeError(text, name=name)


def foreign_names(cls: ClassT) -> ClassT:
    """Make the AttributeError for a missing attribute of a class name its replacement, or the most similar name."""
    inherited = next((vars(each)[_MISSING] for each in cls.__mro__ if _MISSING in vars(each)), None)

    def missing(self: object, name: str) -> object:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        if ours := "" if name.startswith("_") else replacement(cls.__name__, name):
            text += f"; {used(ours)}"
        elif inherited is not None:
            return inherited(self, name)
        elif not name.startswith("_"):
            text += nearest(name, [each for each in dir(self) if not each.startswith("_")])
        # Without obj=, for which Python would add a similar name, private ones included.
        raise AttributeError(text, name=name)

    setattr(cls, _MISSING, missing)  # type checkers must not see it
    return cls
