"""`sandboxkit logs`: print the output of a sandbox's main command."""

import argparse
import contextlib
import sys
from collections.abc import Callable

from sandboxkit import Operation, Sandbox
from sandboxkit.cli import _find, _options, _streams
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError

_LOOK_SECONDS = 0.5
_ANCHOR = 4096
"""How many of the last printed bytes are searched for in the next copy of the log."""
_ENDS = (SandboxNotFoundError, SandboxTerminatedError)
_EPILOG = """\
The backend keeps the newest output, at least 1 MiB of it. With --follow it is
read twice a second, until the command or its sandbox ends.
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "logs",
        help="show the output of a sandbox's main command",
        description="Print the newest output of a sandbox's main command, which 'run -d' started.",
        epilog=_EPILOG,
    )
    _options.provider(parser, _options.FOUND)
    parser.add_argument(
        "-f", "--follow", action="store_true", help="also print new output, until the command ends"
    )
    parser.add_argument(
        "-n",
        "--tail",
        type=_options.number,
        metavar="N",
        help="only the last N lines of the existing output",
    )
    parser.add_argument("id", metavar="ID")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    write = _streams.writer(sys.stdout)
    with _find.reached(args, args.id) as sandbox:
        ended = sandbox.wait() if args.follow else None
        try:
            data = sandbox.logs().result()
            write(data if args.tail is None else last_lines(data, args.tail))
            if ended is not None:
                _follow(sandbox, ended, data, write)
        finally:
            if ended is not None:
                ended.cancel()
    write(None)
    return 0


def _follow(
    sandbox: Sandbox, ended: Operation[int], shown: bytes, write: Callable[[bytes | None], None]
) -> None:
    over = False
    while not over:
        with contextlib.suppress(TimeoutError):
            why = ended.exception(_LOOK_SECONDS)
            over = True
            if isinstance(why, ConfigurationError):
                raise ConfigurationError(f"{why}; only 'sandboxkit run -d' starts one") from why
            if why is not None and not isinstance(why, _ENDS):
                raise why
        try:
            now = sandbox.logs().result()
        except _ENDS as error:
            print(f"sandboxkit: {safe_line(str(error))}", file=sys.stderr)
            return
        new = since(shown, now)
        if new is None:
            print(
                "sandboxkit: some output was lost: it came faster than it was read", file=sys.stderr
            )
        write(now if new is None else new)
        shown = now


def last_lines(data: bytes, number: int) -> bytes:
    """Return the last `number` lines; an unfinished line counts."""
    at = len(data) - data.endswith(b"\n")
    for _ in range(number):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :] if number else b""


def since(before: bytes, now: bytes) -> bytes | None:
    """Return the output that is new in `now`; None if it overlaps too little with `before`."""
    if now.startswith(before):
        return now[len(before) :]
    anchor = before[-_ANCHOR:]
    end = len(now)
    while (at := now.rfind(anchor, 0, end)) >= 0:
        end = at + len(anchor)
        if before.endswith(now[:end]):
            return now[end:]
        end -= 1
    return None
