"""Validators for callers' arguments, which run before any I/O and return a private copy, and help for wrong names."""

import functools
import inspect
import logging
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, Literal, NoReturn, TypeGuard, TypeVar, get_args

from sandboxkit._calls import _arguments
from sandboxkit._calls._foreign_names import argument, nearest, replacement, used
from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.types import (
    CommandFile,
    CommandInput,
    CommandSeries,
    CommandSetup,
    PtySize,
    ResourceName,
    Reuse,
)

# Any, here and below: methods with any signature, called with any arguments.
ClassT = TypeVar("ClassT", bound=type[Any])
CallT = TypeVar("CallT", bound=Callable[..., Any])
_log = logging.getLogger("sandboxkit")


class NoValueYet:
    """Base class of handles that are easily taken for the value that they will have: using one as that value
    raises ConfigurationError."""

    _name = ""
    """The call that made the handle, in messages."""

    def _no_value(self) -> str:
        """Return what the handle is, and what to write instead."""
        raise NotImplementedError

    def _refuse_use(self, *_: object) -> NoReturn:
        raise ConfigurationError(self._no_value())

    __bool__ = __getitem__ = __contains__ = __add__ = __radd__ = _refuse_use

    def __eq__(self, other: object) -> bool:
        """Compare identity; raise ConfigurationError for what can only be a value."""
        if isinstance(other, str | bytes | int | list):
            self._refuse_use()
        return self is other

    __hash__ = object.__hash__


def brief(error: BaseException) -> BaseException:
    """Strip the traceback and causes from a SandboxError, whose message suffices; return the error.

    They are logged at level DEBUG. Any other error is a defect and keeps its traceback.
    """
    if isinstance(error, SandboxError) and error.__traceback__ is not None:
        _log.debug("%s", type(error).__name__, exc_info=error)
        error.__cause__ = error.__context__ = error.__traceback__ = None
    return error


def explained(cls: ClassT) -> ClassT:
    """Make a class's public methods raise ConfigurationError instead of TypeError for arguments that
    do not match the signature. The error names the wrong argument and what to use instead."""
    for name, value in tuple(vars(cls).items()):
        if name != "__init__" and name.startswith("_"):
            continue
        if isinstance(value, FunctionType):
            setattr(cls, name, _explained(value, cls))
        elif isinstance(value, staticmethod):
            setattr(cls, name, staticmethod(explained_call(value.__func__)))
    return cls


def explained_call(function: CallT) -> CallT:
    """Make a function raise ConfigurationError as the methods of an `explained` class do."""
    # Any: type checkers know the result as the function.
    wrapped: Any = _explained(function, None)
    return wrapped  # type: ignore[no-any-return]  # see above


def _explained(function: Callable[..., Any], owner: type | None) -> Callable[..., Any]:
    """Wrap a method of `owner`, or with None a function without a self."""
    title = owner.__name__ if owner and function.__name__ == "__init__" else function.__name__
    own = 0 if owner is None else 1
    parameters = list(inspect.signature(function).parameters.values())[own:]
    names = [each.name for each in parameters]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = frozenset(names)

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        if owner is not None and not (given and isinstance(given[0], owner)):
            raise ConfigurationError(_without_object(owner.__name__, title))
        if not takes_any and not known.issuperset(options):
            raise ConfigurationError(_unknown(title, names, options))
        try:
            made = function(*given, **options)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # the TypeError comes from inside the function
            message = _remedy(title, parameters, given[own:], str(error))
        except ConfigurationError as error:
            raise brief(error) from None
        else:
            if isinstance(made, NoValueYet):
                made._name = made._name or f"{title}()"
            return made
        raise ConfigurationError(message)

    return call


def _without_object(owner: str, title: str) -> str:
    ours = replacement(f"class {owner}", title)
    remedy = used(ours) if ours else f"call {owner.lower()}.{title}(...)"
    return f"{owner}.{title}() is called on the class, not on an object of it: {remedy}"


def _unknown(title: str, names: list[str], options: Mapping[str, object]) -> str:
    name = next(each for each in options if each not in names)
    ours = argument(title, name, names)
    remedy = f" ({ours})" if ours else nearest(name, names)
    return f"{title}() has no argument {name!r}{remedy}; the arguments are {', '.join(names) or 'none'}"


