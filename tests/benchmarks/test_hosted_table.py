"""The table about hosted providers shows ratios, traffic, missed targets and failures."""

from pathlib import Path
from typing import Any

from benchmarks.hosted import Measure, Side, Traffic
from benchmarks.hosted_table import lines

ROUGH = Measure("first", "create to first result", 1, ratio=1.5, baked=1.2)


def side(name: str, seconds: float | None, requests: int) -> Side:
    """A side that was measured once; None has failed."""
    meter: Any = None  # no process runs
    made = Side(name, [], Path(), meter)
    if seconds is None:
        made.failures["first"] = "it ended | badly"
    else:
        made.seconds["first"] = [seconds]
        made.traffic["first"] = [Traffic(requests, 1500, 800)]
    return made


def line(ours: float | None, sdk: float | None, *, baked: bool) -> str:
    """The one line of the table."""
    sides = [side("ours", ours, 3), side("SDK", sdk, 2)]
    (found,) = lines("e2b", 0.05, sides, [ROUGH], baked=baked)
    return found


def test_a_measure_has_times_a_ratio_and_both_sides_traffic() -> None:
    assert line(0.13, 0.1, baked=False) == (
        "| e2b | 50 ms | create to first result | 130.0 | 100.0 | 1.30 | at most 1.5 | 3, 2 "
        "| 1.5, 1.5 | 0.8, 0.8 |"
    )


def test_a_baked_agent_has_the_stricter_target() -> None:
    found = line(0.13, 0.1, baked=True)
    assert "| create to first result, baked |" in found
    assert "| at most 1.2, **missed** |" in found


def test_a_side_that_fails_has_its_reason_and_misses_its_target() -> None:
    found = line(None, 0.1, baked=False)
    assert "| failed: it ended / badly | 100.0 |  | at most 1.5, **missed** |" in found
