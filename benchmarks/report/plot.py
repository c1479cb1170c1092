"""The report's picture: bars on a logarithmic axis, as SVG that needs no library."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _LABELS, _BAR, _GAP = 760, 250, 16, 5
_OURS, _OTHERS = "#2a6f97", "#b0b7bd"


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of a panel: its label, how many a second, and whether it is ours."""

    label: str
    rate: float
    ours: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars that may be compared with each other."""

    title: str
    bars: Sequence[Bar]


def svg(panels: Sequence[Panel]) -> str:
    """All panels, one below the other, each with an axis of its own from its smallest decade."""
    parts: list[str] = []
    y = 10.0
    for panel in panels:
        parts.append(_text(10, y + 14, panel.title, "bold"))
        y += 26
        low, high = _decades([bar.rate for bar in panel.bars])
        scale = (_WIDTH - _LABELS - 90) / (high - low)
        for bar in panel.bars:
            width = max(1.0, (math.log10(bar.rate) - low) * scale)
            middle = y + _BAR - 4
            parts += [
                _text(_LABELS - 8, middle, bar.label, anchor="end"),
                f'<rect x="{_LABELS}" y="{y:.0f}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_OURS if bar.ours else _OTHERS}"/>',
                _text(_LABELS + width + 5, middle, f"{bar.rate:.3g}"),
            ]
            y += _BAR + _GAP
        for decade in range(low, high + 1):
            x = _LABELS + (decade - low) * scale
            parts.append(
                f'<line x1="{x:.1f}" y1="{y:.0f}" x2="{x:.1f}" y2="{y + 4:.0f}" stroke="#555"/>'
            )
            parts.append(_text(x, y + 16, f"{10.0**decade:g}", anchor="middle"))
        y += 34
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y:.0f}" '
        'font-family="sans-serif" font-size="12">'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )


def _decades(rates: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(rates)))
    return low, max(low + 1, math.ceil(math.log10(max(rates))))


def _text(x: float, y: float, words: str, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
