"""Commands as our shells on terminals take them: text, after its size or in a line."""

import shlex

from sandboxkit.providers._hosted import scripts
from sandboxkit.providers._hosted.command import Wrapped
from sandboxkit.providers.daytona import _scripts

__all__ = ["apart", "on_terminal", "serve"]

_LINE_BREAK = "'\"$_nl\"'"
_LONGEST_LINE = 2048
"""Characters; the shell reads a line byte by byte."""


def serve() -> bytes:
    """To a shell just entered: take commands from now on."""
    return _sized(_scripts.SERVE)


def apart(wrapped: Wrapped, mark: str, *, has_input: bool) -> bytes:
    """To a shell that takes commands: run one, with its outputs apart."""
    words = ('"$_wrapper"' if word == scripts.RUN else shlex.quote(word) for word in wrapped.argv)
    settings = f"_mark={mark} _has_input={int(has_input)}; {_enter(wrapped)}"
    order = f"{settings}; run {' '.join(words)}"
    line = order.replace("\n", _LINE_BREAK)  # there are none but in single quotes
    if len(line) <= _LONGEST_LINE and line.isascii() and line.isprintable():
        return f"c {line}\n".encode()
    return b"s " + _sized(order)


def on_terminal(wrapped: Wrapped, mark: str) -> bytes:
    """To a shell just entered: run a command on its terminal."""
    lines = (f"_mark={mark}", _enter(wrapped), f"set -- {shlex.join(wrapped.argv)}")
    return _sized("\n".join((*lines, _scripts.RUN_ON_TERMINAL)))


def _enter(wrapped: Wrapped) -> str:
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in wrapped.env.items())
    return f'enter() {{ export {exports}; exec "$@"; }}'


def _sized(script: str) -> bytes:
    data = script.encode("utf-8", "surrogateescape")
    return b"%d\n" % len(data) + data