def _remedy(
    title: str, parameters: list[inspect.Parameter], args: tuple[Any, ...], message: str
) -> str:
    by_place = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    if len(args) <= len(by_place):
        return message
    if by_place[:1] == ["argv"] and all(isinstance(each, str) for each in args):
        return f"{title}() takes a command as one list: {title}({_arguments.shown(list(args))})"
    if by_place[:1] == ["operations"]:
        return f"{title}() takes the operations as one list: {title}([first, second])"
    taken = f"{title}() takes {', '.join(by_place) or 'nothing'} by position"
    first = _arguments.shown(args[len(by_place)])
    if not by_name:
        return f"{taken}: leave out {first}"
    example = "image" if "image" in by_name and by_place in ([], ["provider"]) else by_name[0]
    return f"{taken}: pass {first} and what follows by name, such as {example}="


def call_site() -> str:
    """Return the file and line of the innermost caller outside the core, such as "train.py:12"."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        package, _, rest = str(frame.f_globals.get("__name__")).partition(".")
        if package != "sandboxkit" or rest.startswith("integrations"):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


MAX_ARGUMENT = 131_071  # Linux MAX_ARG_STRLEN, less its NUL
MAX_ARGV = 1_048_576
_MOST = 10**9
"""Upper bound of counts and durations: 31 years in seconds, small enough for every backend's integers."""
_BYTES = 2**63 - 1
_SIZES = range(1, 1 << 16)  # a terminal keeps its rows and columns in 16 bits each
_SHOWN = 40

Content = bytes | bytearray | memoryview | str
"""What a caller may give as the content of a file or an input."""
# Any, here and below: the value to check may have any type.
Check = Callable[[str, Any], Any]


def argv(value: Sequence[str], name: str = "argv") -> tuple[str, ...]:
    """Return a command's argv as a tuple of strings that execve(2) accepts."""
    if isinstance(value, str | bytes):
        raise ConfigurationError(
            f"{name} is a list of strings, not the string {shown(value)}; "
            f"for a shell line use ['sh', '-c', {shown(value)}]"
        )
    if not isinstance(value, Sequence):
        refuse(name, value, "a list of strings such as ['ls', '-l']")
    result = tuple(value)
    if not result or result[0] == "":
        raise ConfigurationError(f"{name} is empty: {shown(result)}; give at least a program")
    return arguments(name, result)


def arguments(name: str, value: Sequence[str]) -> tuple[str, ...]:
    """Return a program's arguments as a tuple; it may be empty."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        example = f", such as [{shown(value)}]" if isinstance(value, str) else ""
        refuse(name, value, f"a list of strings{example}")
    result = tuple(value)
    total = 0
    for item in result:
        if not isinstance(item, str):
            raise ConfigurationError(
                f"{name} holds {shown(item)}; every argument must be a str, such as str(value)"
            )
        if "\0" in item:
            raise ConfigurationError(f"argument {shown(item)} contains a NUL character; remove it")
        size = len(_encode("argument", item))
        total += size + 1
        if size > MAX_ARGUMENT or total > MAX_ARGV:
            raise ConfigurationError(
                f"argument {shown(item)} of {size} bytes is over the limit of {MAX_ARGUMENT} "
                f"({MAX_ARGV} in all); pass it through stdin or a file"
            )
    return result


def timeout(value: float | None) -> float | None:
    """Check a time limit in seconds: positive and finite, or None for no limit."""
    return None if value is None else positive("timeout", value, unit="seconds")


def patience(value: float | None) -> float | None:
    """Check how long (s) a caller waits for a result: at least 0, or None for no limit."""
    if value is None or (_is_number(value) and 0 <= value <= _MOST):
        return value
    refuse("timeout", value, "seconds from 0 on, such as max(0, left), or None for no limit")


def positive(name: str, value: float, *, unit: str = "") -> float:
    """Check for a finite number above 0."""
    if not _is_number(value) or not 0 < value <= _MOST:
        of = f" of {unit}" if unit else ""
        refuse(name, value, f"a positive number{of} (at most {_MOST})")
    return value


def integer(name: str, value: int, *, most: int = _MOST, unit: str = "") -> int:
    """Check for an integer from 1 to `most`."""
    if not _is_whole(value) or not 1 <= value <= most:
        of = f" of {unit}" if unit else ""
        refuse(name, value, f"a whole number{of} from 1 to {most}")
    return value


def port(name: str, value: int, *, least: int = 1) -> int:
    """Check the number of a TCP port; `least` is 0 where 0 stands for a free one."""
    return value if least == 0 and value == 0 else integer(name, value, most=65535)


def size(name: str, value: int) -> int:
    """Check a size in bytes."""
    return integer(name, value, most=_BYTES)


def flag(name: str, value: bool) -> bool:
    """Check for a bool; other truthy and falsy values are refused."""
    if not isinstance(value, bool):
        refuse(name, value, "True or False")
    return value


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Check that a string is one of the `allowed` ones."""
    if not isinstance(value, str) or value not in allowed:
        refuse(
            name,
            value,
            f"one of {', '.join(repr(str(each)) for each in allowed)}{nearest(value, allowed)}",
        )
    return value


