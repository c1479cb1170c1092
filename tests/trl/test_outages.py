"""An outage of the backend stops a training that uses TRL, and says why."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sandboxkit import CapacityError, ProviderUnavailableError, Session
from sandboxkit.integrations.rewards import HostCompare, Outcome, Verdict
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxReward
from sandboxkit.integrations.trl._rollout import RolloutEnvironment
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Diagnosis
from tests.trl.graders import Broken, Refusing, Sometimes
from tests.trl.tiny import judge


class Unfit(FakeProvider):
    async def diagnose(self) -> Diagnosis:
        return Diagnosis(False, "", "no daemon", "start one")


def test_environments_say_that_a_backend_cannot_work_before_the_first_batch() -> None:
    with (
        SandboxEnvironments(judge, provider=Unfit()) as environments,
        pytest.raises(ProviderUnavailableError, match=r"no daemon\. start one"),
    ):
        environments()


def away(before: int = 0, error: type[Exception] = ProviderUnavailableError) -> Refusing:
    """A provider that makes a number of sandboxes, and from then on none."""
    return Refusing(lambda number: number >= before, error)


class Trusted:
    """A grader whose verdicts are as trustworthy as the submission says."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        if submission == "infra":
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "no daemon")
        if submission.startswith("isolated"):
            return Verdict(Outcome.PASSED, 1.0, trust="isolated")
        return Verdict(Outcome.PASSED, 1.0, trust="shared")


class Fixed(RolloutEnvironment):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__()
        self.verdict = verdict

    def reset(self, **row: Any) -> None: ...

    async def _grade(self) -> tuple[Verdict, float | None]:
        return self.verdict, self.verdict.reward


def code(text: str) -> str | None:
    return None if text.startswith("prose") else text


def score(
    grader: Any, texts: Sequence[str], prompts: Sequence[str] = (), **options: Any
) -> tuple[list[float | None], dict[str, float]]:
    """The rewards of completions, each of a prompt of its own unless these are given, and the metrics."""
    metrics: dict[str, float] = {}
    given = {"provider": FakeProvider(), "extract": code, **options}
    subject = SandboxReward(grader, **given)
    try:
        asked = prompts or [str(number) for number in range(len(texts))]
        bad = ["bad"] * len(texts)
        return subject(asked, texts, word=bad, log_metric=metrics.__setitem__), metrics
    finally:
        subject.close()


def test_what_needs_no_sandbox_does_not_hide_a_dead_daemon() -> None:
    """Prose and a banned name say nothing of it."""
    subject = SandboxReward(HostCompare(), provider=away(1), extract=code)
    texts = ["prose", "sorted", "def f(x): return x", "def f(x): return x + 0"]
    tests, banned = [["assert f(1) == 1"]] * 4, [["sorted"]] * 4
    with pytest.raises(ProviderUnavailableError, match=r"2 of 2 .* of 4 .*no capacity"):
        subject([*"0123"], texts, test_list=tests, banned_patterns=banned)
    subject.close()


def test_all_equal_completions_needed_a_sandbox() -> None:
    rewards, metrics = score(Sometimes(1), ["ab"] * 9)
    assert rewards.count(None) == 1
    assert metrics["infra_failed_rate"] == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("limit", "bad", "stops"),
    [(0, 0, False), (0, 1, True), (0.3, 2, False), (0.3, 3, True), (1, 9, False), (1, 10, True)],
)
def test_the_limit_is_the_share_that_stops(limit: float, bad: int, stops: bool) -> None:
    texts = [f"{'bad' if number < bad else 'good'} {number}" for number in range(10)]
    if stops:
        with pytest.raises(ProviderUnavailableError, match=f"={limit:g}; the first: no capacity"):
            score(Broken(), texts, max_infra_failed_rate=limit)
    else:
        assert score(Broken(), texts, max_infra_failed_rate=limit)[0].count(None) == bad


def test_a_batch_without_code_is_no_outage() -> None:
    rewards, metrics = score(Broken(), ["prose"] * 3, max_infra_failed_rate=0.0)
    assert rewards == [0.0] * 3
    assert metrics["infra_failed_rate"] == 0
    assert "trust/shared" not in metrics


def test_a_prompt_of_which_all_that_needed_a_sandbox_failed_is_not_passed_over() -> None:
    texts = ["prose", "bad 1", "bad 2", "good"]
    with pytest.raises(ProviderUnavailableError, match="all 2 completions of the prompt 'p'"):
        score(Broken(), texts, ["p", "p", "p", "q"], max_infra_failed_rate=1.0)


def test_a_provider_that_cannot_work_says_so_before_it_is_needed() -> None:
    provider = away()
    subject = SandboxReward(Broken(), provider=provider)
    for _ in range(2):
        with pytest.raises(ProviderUnavailableError, match="no capacity"):
            subject(["p"], ["prose"])
    provider.refuses = lambda number: False
    asked = provider.asked
    assert [subject(["p"], ["prose"]) for _ in range(3)] == [[0.0]] * 3
    subject.close()
    assert provider.asked == asked + 1, "only the first call starts one to see whether it does"


def test_a_provider_that_is_full_works() -> None:
    assert score(Trusted(), ["ab"], provider=away(error=CapacityError))[0] == [1.0]


def test_the_share_of_verdicts_of_which_the_trust_is_shared_is_logged() -> None:
    texts = ["prose", "shared", "isolated 1", "isolated 2", "isolated 3", "isolated 3", "infra"]
    _, metrics = score(Trusted(), texts)
    assert metrics["trust/shared"] == pytest.approx(1 / 5)
    assert metrics["infra_failed_rate"] == pytest.approx(1 / 6)


def test_environments_of_which_the_limit_failed_are_an_outage() -> None:
    good = Fixed(Verdict(Outcome.PASSED, 1.0, trust="isolated"))
    bad = Fixed(Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "no daemon"))
    metrics: dict[str, float] = {}
    subject, prompts = EnvironmentReward(), ["p", "q", "r", "s"]
    options: dict[str, Any] = {"log_metric": metrics.__setitem__}
    found = subject(prompts, [""] * 4, environments=[good, good, good, bad], **options)
    assert found == [1.0, 1.0, 1.0, None]
    assert (metrics["infra_failed_rate"], metrics["trust/shared"]) == (0.25, 0.0)
    with pytest.raises(ProviderUnavailableError, match=r"2 of 4 .*no daemon"):
        subject(prompts, [""] * 4, environments=[good, good, bad, bad])
