"""What graders say about tasks, failures of the infrastructure, and their own weaknesses."""

from collections.abc import Callable
from typing import Any

import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError, Sandbox, Session
from sandboxkit.integrations.rewards import (
    ExitCode,
    Grader,
    HostCompare,
    Limits,
    Outcome,
    PassRate,
    Verdict,
    grade_in_fresh,
)
from sandboxkit.testing import FakeProvider
from tests.pool.providers import Counting, Gated
from tests.rewards.conftest import grade_all
from tests.rewards.trials import HONEST, TESTS

pytestmark = pytest.mark.anyio
LIMITS = Limits(timeout=30)
HALF = "def mix(a, b):\n    return a * b + a - b if a < 5 else 0\n"  # right in two of five


def grade(grader: Grader, code: str, task: dict[str, Any]) -> Verdict:
    return grade_all("local", grader, [("it", code, task)])["it"]


def test_partial_scores_are_shares() -> None:
    task = {"test_list": TESTS}
    for grader in (HostCompare(LIMITS, partial=True), PassRate(LIMITS)):
        verdict = grade(grader, HALF, task)
        assert (verdict.outcome, verdict.score) == (Outcome.FAILED, 0.4)
        assert grade(grader, HONEST, task).score == 1
    assert grade(HostCompare(LIMITS), HALF, task).score == 0


def test_partial_scores_and_one_process_exclude_each_other() -> None:
    with pytest.raises(ConfigurationError, match="exclude each other"):
        HostCompare(partial=True, together=True)


@pytest.mark.parametrize(("failures", "outcome"), [(2, Outcome.PASSED), (3, Outcome.INFRA_ERROR)])
async def test_an_outage_is_retried_and_then_masked(failures: int, outcome: Outcome) -> None:
    outage = [ProviderUnavailableError("no answer")] * failures
    async with Session(Counting(*outage)) as session:
        verdict = await HostCompare(LIMITS).grade(session, HONEST, {"test_list": TESTS[:1]})
    assert verdict.outcome is outcome
    assert (verdict.reward is None) == (outcome is Outcome.INFRA_ERROR)


def all_undone(provider: Gated) -> bool:
    return all(provider.undone.acquire(blocking=False) for _ in range(provider.creates))


@pytest.mark.parametrize("grader", [HostCompare, ExitCode, PassRate])
async def test_a_hung_start_is_undone(grader: Callable[[Limits], Grader]) -> None:
    provider = Gated()
    async with Session(provider) as session:
        task = {"test_list": TESTS[:1]}
        verdict = await grader(Limits(timeout=0.1, deadline=0.3)).grade(session, HONEST, task)
    assert verdict.outcome is Outcome.INFRA_ERROR
    assert verdict.detail == "no answer within deadline=0.3 s"
    assert all_undone(provider)


async def test_a_pristine_sandbox_that_does_not_start_times_out() -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise AssertionError("there is no sandbox")

    provider = Gated()
    async with Session(FakeProvider()) as ours, Session(provider) as theirs:
        agent = ours.sandbox(files={"/workspace/a": b""})
        made = await grade_in_fresh(agent, ["/workspace/a"], theirs.sandbox, grade, deadline=0.5)
    assert made.reward is None
    assert all_undone(provider)
