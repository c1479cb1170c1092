"""No honest solution is refused: reference solutions of MBPP."""

import json
from pathlib import Path

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from tests.rewards.conftest import grade_all

pytestmark = pytest.mark.timeout(1800)
PROBLEMS = [
    json.loads(line)
    for line in Path(__file__).with_name("data").joinpath("mbpp_500.jsonl").read_text().splitlines()
]


def test_no_reference_solution_is_refused(provider: str) -> None:
    """All are graded on local; on docker, where the same judge grades them, one in five."""
    assert len(PROBLEMS) == 500
    problems = PROBLEMS if provider == "local" else PROBLEMS[::5]
    verdicts = grade_all(
        provider,
        HostCompare(Limits(timeout=60, deadline=1500)),
        [(str(each["task_id"]), each["code"], each) for each in problems],
        in_turn=True,
    )
    assert {
        name: each for name, each in verdicts.items() if each.outcome is not Outcome.PASSED
    } == {}