def text(name: str, value: object) -> str:
    """Check a string for the backend, such as an image or an id: not empty, valid UTF-8, no NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        remedy = "a non-empty string" + (
            f", such as {str(value)!r}" if _is_whole(value) and 0 <= value <= _MOST else ""
        )
        refuse(
            name,
            value,
            "a string without NUL characters" if isinstance(value, str) and value else remedy,
        )
    _encode(name, value, "strict")
    return value


def code(name: str, value: str) -> str:
    """Check the source text of a program: any text that UTF-8 can encode."""
    if not isinstance(value, str):
        refuse(name, value, "the text of a program")
    _encode(name, value, "strict")
    return value


def mode(value: int | None) -> int | None:
    """Check permission bits (0 to 0o7777), or None."""
    if value is None or (_is_whole(value) and 0 <= value <= 0o7777):
        return value
    refuse("mode", value, "permission bits from 0 to 0o7777 such as 0o755, or None")


def pty(value: PtySize | bool | None) -> PtySize | None:
    """Return the terminal size for a `pty` argument, or None for no terminal."""
    if value is None or value is False:
        return None
    return PtySize() if value is True else pty_size("pty", value)


def pty_size(name: str, value: PtySize) -> PtySize:
    """Check a terminal size: rows and columns from 1 to 65535."""
    if not isinstance(value, PtySize) or not all(
        _is_whole(each) and each in _SIZES for each in (value.rows, value.cols)
    ):
        refuse(name, value, "PtySize(rows, cols), each a whole number from 1 to 65535")
    return value


def stdin(value: Content | bool | None) -> bytes | Literal[True] | None:
    """Return the whole input as bytes, True for an input that is written later, or None for no input."""
    if value is None or value is False:
        return None
    if value is True:
        return True
    if not isinstance(value, str | bytes | bytearray | memoryview):
        refuse("stdin", value, "a str or bytes, or True for an input that is written later")
    return content("stdin", value)


def content(name: str, value: Content) -> bytes:
    """Return content as bytes; text is encoded in UTF-8."""
    if isinstance(value, str):
        return _encode(name, value, "strict")
    if not isinstance(value, bytes | bytearray | memoryview):
        refuse(name, value, "bytes, a bytearray, a memoryview or a str")
    try:
        return bytes(value)
    except ValueError as error:
        raise ConfigurationError(f"{name} cannot be read: {error}") from None


def path(value: str, name: str = "path", *, relative: bool = False) -> str:
    """Check for a sandbox path without '..', absolute unless it may be `relative`."""
    if not isinstance(value, str) or not value or "\0" in value:
        refuse(
            name,
            value,
            "a path in the sandbox, as a str without NUL such as str(path)",
        )
    if not value.startswith("/") and not relative:
        raise ConfigurationError(
            f"{name}={shown(value)} is relative; use an absolute path such as '/workspace/{value[:_SHOWN]}'"
        )
    if ".." in value.split("/"):
        raise ConfigurationError(f"{name}={shown(value)} contains '..'; give the path it leads to")
    if value.split("/")[0] == "~":
        raise ConfigurationError(
            f"{name}={shown(value)}: '~' is not expanded; give the path of the folder"
        )
    _encode(name, value)
    return value


def file(path_: str, data: Content) -> tuple[str, bytes]:
    """Check the path and the content of a file to write."""
    place, given = path(path_, relative=True), content("data", data)
    if (
        not place.startswith("/")
        and isinstance(data, str)
        and data.startswith("/")
        and "\n" not in data
    ):
        raise ConfigurationError(
            f"path={shown(path_)} and data={shown(data)} look swapped: the path comes first; give bytes if the "
            "content is a path"
        )
    return place, given


def cwd(value: str | None) -> str | None:
    """Check a command's working directory, or None for the sandbox's."""
    return None if value is None else path(value, "cwd")


def user(value: str | None) -> str | None:
    """Check a command's user, or None for the sandbox's."""
    return None if value is None else text("user", value)


def local_path(name: str, value: str | os.PathLike[str]) -> str:
    """Return a path on this machine as a str."""
    result = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not isinstance(result, str) or not result or "\0" in result:
        refuse(name, value, "a path on this machine, as a non-empty str or a pathlib.Path")
    _encode(name, result)
    return result


def setup(value: CommandSetup | None) -> CommandSetup | None:
    """Check the setup of a command, or None for none."""
    if value is None:
        return None
    if not isinstance(value, CommandSetup):
        refuse("setup", value, "CommandSetup(files=(...), rlimits={...})")
    for file in value.files:
        if not isinstance(file, CommandFile) or not isinstance(file.content, bytes):
            refuse("setup.files", value.files, "a tuple of CommandFile(path, content)")
        path(file.path)
        mode(file.mode)
    for name, pair in value.rlimits.items():
        one_of("setup.rlimits", name, get_args(ResourceName))
        if len(pair) != 2 or not all(
            each is None or (_is_whole(each) and 0 <= each < 1 << 63) for each in pair
        ):
            refuse(f"setup.rlimits[{name!r}]", pair, "a soft and a hard limit, numbers or None")
    return value


def series(value: CommandSeries, reuse: Reuse) -> CommandSeries:
    """Check the inputs and limits of a command that runs several times, in a sandbox with this `reuse`."""
    if reuse != "reset":
        raise ConfigurationError(
            "exec_each() resets the sandbox between two runs: make it with reuse='reset', in a session with pool="
        )
    if not isinstance(value, CommandSeries):
        refuse("series", value, "CommandSeries((CommandInput(stdin=b'...'), ...), seconds=2)")
    for given in value.inputs:
        if not isinstance(given, CommandInput) or not isinstance(given.stdin, bytes):
            refuse("series.inputs", value.inputs, "CommandInput(stdin=b'...', args=(...))")
        arguments("series.inputs.args", given.args)
    for name in ("seconds", "total_seconds"):
        seconds = getattr(value, name)
        if not _is_number(seconds) or not 0.001 <= seconds <= 1e6:
            refuse(f"series.{name}", seconds, "a number of seconds from 0.001 to 1e6")
    size("series.output_bytes", value.output_bytes)
    return value


def env(value: Mapping[str, str] | None) -> dict[str, str]:
    """Return environment variables that execve(2) accepts; None becomes an empty dict."""
    return {} if value is None else variables("env", value)


def variables(name: str, value: Mapping[str, str]) -> dict[str, str]:
    """Like `env`, but None is refused. Errors never show a value, because it may be a secret."""
    result = mapping(name, value, "{'NAME': 'value'}")
    for key, text in result.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise ConfigurationError(
                f"{name} has the bad variable name {shown(key)}; use a str without '=' and NUL"
            )
        _encode(f"{name}, variable", key)
        if not isinstance(text, str):
            raise ConfigurationError(
                f"{name}[{shown(key)}] has the type {type(text).__name__}; use a str, such as str(value)"
            )
        if "\0" in text:
            raise ConfigurationError(f"{name}[{shown(key)}] contains a NUL character; remove it")
        try:
            text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ConfigurationError(
                f"{name}[{shown(key)}] has lone surrogates, which UTF-8 cannot encode; replace them"
            ) from None
    return result


def mapping(name: str, value: Mapping[str, Any], example: str) -> dict[str, Any]:
    """Return a mapping as a new dict. Errors name only the type, because a value may be a secret."""
    if not isinstance(value, Mapping):
        given = "None" if value is None else f"a {type(value).__name__}"
        raise ConfigurationError(
            f"{name} is {given}; use a mapping such as {example}, or leave the option out"
        )
    return dict(value)


def optional(check: Check) -> Check:
    """Make a check that also accepts None."""
    return lambda name, value: None if value is None else check(name, value)


def refuse(name: str, value: object, remedy: str) -> NoReturn:
    """Raise the ConfigurationError that names the argument, its value and what to use."""
    raise ConfigurationError(f"{name}={shown(value)} is not valid; use {remedy}")


def shown(value: object) -> str:
    """Return a shortened repr for an error message; it also copes with a repr that raises."""
    if isinstance(value, str | bytes | bytearray) and len(value) > _SHOWN:
        return repr(value[: _SHOWN - 3]) + "..."
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - the caller's __repr__, or an int with too many digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}..."


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[float]:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def _encode(name: str, text: str, errors: str = "surrogateescape") -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError as error:
        raise ConfigurationError(
            f"{name} {shown(text)} cannot be encoded in UTF-8 ({error.reason}); replace its "
            "lone surrogates, or pass bytes where bytes are taken"
        ) from None
