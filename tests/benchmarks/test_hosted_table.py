"""The table about hosted providers shows ratios, traffic, missed targets and failures."""

from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("ours", "baked", "has"),
    [
        (
            0.13,
            False,
            "| e2b | 50 ms | create to first result | 130.0 | 100.0 | 1.30 | at most 1.5 | 3, 2 "
            "| 1.5, 1.5 | 0.8, 0.8 |",
        ),
        (0.13, True, "| at most 1.2, **missed** |"),
        (None, False, "| failed: it ended / badly | 100.0 |  | at most 1.5, **missed** |"),
    ],
    ids=["met", "stricter with a baked agent", "failed"],
)
def test_a_line_has_times_a_ratio_its_target_and_traffic_or_a_reason(
    ours: float | None, baked: bool, has: str
) -> None:
    sides = [side("ours", ours, 3), side("SDK", 0.1, 2)]
    (found,) = lines("e2b", 0.05, sides, [ROUGH], baked=baked)
    assert has in found
    assert ("first result, baked |" in found) == baked
