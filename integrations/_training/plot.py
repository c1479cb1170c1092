"""Plots a run's reward, as text for a terminal and as reward.svg in the run's folder."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training.atomic_write import atomic_write
from sandboxkit.json_lines import json_lines

_WIDTH, _HEIGHT = 64, 12
_COLOURS = {"reward": "#1f77b4", "held_out": "#d62728"}

Curve = Sequence[tuple[float, float]]


def rows(path: Path) -> list[dict[str, Any]]:  # Any: numbers, text and None
    """Read a file of JSON lines up to the first invalid line; return [] if there is no file."""
    if not path.exists():
        return []
    found = []
    with path.open("rb") as file, contextlib.suppress(ConfigurationError):
        for _, row in json_lines(file, str(path)):
            found.append(row)
    return found


def draw(run: Path) -> str:
    """Write reward.svg to the folder `run` and return the plot as text; "" if no step is recorded yet.

    Raises ConfigurationError if the folder has no metrics.jsonl or cannot be written to.
    """
    if not (run / "metrics.jsonl").exists():
        raise ConfigurationError(f"{str(run)!r} has no metrics.jsonl: give a run's folder")
    found = rows(run / "metrics.jsonl")
    curves = {
        name: [(r["step"] or 0.0, value) for r in found if (value := r.get(name)) is not None]
        for name in _COLOURS
    }
    if not curves["reward"]:
        return ""
    try:
        with atomic_write(run / "reward.svg") as new:
            new.write_text(_svg(curves), "utf-8")
    except OSError as error:
        raise ConfigurationError(f"{run / 'reward.svg'} could not be written: {error}") from error
    return _text(curves)


def _text(curves: dict[str, list[tuple[float, float]]]) -> str:
    last = max(step for curve in curves.values() for step, _ in curve)
    grid = [[" "] * (_WIDTH + 1) for _ in range(_HEIGHT + 1)]
    for name, mark in (("reward", "·"), ("held_out", "o")):
        for step, value in curves[name]:
            across = round(step / max(last, 1) * _WIDTH)
            grid[_HEIGHT - round(min(max(value, 0), 1) * _HEIGHT)][across] = mark
    lines = [
        f"{(1 - row / _HEIGHT):5.2f} |{''.join(cells).rstrip()}" for row, cells in enumerate(grid)
    ]
    axis = f"      +{'-' * (_WIDTH + 1)}"
    return "\n".join(
        [*lines, axis, f"       0{f'step {last:.0f}':>{_WIDTH}}", "       · reward  o held-out"]
    )


def _svg(curves: dict[str, list[tuple[float, float]]]) -> str:
    last = max(step for curve in curves.values() for step, _ in curve)

    def place(step: float, value: float) -> str:
        return f"{60 + 720 * step / max(last, 1):.1f},{340 - 300 * min(max(value, 0), 1):.1f}"

    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 390" '
        'font-family="sans-serif" font-size="13">',
        '<rect width="820" height="390" fill="white"/>',
    ]
    for tenth in range(0, 11, 2):
        height = 340 - 30 * tenth
        parts.append(f'<path d="M60 {height}H780" stroke="#ddd"/>')
        parts.append(f'<text x="52" y="{height + 4}" text-anchor="end">{tenth / 10:.1f}</text>')
    parts.append(f'<text x="780" y="360" text-anchor="end">step {last:.0f}</text>')
    for index, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[name]
        points = " ".join(place(step, value) for step, value in curve)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(f'<text x="{70 + 110 * index}" y="380" fill="{colour}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])
