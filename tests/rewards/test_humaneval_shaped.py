"""Problems in HumanEval's shape: references pass, broken solutions fail, in isolation."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome
from tests.rewards.conftest import grade_all
from tests.rewards.humaneval_shaped import PROBLEMS

pytestmark = pytest.mark.timeout(900)
GRADER = HostCompare(Limits(timeout=60))


def test_there_are_enough_problems() -> None:
    assert len({each.entry_point for each in PROBLEMS}) >= 30
    assert min(len(each.broken) for each in PROBLEMS) >= 2


def test_references_pass_in_isolation(provider: str) -> None:
    verdicts = grade_all(
        provider,
        GRADER,
        [(p.entry_point, p.program(p.canonical_solution), p.row) for p in PROBLEMS],
    )
    refused = {name: v for name, v in verdicts.items() if (v.score, v.trust) != (1, "isolated")}
    assert refused == {}


@pytest.mark.parametrize(
    "provider", ["local", pytest.param("docker", marks=pytest.mark.nightly)], indirect=True
)
def test_broken_solutions_fail(provider: str) -> None:
    verdicts = grade_all(
        provider,
        GRADER,
        [
            (f"{p.entry_point}/{number}", p.program(body), p.row)
            for p in PROBLEMS
            for number, body in enumerate(p.broken)
        ],
    )
    wrong = {
        name: v
        for name, v in verdicts.items()
        if (v.outcome, v.attributable_to, v.score) != (Outcome.FAILED, "policy", 0)
    }
    assert wrong == {}
