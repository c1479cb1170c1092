"""What `benchmarks.grpo_failures` injects: it reaches the graders, and their retries make up for it."""

import asyncio

import pytest

from benchmarks.grpo_failures import Failing
from sandboxkit import Operation
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grading_session

TASK = {"entry_point": "f", "cases": [{"args": [1], "expected": 1}]}


@pytest.mark.parametrize("retries", [0, 6])
def test_a_submission_that_loses_its_sandbox_has_no_verdict_or_the_right_one(retries: int) -> None:
    grader, provider = HostCompare(limits=Limits(retries=retries)), Failing(0.2)
    with grading_session(grader, provider, max_concurrency=2) as session:

        async def graded() -> list[Verdict]:
            codes = [f"def f(x): return x + {number % 2}" for number in range(40)]
            return await asyncio.gather(*[grader.grade(session, code, TASK) for code in codes])

        verdicts = Operation(graded()).result(120)
    assert provider.lost
    known = [Outcome.PASSED, Outcome.FAILED] * 20
    failed = [each.outcome is Outcome.INFRA_ERROR for each in verdicts]
    assert sum(failed) == 0 if retries else sum(failed) >= provider.lost
    for verdict, right, lost in zip(verdicts, known, failed, strict=True):
        assert verdict.outcome is (Outcome.INFRA_ERROR if lost else right)
        assert (verdict.reward is None) is lost
