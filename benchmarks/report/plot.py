"""The report's picture: bars on a logarithmic axis."""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.figure import Figure

_OURS, _OTHERS = "#2a6f97", "#b0b7bd"
_INCHES, _TITLE = 9.0, 66
_BAR, _HEAD = 0.22, 0.8
"""Inches of height for a bar, and for a panel's title and axis."""


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


def figure(panels: Sequence[Panel]) -> Figure:
    """Return all panels, one below the other, each with an axis of its own."""
    heights = [_HEAD + _BAR * len(panel.bars) for panel in panels]
    drawn = Figure(figsize=(_INCHES, sum(heights)), layout="constrained")
    every = drawn.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, panel in zip(every, panels, strict=True):
        bars = axes.barh(
            range(len(panel.bars)),
            [bar.rate for bar in panel.bars],
            color=[_OURS if bar.ours else _OTHERS for bar in panel.bars],
            log=True,
        )
        axes.bar_label(bars, fmt="%.3g", padding=3)
        axes.set_yticks(range(len(panel.bars)), [bar.label for bar in panel.bars])
        axes.invert_yaxis()
        rates = [bar.rate for bar in panel.bars]
        axes.set_xlim(10.0 ** math.floor(math.log10(min(rates))), 2 * max(rates))
        axes.set_title(textwrap.fill(panel.title, _TITLE), loc="left", size="medium", weight="bold")
        axes.spines[["top", "right"]].set_visible(False)
    return drawn


def svg(panels: Sequence[Panel]) -> str:
    """Return the picture as SVG, the same for the same panels, its texts as text."""
    written = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sandboxkit"}):
        figure(panels).savefig(
            written, format="svg", bbox_inches="tight", pad_inches=0.2, metadata={"Date": None}
        )
    return written.getvalue()
