"""A short page with a title and a few rows, rendered as escaped HTML or as one line of text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

LINES = 40
CHARACTERS = 4000
_ONE_LINE = 80
# Colours and cursor movements, then every other control character except tab and line end.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_COLOURS = {"good": "#1a7f37", "bad": "#cf222e", "open": "#9a6700", "plain": "#57606a"}


@dataclass(frozen=True, slots=True)
class Page:
    """The displayed form of a value. Rendering escapes and shortens the contents."""

    kind: str
    """The name of the value's type, such as "ProcessResult"."""
    headline: str
    mood: str = "plain"
    """The colour of the headline: "good", "bad", "open" (undecided) or "plain"."""
    rows: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    """Multi-line texts by name, such as output; empty ones are left out."""

    def text(self) -> str:
        """Render the page as one line of text."""
        texts = {name: repr(value[:200]) for name, value in self.texts.items() if value}
        rows = [f"{_line(name)}={_line(value)}" for name, value in {**self.rows, **texts}.items()]
        return f"<{' '.join([_line(self.kind), _line(self.headline), *rows])}>"

    def html(self) -> str:
        """Render the page as an HTML table; all values are escaped."""
        rows = "".join(
            f'<tr><th style="text-align:left">{_safe(name)}</th>'
            f'<td style="text-align:left">{_safe(_line(value, 400))}</td></tr>'
            for name, value in self.rows.items()
        )
        texts = "".join(
            f'<div>{_safe(name)}</div><pre style="max-height:20em;overflow:auto">'
            f"{_safe(shortened(value))}</pre>"
            for name, value in self.texts.items()
            if value
        )
        colour = _COLOURS[self.mood]
        return (
            f'<div><b>{_safe(_line(self.kind))}</b> <span style="color:{colour}">'
            f"{_safe(_line(self.headline, 400))}</span><table>{rows}</table>{texts}</div>"
        )


def shortened(text: str) -> str:
    """Return `text`, or its head and tail if it exceeds `LINES` lines or `CHARACTERS` characters."""
    lines = text.split("\n", LINES + 1)
    if len(lines) <= LINES + 1 and len(text) <= CHARACTERS:
        return text
    half = CHARACTERS // 2
    head = "\n".join(text[:half].split("\n")[: LINES // 2])
    tail = "\n".join(text[-half:].split("\n")[-LINES // 2 :])
    return f"{head}\n... {len(text) - len(head) - len(tail)} characters left out ...\n{tail}"


def _line(text: str, most: int = _ONE_LINE) -> str:
    cut = " ".join(_plain(text[: most + 1]).split())
    return cut if len(text) <= most else f"{cut[:most]}..."


def _plain(text: str) -> str:
    return _CONTROLS.sub("\ufffd", _ESCAPES.sub("", text.replace("\r\n", "\n")))


def _safe(text: str) -> str:
    import html  # its table of entities costs a thirtieth of the whole import

    return html.escape(_plain(text))
