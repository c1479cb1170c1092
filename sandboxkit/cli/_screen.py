"""Tables on the terminal: coloured and fitted there, plain and in full width in a pipe."""

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sandboxkit.cli._text import safe_line

_PLAIN_WIDTH = 10_000  # nothing is cut in what another program reads


def console(*, stderr: bool = False) -> Console:
    """A console that interprets no markup and guesses no highlights."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PLAIN_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(*headers: str, right: Iterable[str] = (), fixed: Iterable[str] = ("ID",)) -> Table:
    """An empty table; columns named in `right` are numbers, in `fixed` never broken."""
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
    """An empty one of words and what they stand for, without headers or lines."""
    result = Table.grid(padding=(0, 2, 0, 0))
    result.add_column(no_wrap=True)
    result.add_column(overflow="fold")
    return result


def cell(text: str, style: str = "") -> Text:
    """Untrusted text for a table."""
    return Text(safe_line(text), style=style)
