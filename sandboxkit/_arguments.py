"""Validators for callers' arguments: they run before any I/O and return a private copy."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeGuard, get_args

from sandboxkit.errors import ConfigurationError
from sandboxkit.types import (
    CommandFile,
    CommandInput,
    CommandSeries,
    CommandSetup,
    PtySize,
    ResourceName,
    Reuse,
)

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
        refuse(name, value, "a list of strings")
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
        refuse(name, value, f"a positive number{of} of at most {_MOST}, or None")
    return value


def integer(name: str, value: int, *, most: int = _MOST) -> int:
    """Check for an integer from 1 to `most`."""
    if not _is_whole(value) or not 1 <= value <= most:
        refuse(name, value, f"a whole number from 1 to {most}")
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
        refuse(name, value, f"one of {', '.join(map(repr, allowed))}{nearest(value, allowed)}")
    return value


def nearest(given: object, names: Sequence[str]) -> str:
    """Return " (did you mean 'x'?)" for the most similar name, or "" when no name is similar."""
    from difflib import get_close_matches  # imported only when there is a mistake to report

    found = get_close_matches(given[:_SHOWN].lower(), names, 1) if isinstance(given, str) else []
    return f" (did you mean {found[0]!r}?)" if found else ""


def text(name: str, value: object) -> str:
    """Check a string for the backend, such as an image or an id: not empty, valid UTF-8, no NUL."""
    if not isinstance(value, str) or not value or "\0" in value:
        refuse(name, value, "a non-empty string without NUL characters")
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
    return True if value is True else content("stdin", value)


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


def path(value: str, name: str = "path") -> str:
    """Check for an absolute sandbox path without '..'."""
    if not isinstance(value, str) or not value or "\0" in value:
        refuse(name, value, "the absolute path of something in the sandbox, as a str without NUL")
    if not value.startswith("/"):
        raise ConfigurationError(
            f"{name}={shown(value)} is relative; use an absolute path such as '/workspace/{value[:_SHOWN]}'"
        )
    if ".." in value.split("/"):
        raise ConfigurationError(f"{name}={shown(value)} contains '..'; give the path it leads to")
    _encode(name, value)
    return value


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
        if not isinstance(text, str) or "\0" in text:
            raise ConfigurationError(
                f"{name}[{shown(key)}] is a {type(text).__name__}; use a str without NUL characters"
            )
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
