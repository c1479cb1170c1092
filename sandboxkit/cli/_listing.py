"""Shows sandboxes to a person: as a table if it fits, else with two lines for each."""

import datetime
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sandboxkit import SandboxInfo, SandboxState
from sandboxkit.cli import _screen
from sandboxkit.cli._text import duration, safe_line, tag_line

_HEADERS = ("ID", "PROVIDER", "STATE", "AGE", "LEFT", "IMAGE", "TAGS")
_RIGHT = ("AGE", "LEFT")
_SHORT = 5
"""How many of the columns are short; the others go on the second line."""
_STYLES = {
    SandboxState.RUNNING: "green",
    SandboxState.STARTING: "yellow",
    SandboxState.PAUSED: "yellow",
    SandboxState.STOPPED: "dim",
}
_GAP = 3


def listing(found: Sequence[SandboxInfo], console: Console) -> RenderableType:
    """Return the sandboxes laid out for the width of this console."""
    rows = [_row(info) for info in found]
    widths = [
        max(cell_len(text) for text in column) for column in zip(_HEADERS, *rows, strict=True)
    ]
    if sum(widths) + _GAP * len(widths) <= console.width:
        table = _screen.table(*_HEADERS, right=_RIGHT, fixed=_HEADERS)
        for info, row in zip(found, rows, strict=True):
            table.add_row(*_styled(info, row))
        return table
    lines: list[RenderableType] = [
        _line(_HEADERS, [Text(text, "bold") for text in _HEADERS], widths)
    ]
    for info, row in zip(found, rows, strict=True):
        lines.append(_line(row, _styled(info, row), widths))
        rest = "  ".join(text for text in row[_SHORT:] if text != "-")
        if rest:
            lines.append(Padding(Text(rest, "dim", overflow="fold"), (0, 0, 0, 2)))
    return Group(*lines)


def _row(info: SandboxInfo) -> tuple[str, ...]:
    now = datetime.datetime.now(datetime.UTC)
    age = duration((now - info.created_at).total_seconds()) if info.created_at else "-"
    left = duration((info.expires_at - now).total_seconds()) if info.expires_at else "-"
    texts = (info.id, info.provider, info.state, age, left, info.image or "-", tag_line(info.tags))
    return tuple(safe_line(text) or "-" for text in texts)


def _styled(info: SandboxInfo, row: Sequence[str]) -> list[Text]:
    styles = ("bold", "", _STYLES[info.state], *[""] * len(row))
    return [Text(text, style) for text, style in zip(row, styles, strict=False)]


def _line(row: Sequence[str], styled: Sequence[Text], widths: Sequence[int]) -> Text:
    line = Text(no_wrap=False)
    for at, (text, cell) in enumerate(zip(row[:_SHORT], styled, strict=False)):
        room = " " * (widths[at] - cell_len(text))
        right = _HEADERS[at] in _RIGHT
        line.append(room if right else "").append_text(cell)
        line.append("" if right or at == _SHORT - 1 else room).append("  ")
    line.rstrip()
    return line
