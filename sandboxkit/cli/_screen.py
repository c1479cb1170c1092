"""Tables: coloured and fitted on a terminal, plain and in full width in a pipe."""

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sandboxkit.cli._text import safe_line

_FOLDED_WIDTH = 80
_PLAIN_WIDTH = 10_000  # output that another program reads is never cut


def console(*, folded: bool = False) -> Console:
    """Return a console without markup and automatic highlighting; `folded` texts fit 80 columns of a file, too."""
    width = None if sys.stdout.isatty() else _FOLDED_WIDTH if folded else _PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, markup=False, highlight=False, emoji=False)


def table(*headers: str, right: Iterable[str] = (), fixed: Iterable[str] = ("ID",)) -> Table:
    """Return an empty table; columns in `right` are right-aligned, columns in `fixed` never wrap."""
    result = Table(box=box.SIMPLE_HEAD if sys.stdout.isatty() else None, pad_edge=False)
    for header in headers:
        result.add_column(
            header,
            justify="right" if header in right else "left",
            no_wrap=header in fixed,
            overflow="fold",
        )
    return result


def grid() -> Table:
    """Return an empty table of terms and their meanings, without headers and rules."""
    result = Table.grid(padding=(0, 2, 0, 0))
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    return result


def cell(text: str, style: str = "") -> Text:
    """Return untrusted text as a safe table cell."""
    return Text(safe_line(text), style=style)
