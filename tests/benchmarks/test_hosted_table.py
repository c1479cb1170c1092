"""The table about hosted providers shows ratios, traffic, missed targets and failures."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosted import Measure, Side, Traffic
from benchmarks.hosted_table import lines

LINES = tomllib.loads((Path(__file__).parent / "hosted_table.toml").read_text())["line"]
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


@pytest.mark.parametrize("case", LINES, ids=lambda case: case["name"])
def test_a_line_has_times_a_ratio_its_target_and_traffic_or_a_reason(case: dict[str, Any]) -> None:
    baked = case.get("baked", False)
    sides = [side("ours", case.get("ours"), 3), side("SDK", 0.1, 2)]
    (found,) = lines("e2b", 0.05, sides, [ROUGH], baked=baked)
    assert case["has"] in found
    assert ("first result, baked |" in found) == baked
