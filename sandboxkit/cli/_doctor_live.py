"""`sandboxkit doctor --live`: create one sandbox, check it and delete it."""

import argparse
import contextlib
import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sandboxkit.cli import _options
from sandboxkit.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

    from sandboxkit.testing.live import CheckResult

_SILENCE = 5.0


def add(parser: argparse.ArgumentParser) -> None:
    """Add --live and its options."""
    parser.add_argument(
        "--live",
        action="store_true",
        help="create one sandbox, check the behaviours that need a real backend, and delete it",
    )
    parser.add_argument(
        "--silence",
        type=_options.seconds,
        metavar="TIME",
        help="with --live: how long a command prints nothing (default: 5s)",
    )
    _options.sandbox(parser)


def refuse_options(args: argparse.Namespace) -> None:
    """Raise ConfigurationError for an option that needs --live."""
    if args.silence is not None or _options.spec(args):
        raise ConfigurationError("options of a sandbox, and --silence, go with --live only")


def main(args: argparse.Namespace, provider: str) -> int:
    """Run the checks; return 0 if every checkable behaviour is as expected, else 1."""
    from sandboxkit.testing import live

    silence = _SILENCE if args.silence is None else args.silence
    # Closing the generator deletes the sandbox, also after an error.
    with contextlib.closing(live.checks(provider, _options.spec(args), silence=silence)) as found:
        rows = list(found) if args.json else _shown(found)
    if args.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2))
    return 1 if any(row.held is False for row in rows) else 0


def _shown(found: "Iterable[CheckResult]") -> "list[CheckResult]":
    """Print the table, row by row on a terminal; print the rows so far even after an error."""
    from rich.live import Live  # only tables need rich, which is an extra

    from sandboxkit.cli import _screen

    rows: list[CheckResult] = []
    console = _screen.console()
    if console.is_terminal:
        with Live(console=console, auto_refresh=False, vertical_overflow="visible") as screen:
            for row in found:
                rows.append(row)
                screen.update(_table(rows), refresh=True)
        return rows
    try:
        for row in found:
            rows.append(row)
    finally:
        console.print(_table(rows))
    return rows


def _table(rows: "Iterable[CheckResult]") -> "Table":
    from sandboxkit.cli import _screen

    table = _screen.table(
        "CHECK", "HOLDS", "EXPECTED", "SEEN", "TIME", right=("TIME",), fixed=("CHECK", "HOLDS")
    )
    words = {True: ("yes", "green"), False: ("NO", "bold red"), None: ("unknown", "yellow")}
    for row in rows:
        table.add_row(
            _screen.cell(row.check, "bold"),
            _screen.cell(*words[row.held]),
            _screen.cell(row.expected),
            _screen.cell(row.seen),
            _screen.cell(f"{row.seconds:.1f} s"),
        )
    return table
