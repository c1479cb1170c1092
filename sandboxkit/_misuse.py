"""Help for callers' mistakes: errors that name the wrong argument, and the caller's source line."""

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from sandboxkit import _arguments
from sandboxkit.errors import ConfigurationError

# Any, here and below: methods with any signature, called with any arguments.
ClassT = TypeVar("ClassT", bound=type[Any])


def explained(cls: ClassT) -> ClassT:
    """Make a class's public methods raise ConfigurationError instead of TypeError for arguments that
    do not match the signature. The error names the wrong argument and the most similar known one."""
    for name, value in tuple(vars(cls).items()):
        if isinstance(value, FunctionType) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _explained(value, cls.__name__))
    return cls


def _explained(method: Callable[..., Any], owner: str) -> Callable[..., Any]:
    title = owner if method.__name__ == "__init__" else method.__name__
    parameters = list(inspect.signature(method).parameters.values())[1:]
    names = [each.name for each in parameters]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = frozenset(names)

    @functools.wraps(method)
    def call(self: object, *args: Any, **options: Any) -> Any:
        if not takes_any and not known.issuperset(options):
            raise ConfigurationError(_unknown(title, names, options))
        try:
            return method(self, *args, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # the TypeError comes from inside the method
            message = _remedy(title, parameters, args, str(error))
        raise ConfigurationError(message)

    return call


def _unknown(title: str, names: list[str], options: Mapping[str, object]) -> str:
    name = next(each for each in options if each not in names)
    return (
        f"{title}() has no argument {name!r}{_arguments.nearest(name, names)}; "
        f"the arguments are {', '.join(names)}"
    )


def _remedy(
    title: str, parameters: list[inspect.Parameter], args: tuple[Any, ...], message: str
) -> str:
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) <= len(by_place):
        return message
    if by_place[:1] == ["argv"] and all(isinstance(each, str) for each in args):
        return f"{title}() takes a command as one list: {title}({_arguments.shown(list(args))})"
    first = args[len(by_place)]
    return (
        f"{title}() takes {', '.join(by_place) or 'nothing'} by position: pass "
        f"{_arguments.shown(first)} and what follows by name, such as {parameters[-1].name}="
    )


def call_site() -> str:
    """Return the file and line of the innermost caller outside the core, such as "train.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package, _, rest = str(frame.f_globals.get("__name__")).partition(".")
        if package != "sandboxkit" or rest.startswith("integrations"):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
