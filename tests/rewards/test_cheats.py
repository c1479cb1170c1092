"""No hostile submission is accepted, and each is the policy's own failure."""

import pytest

from sandboxkit.integrations.rewards import Canary, ExitCode, Grader, HostCompare, Limits, Outcome
from tests.rewards.cheats import (
    CHEATS,
    HONEST,
    HONEST_PROGRAM,
    PROGRAM_CASES,
    PROGRAM_CHEATS,
    TESTS,
)
from tests.rewards.conftest import grade_all

pytestmark = pytest.mark.timeout(900)

TASK = {"test_list": TESTS}
LIMITS = Limits(timeout=10, memory_mb=256)
GRADERS: list[Grader] = [
    HostCompare(LIMITS),
    HostCompare(LIMITS, together=True),
    Canary(LIMITS),
]


def test_the_corpus_is_large_enough() -> None:
    assert len(CHEATS) >= 40


@pytest.mark.parametrize("grader", GRADERS, ids=["host-compare", "together", "canary"])
def test_no_cheat_is_accepted(provider: str, grader: Grader) -> None:
    submissions = [(name, code, TASK) for name, code in CHEATS.items()]
    verdicts = grade_all(provider, grader, [*submissions, ("honest", HONEST, TASK)])
    honest = verdicts.pop("honest")
    assert (honest.outcome, honest.score) == (Outcome.PASSED, 1.0)
    assert {name: each for name, each in verdicts.items() if each.score != 0} == {}
    infra = {name: each for name, each in verdicts.items() if each.attributable_to != "policy"}
    assert infra == {}


def test_no_cheating_program_is_accepted(provider: str) -> None:
    task = {"cases": PROGRAM_CASES}
    submissions = [(name, code, task) for name, code in PROGRAM_CHEATS.items()]
    verdicts = grade_all(
        provider, HostCompare(LIMITS), [*submissions, ("honest", HONEST_PROGRAM, task)]
    )
    assert verdicts.pop("honest").outcome is Outcome.PASSED
    assert {name: each.score for name, each in verdicts.items() if each.reward != 0.0} == {}


def test_the_corpus_is_no_straw_man() -> None:
    """A grader that trusts the exit status accepts a good part of it."""
    submissions = [(name, code, TASK) for name, code in CHEATS.items() if "signal" not in name]
    verdicts = grade_all("local", ExitCode(Limits(timeout=5, memory_mb=256)), submissions)
    accepted = [name for name, verdict in verdicts.items() if verdict.outcome is Outcome.PASSED]
    assert len(accepted) >= 10, accepted
