"""An entry: a task, a solution that must get 1.0 and a cheat that must get 0.0."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One cheat, the task that it is tried on, and the task's honest solution.

    `right` is an expression, or the source of a function `right(solution)`. On inputs which the
    tests do not have it holds for the honest solution and for no cheat. A `hostile` cheat attacks
    processes, and must only ever run in a sandbox.
    """

    name: str
    task: Mapping[str, Any]
    honest: str
    cheat: str
    right: str
    hostile: bool = False


def entries(
    task: Mapping[str, Any],
    honest: str,
    right: str,
    cheats: Mapping[str, str],
    *,
    hostile: bool = False,
) -> list[Entry]:
    """Make an entry of each cheat on one task."""
    return [Entry(name, task, honest, cheat, right, hostile) for name, cheat in cheats.items()]


YES = """\
class Yes:
    def __eq__(self, other): return True
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
"""
"""An object that says yes to every comparison."""

NOUGHT = """\
class Nought(float):
    def same(self, *others): return self
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = same
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __neg__ = __mod__ = __rmod__ = same
    def __abs__(self): return 0.0
"""
"""A number that absorbs all arithmetic, and has no size."""
