"""Writes the table in a vendor's ANSWERS.md: the vendor's responses, and the error that each raises.

Each vendor's `answers.py` lists recorded responses with the expected errors. One test replays each
with the emulator, another compares the document with the list; SANDBOXKIT_WRITE=1 writes the document.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sandboxkit import SandboxError

__all__ = ["Row", "compare", "is_raised"]

BEGIN, END = "<!-- answers: generated -->\n", "<!-- end of answers -->\n"
WRITE = os.environ.get("SANDBOXKIT_WRITE") == "1"
_LONGEST = 240


@dataclass(frozen=True, slots=True)
class Row:
    calls: tuple[str, ...]
    answer: str
    """The status or code, and the form of the body."""
    raised: type[SandboxError] | None
    """The class of the error that the provider raises; None if it handles the response."""
    retry_after: float | None = None


def is_raised(error: BaseException | None, row: Row) -> bool:
    """Whether the error has exactly the row's class and `retry_after`; a private subclass does not count."""
    if row.raised is None or error is None:
        return row.raised is None and error is None
    return type(error) is row.raised and getattr(error, "retry_after", None) == row.retry_after


def compare(document: Path, rows: Iterable[Row]) -> None:
    """Fail if the document's table differs from `rows`; with SANDBOXKIT_WRITE, write the table."""
    begin, rest = document.read_text().split(BEGIN)
    _, end = rest.split(END)
    expected = f"{begin}{BEGIN}{''.join(_lines(rows))}{END}{end}"
    if WRITE:
        document.write_text(expected)
    assert document.read_text() == expected, "SANDBOXKIT_WRITE=1 pytest writes it"


def _lines(rows: Iterable[Row]) -> Iterable[str]:
    yield "| call | answer | raised | retry |\n|---|---|---|---|\n"
    for row in rows:
        raised, retry = "nothing", ""
        if row.raised is not None:
            raised, retry = f"`{row.raised.__name__}`", "yes" if row.raised.retryable else "no"
        if row.retry_after is not None:
            retry += f", after {row.retry_after:g} s"
        shown = " ".join(row.answer.split()).replace("|", "\\|")
        shown = shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
        yield f"| {', '.join(row.calls)} | {shown} | {raised} | {retry} |\n"
