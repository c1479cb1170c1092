"""Writes the sandbox options, which are declared in one table, into signatures and `help()`."""

import inspect
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from sandboxkit.options import ALL_OPTIONS
from sandboxkit.types import SandboxSpec

# Any: a decorator's argument is a class or a function of any signature, and is returned as it is.
ThingT = TypeVar("ThingT", bound=Callable[..., Any])


class _SessionDefault:
    """The default shown for an option whose value comes from the session."""

    def __repr__(self) -> str:
        return "<the session's>"


_WRAPPED = textwrap.TextWrapper(
    width=88, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
)
OF_THE_SESSION = _SessionDefault()


def section() -> str:
    """Return the docstring section that lists all options."""
    lines = ["Options:"]
    for option in ALL_OPTIONS:
        lines += [f"    {option.name}: {option.kind}", *_WRAPPED.wrap(option.meaning)]
    return "\n".join(lines)


def spelled_out(call: ThingT) -> ThingT:
    """Replace `**options` in a function's signature by one keyword for each option; return the function."""
    signature = inspect.signature(call)
    known = list(signature.parameters.values())[:-1]  # all but **options
    own = call.__name__ in ("__init__", "create")
    options = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default if own else OF_THE_SESSION,
            annotation=option.type,
        )
        for option in ALL_OPTIONS
    ]
    # Any: type checkers know no __signature__ attribute of functions.
    changed: Any = call
    changed.__signature__ = signature.replace(parameters=[*known, *options])
    return call


def with_options(thing: ThingT) -> ThingT:
    """Add the options and their meanings to the docstring of `thing`, if it has one; return `thing`."""
    if thing.__doc__ and ALL_OPTIONS[0].meaning:
        thing.__doc__ = f"{inspect.cleandoc(thing.__doc__)}\n\n{section()}\n"
    return thing


with_options(SandboxSpec)
