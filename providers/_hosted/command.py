"""From a Command to the one argv that a vendor runs, and the argv that ends it."""

import re
import shlex
from dataclasses import dataclass

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers._hosted import scripts
from sandboxkit.types import Command

__all__ = ["Wrapped", "kill_argv", "wrap"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What a vendor is to run: without a shell of its own, in any directory."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables to add to the sandbox's, the mark among them."""
    head: bytes
    """What to write to the standard input before the command's own input."""


def wrap(command: Command, mark: str, provider: str, *, limit: int | None = None) -> Wrapped:
    """Wrap a command under the unique `mark`, see `scripts.RUN`.

    Its standard output and error then end with the mark, which `output.MarkedStream` cuts off;
    on a terminal there is no such end. Arguments of more than `limit` characters in all, and
    text that is not Unicode, go through the standard input.
    Raises ConfigurationError for a variable's name that a shell cannot take.
    """
    for name in command.env:
        if not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"provider {provider!r} cannot honour env={name!r}: a variable's name has "
                "letters, digits and '_' alone",
                provider=provider,
            )
    env = {**command.env, scripts.MARK: mark}
    directory = command.cwd or ""
    if command.pty is not None:
        size = str(command.pty.rows), str(command.pty.cols)
        terminal = (mark, "0", "1", directory, *size)
        argv = ("sh", "-c", scripts.RUN_ON_TERMINAL, "sh", *terminal, *command.argv)
        return Wrapped(argv, env, b"")
    arguments, head = command.argv, b""
    long = limit is not None and sum(map(len, arguments)) > limit
    if long or not all(map(_is_unicode, (*arguments, *command.env.values(), directory))):
        lines = ["set -- " + " ".join(map(shlex.quote, arguments))]
        lines += [f"export {name}={shlex.quote(value)}" for name, value in command.env.items()]
        lines += [f"_directory={shlex.quote(directory)}"] if directory else []
        head = "\n".join(lines).encode("utf-8", "surrogateescape")
        env, directory, arguments = {scripts.MARK: mark}, directory and "/", ()
    stdin = "0" if command.stdin is None else "1"
    options = (mark, str(len(head)), stdin, directory)
    return Wrapped(("sh", "-c", scripts.RUN, "sh", *options, *arguments), env, head)


def kill_argv(mark: str) -> tuple[str, ...]:
    """The argv that ends everything of the command with this mark, and exits with 0."""
    return ("sh", "-c", scripts.KILL, "sh", mark[:16], mark[16:])


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
