"""Tests in forks of the submission's process: right ones pass, and only cheats of its own kind do.

The corpora `idioms` and `beside` have tasks that ask for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, _tests
from sandboxkit.integrations.rewards._same_process import grade_in_same_process
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import of_folder
from tests.rewards.trials import TRIALS, Shape, refused, try_all

pytestmark = pytest.mark.timeout(900)
LIMITS = Limits(timeout=20, wall=40, memory_mb=256)
EVERY = 9


@dataclass(frozen=True, slots=True)
class Beside:
    """All tests of a task, beside the submission, even those that the host can compare."""

    limits: Limits

    # Any: see Grader.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        verdict = Verdict(Outcome.PASSED, 1.0)
        for tests in _tests.tests_of(task, task.get("test_list", ())):
            verdict = await grade_in_same_process(session, submission, tests, self.limits)
            if verdict.outcome is not Outcome.PASSED:
                break
        return verdict


def readable(shape: Shape) -> bool:
    return bool({"test", "tests", "test_list"} & set(shape.task))


def test_every_idiom_passes(provider: str) -> None:
    rows = [(item.name, item.passes, item.row) for item in of_folder("idioms")]
    verdicts = grade_all(provider, Beside(LIMITS), rows, in_turn=True)
    assert {n: v.detail for n, v in verdicts.items() if v.outcome is not Outcome.PASSED} == {}
    assert {verdict.trust for verdict in verdicts.values()} == {"shared"}


def test_a_wrong_submission_fails_in_every_idiom() -> None:
    rows = [(item.name, item.fails["wrong"], item.row) for item in of_folder("idioms")]
    verdicts = grade_all("local", Beside(LIMITS), rows, in_turn=True)
    assert {n: v for n, v in verdicts.items() if v.outcome is not Outcome.FAILED} == {}


def test_no_cheat_of_a_sample_is_accepted() -> None:
    tried = []
    for trial in TRIALS:
        shapes = [shape for shape in trial.shapes if readable(shape)]
        for number, name in enumerate(trial.sample(EVERY) if shapes else ()):
            tried.append((trial, shapes[number % len(shapes)], name))
    refused(try_all("local", Beside, tried, reset=True))


def test_every_honest_submission_of_the_trials_is_accepted() -> None:
    tried = [(t, shape, None) for t in TRIALS for shape in t.shapes if readable(shape)]
    verdicts = try_all("local", Beside, tried, reset=True)
    assert {key: each for key, each in verdicts.items() if each.score != 1} == {}


def test_the_first_test_that_fails_is_named() -> None:
    tests = (
        "from solution import f\ndef test_one():\n    assert f(1) == 1\n"
        "def test_two():\n    assert f(2) == 3, 'two'\n"
    )
    row = {"tests": tests, "trust": "shared"}
    verdict = grade_all("local", HostCompare(LIMITS), [("it", "def f(n): return n", row)])["it"]
    assert verdict.outcome is Outcome.FAILED
    assert verdict.detail == "test 2: line 5: AssertionError: two"
