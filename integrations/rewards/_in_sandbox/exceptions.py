"""Make proxy classes for the submission's exception classes. Runs in the judge's sandbox.

Each proxy is a new class, even if the submission's class is an alias of a builtin. An `except` clause
with it therefore catches exceptions of the submission and none of the tests.
"""

from __future__ import annotations

import builtins
import sys
import types
from typing import Any, Callable  # noqa: UP035 - runs on whatever Python a sandbox has

from sandboxkit.integrations.rewards._in_sandbox.decode import Malformed

_MOST_CLASSES = 1000
_MOST_ANCESTORS = 50

# Any: values of tests and submissions.
Read = Callable[[Any], Any]


class Exceptions:
    """The proxy classes of one job. Classes with the same name and ancestors share one proxy class."""

    def __init__(self) -> None:
        self._classes: dict[Any, type[BaseException]] = {}
        self._numbers: dict[type[BaseException], int] = {}

    def number(self, kind: type) -> int | None:
        """Return the number of the submission's class for a proxy class; None for any other class."""
        return self._numbers.get(kind)

    def is_of_submission(self, error: BaseException) -> bool:
        """Return whether an exception's class is a proxy, that is, whether the submission raised it."""
        return type(error) in self._classes.values()

    def kind(
        self, names: list[str], bases: list[list[int]], number: int | None = None
    ) -> type[BaseException]:
        """Return the proxy class for an exception class of the submission.

        `names` are the names of the class and its ancestors, and `bases` lists for each of them the
        indices of its bases in `names`. `number` identifies the class in the submission's process.
        Raises Malformed for too many ancestors or classes.
        """
        if not 0 < len(names) <= _MOST_ANCESTORS or len(self._classes) > _MOST_CLASSES:
            raise Malformed("too many classes of exceptions")
        found: dict[int, tuple[Any, type[BaseException]]] = {}
        for place in reversed(range(len(names))):  # ancestors first
            name, above = str(names[place]), [found[each] for each in bases[place] if each > place]
            key = (name, *(each for each, _ in above))
            if key not in self._classes:
                self._classes[key] = _proxy_class(name, [kind for _, kind in above])
            found[place] = key, self._classes[key]
        kind = found[0][1]
        if number is not None:
            self._numbers[kind] = number
        return kind

    def error(self, described: Any, read: Read) -> BaseException:
        """Return an instance of a proxy class for an exception that `claims.raised` describes."""
        names, text, wires, state, cause, bases = described
        kind = self.kind(names, bases)
        args = [read(each) for each in wires]
        try:
            error = kind(*args)
        except (TypeError, ValueError):  # its __init__ takes other arguments than `args` holds
            error = kind.__new__(kind)
            error.args = tuple(args)
        error.__dict__["_text"] = str(text)
        error.__dict__.update({str(name): read(each) for name, each in state.items()})
        if cause is not None:
            error.__cause__ = self.error(cause, read)
        return error


def _proxy_class(name: str, bases: list[Any]) -> type[BaseException]:
    module, _, own = name.rpartition(".")
    # Only standard library modules that the tests have imported are used: an import can do anything.
    library = module.partition(".")[0] in getattr(sys, "stdlib_module_names", ())
    builtin: Any = getattr(sys.modules.get(module) if library else builtins, own, None)
    known = module in ("", "builtins") or library
    known = known and isinstance(builtin, type) and issubclass(builtin, BaseException)
    if known and not any(issubclass(each, builtin) for each in bases):
        bases = [*bases, builtin]

    def text(self: Any) -> str:
        return str(self.__dict__.get("_text", BaseException.__str__(self)))

    def fill(own: dict[str, Any]) -> None:
        own.update(__str__=text, __module__="submission")

    own = own or "Exception"
    try:
        return types.new_class(own, tuple(bases) or (Exception,), exec_body=fill)
    except TypeError:  # the bases have incompatible layouts
        return types.new_class(own, (bases[0],), exec_body=fill)
