"""Expansion of the options, which are declared once, into signatures and `help()`."""

import ast
import inspect
import itertools
import linecache
import re
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar, get_type_hints

from sandboxkit import _spec
from sandboxkit.types import SandboxSpec

# Any: a decorator's argument is a class or a function of any signature, and is returned as it is.
ThingT = TypeVar("ThingT", bound=Callable[..., Any])


class _OfTheSession:
    """The default shown for an option whose value comes from the session."""

    def __repr__(self) -> str:
        return "<the session's>"


_WRAPPED = textwrap.TextWrapper(
    width=88, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False
)
OF_THE_SESSION = _OfTheSession()
MEANINGS: dict[str, str] = {}
"""The meaning of each option; empty if the source of this package is not available."""
_TYPES = get_type_hints(_spec.SpecOptions)


def _default(field: "Field[Any]") -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()


DEFAULTS = {field.name: _default(field) for field in fields(SandboxSpec)}


def _read_meanings() -> None:
    module = ast.parse("".join(linecache.getlines(_spec.__file__))).body
    classes = {node.name: node.body for node in module if isinstance(node, ast.ClassDef)}
    options = classes.get(_spec.SpecOptions.__name__, [])
    for declared, said in itertools.pairwise(options):
        if isinstance(declared, ast.AnnAssign) and isinstance(said, ast.Expr):
            MEANINGS[ast.unparse(declared.target)] = " ".join(ast.literal_eval(said.value).split())


def kind(name: str) -> str:
    """Return the type of an option in readable form, without module names."""
    return re.sub(r"\b[a-z][\w.]*\.(?=[A-Z])", "", inspect.formatannotation(_TYPES[name]))


def section() -> str:
    """Return the docstring section that lists all options."""
    lines = ["Options:"]
    for name, meaning in MEANINGS.items():
        lines += [f"    {name}: {kind(name)}", *_WRAPPED.wrap(meaning)]
    return "\n".join(lines)


def spelled_out(call: ThingT) -> ThingT:
    """Give a function whose last keywords are options a signature that names each of them."""
    signature = inspect.signature(call)
    known = list(signature.parameters.values())[:-1]  # all but **options
    own = call.__name__ == "__init__"
    options = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=DEFAULTS[name] if own else OF_THE_SESSION,
            annotation=annotation,
        )
        for name, annotation in _TYPES.items()
    ]
    # Any: type checkers know no __signature__ attribute of functions.
    changed: Any = call
    changed.__signature__ = signature.replace(parameters=[*known, *options])
    return call


def with_options(thing: ThingT) -> ThingT:
    """Add the options and their meanings to a docstring; without docstrings (-OO) do nothing."""
    if thing.__doc__ and MEANINGS:
        thing.__doc__ = f"{inspect.cleandoc(thing.__doc__)}\n\n{section()}\n"
    return thing


_read_meanings()
with_options(SandboxSpec)
