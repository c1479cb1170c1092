"""Commands as our shells take them: text, after its size or in a line."""

import shlex

from sandboxkit.providers._hosted import scripts
from sandboxkit.providers._hosted.command import Wrapped
from sandboxkit.providers._hosted.kept import scripts as kept_scripts

__all__ = ["apart", "enter", "serve", "sized"]

_LINE_BREAK = "'\"$_nl\"'"
_LONGEST_LINE = 2048
"""Characters; the shell reads a line byte by byte."""


def serve(window: int, piece: int, *, apart: bool) -> str:
    """The script of a shell that takes commands, see `scripts.SERVE`."""
    return f"_window={window} _piece={piece} _apart={int(apart)}\n{kept_scripts.SERVE}"


def apart(wrapped: Wrapped, mark: str, *, has_input: bool) -> bytes:
    """To a shell that takes commands: run one, with its outputs apart."""
    words = ('"$_wrapper"' if word == scripts.RUN else shlex.quote(word) for word in wrapped.argv)
    settings = f"_mark={mark} _has_input={int(has_input)}; {enter(wrapped)}"
    order = f"{settings}; run {' '.join(words)}"
    line = order.replace("\n", _LINE_BREAK)  # there are none but in single quotes
    if len(line) <= _LONGEST_LINE and line.isascii() and line.isprintable():
        return f"c {line}\n".encode()
    return b"s " + sized(order)


def enter(wrapped: Wrapped) -> str:
    """Define `enter`, which becomes its arguments with the command's variables."""
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in wrapped.env.items())
    return f'enter() {{ export {exports}; exec "$@"; }}'


def sized(script: str) -> bytes:
    """A script after its size in bytes."""
    data = script.encode("utf-8", "surrogateescape")
    return b"%d\n" % len(data) + data
