"""One option of a sandbox, and a parser of the options' declarations."""

import ast
import inspect
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_type_hints

from sandboxkit.types import SandboxSpec


class Option(NamedTuple):
    """An option of a sandbox. Its entry in the table sets the first three fields; `read` adds the others
    from the annotation, the name and the docstring of that entry."""

    # Any, here and below: options have many types.
    check: Callable[[str, Any], Any]
    """Takes the option's name and a caller's value; returns a private copy of the value, as
    SandboxSpec holds it, or raises ConfigurationError."""
    flag: str = ""
    """The spelling on the command line, such as "-e, --env K=V"; "" if there is no flag."""
    examples: tuple[Any, ...] = ()
    """Valid values. docs/options.md shows for each value which providers honour it."""
    name: str = ""
    type: Any = None
    """The type of a caller's value; SandboxSpec has the type of a checked value."""
    default: Any = None
    meaning: str = ""
    """The explanation of the option; "" if the source of its declaration is not available."""

    @property
    def kind(self) -> str:
        """The type in readable form, without module names."""
        return re.sub(r"\b[a-z][\w.]*\.(?=[A-Z])", "", inspect.formatannotation(self.type))


def read(declared: type) -> tuple[Option, ...]:
    """Return the options that the TypedDict `declared` declares, with the defaults of SandboxSpec.

    Raises AttributeError for a name that is no field of SandboxSpec, or whose annotation has no Option.
    """
    defaults = SandboxSpec()
    meanings = dict(_meanings(str(sys.modules[declared.__module__].__file__)))
    return tuple(
        hint.__metadata__[0]._replace(
            name=name,
            type=hint.__origin__,
            default=getattr(defaults, name),
            meaning=meanings.get(name, ""),
        )
        for name, hint in get_type_hints(declared, include_extras=True).items()
    )


def _meanings(file: str) -> Iterator[tuple[str, str]]:
    """Yield each attribute of the classes in a source file, with its docstring on one line."""
    for node in ast.parse("".join(linecache.getlines(file))).body:
        for attribute, text in itertools.pairwise(
            node.body if isinstance(node, ast.ClassDef) else ()
        ):
            if isinstance(attribute, ast.AnnAssign) and isinstance(text, ast.Expr):
                yield ast.unparse(attribute.target), " ".join(ast.literal_eval(text.value).split())
