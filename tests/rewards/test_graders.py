"""What graders say about tasks, failures of the infrastructure, and their own weaknesses."""

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    Session,
    as_completed,
    wait,
)
from sandboxkit.integrations.rewards import (
    Grader,
    HostCompare,
    Limits,
    Outcome,
    Verdict,
    _extract,
    grade_in_fresh,
)
from sandboxkit.integrations.rewards.programs import Program
from sandboxkit.testing import FakeProvider
from tests.pool.providers import Counting, Gated
from tests.rewards.conftest import grade_all
from tests.rewards.trials import HONEST, TESTS

pytestmark = pytest.mark.anyio
LIMITS = Limits(timeout=30)
HALF = "def mix(a, b):\n    return a * b + a - b if a < 5 else 0\n"  # right in two of five


GRADES: list[tuple[Any, str, dict[str, Any]]] = [
    (HostCompare(LIMITS), HONEST, {"test_list": TESTS}),
    (Program("python"), "print(input())", {"cases": [{"stdin": "a", "stdout": "a"}]}),
]


@pytest.mark.parametrize(("grader", "code", "task"), GRADES, ids=["HostCompare", "Program"])
def test_a_grade_is_an_operation(grader: Any, code: str, task: dict[str, Any]) -> None:
    with Session("local") as session:
        grades = [grader.grade(session, each, task) for each in (code, "1 / 0")]
        assert {each.result().score for each in as_completed(grades)} == {0, 1}
        assert wait(grades, num_returns=2) == (grades, [])
        with pytest.raises(ConfigurationError, match="the task"):
            grader.grade(session, code, {})


def test_cancelling_a_grade_undoes_its_start() -> None:
    provider = Gated()
    with Session(provider) as session:
        grading = HostCompare(LIMITS).grade(session, HONEST, {"test_list": TESTS[:1]})
        provider.entered.acquire()
        assert grading.cancel()
        provider.undone.acquire()


class Both:
    """Passes what two other graders pass, which it asks on the background loop."""

    def __init__(self, *others: Grader) -> None:
        self.others = others

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        verdicts = [await each.grade(session, submission, task) for each in self.others]
        return min(verdicts, key=attrgetter("score"))


def test_a_grader_awaits_others_on_the_background_loop() -> None:
    grader = Both(HostCompare(LIMITS), Both(HostCompare(LIMITS, partial=True)))
    with Session("local", max_concurrency=1) as session:
        grades = [
            Operation(grader.grade(session, code, {"test_list": TESTS})) for code in (HONEST, HALF)
        ]
        assert [each.result().score for each in grades] == [1, 0]


def test_a_whole_completion_that_fails_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_extract, "_warned", False)
    whole = [f"```python\n{HONEST}```", f"<answer>{HONEST}</answer>"]
    others: list[Any] = [HALF, None, f"{HONEST}x = '''\n```\nx\n```\n'''\n"]
    with Session("local") as session:
        grades = [
            HostCompare(LIMITS).grade(session, each, {"test_list": TESTS})
            for each in whole + others
        ]
        details = [each.result().detail for each in grades]
    assert ["extract_code(completion)" in each for each in details] == [True] * 2 + [False] * 3
    assert caplog.text.count("extract_code(completion)") == 1


def grade(grader: Grader, code: str, task: dict[str, Any]) -> Verdict:
    return grade_all("local", grader, [("it", code, task)])["it"]


def test_partial_scores_are_shares() -> None:
    task = {"test_list": TESTS}
    grader = HostCompare(LIMITS, partial=True)
    verdict = grade(grader, HALF, task)
    assert (verdict.outcome, verdict.score) == (Outcome.FAILED, 0.4)
    assert grade(grader, HONEST, task).score == 1
    assert grade(HostCompare(LIMITS), HALF, task).score == 0


@pytest.mark.parametrize(("failures", "outcome"), [(2, Outcome.PASSED), (3, Outcome.INFRA_ERROR)])
async def test_an_outage_is_retried_and_then_masked(failures: int, outcome: Outcome) -> None:
    outage = [ProviderUnavailableError("no answer")] * failures
    async with Session(Counting(*outage)) as session:
        verdict = await HostCompare(LIMITS).grade(session, HONEST, {"test_list": TESTS[:1]})
    assert verdict.outcome is outcome
    assert (verdict.reward is None) == (outcome is Outcome.INFRA_ERROR)


def all_undone(provider: Gated) -> bool:
    return all(provider.undone.acquire(blocking=False) for _ in range(provider.creates))


async def test_a_hung_start_is_undone() -> None:
    provider = Gated()
    async with Session(provider) as session:
        task = {"test_list": TESTS[:1]}
        grader = HostCompare(Limits(timeout=0.1, deadline=0.3))
        verdict = await grader.grade(session, HONEST, task)
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
