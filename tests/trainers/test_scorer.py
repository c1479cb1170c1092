"""Tasks of ground truths, samples that the infrastructure failed, and the document's table of adapters."""

import json
from typing import Any

import numpy as np
import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.trainers._scorer import SampleScorer
from sandboxkit.testing import FakeProvider
from tests.adapters_document import use
from tests.trl.graders import Broken, Length, Refusing, Sometimes, whole

TASK = {"test_list": ["assert f(1) == 2"], "cases": [{"args": [1], "expected": (2, None)}]}


def test_arrays_of_numpy_are_lists_at_any_depth() -> None:
    truth = {
        "test_list": np.array(["assert f(1) == 2"], dtype=object),
        "cases": np.array([{"args": np.array([1, 2]), "expected": np.float64(1.5)}], dtype=object),
        "tuple": (np.int64(1),),
    }
    found, cases = task_of(truth), [{"args": [1, 2], "expected": 1.5}]
    assert found == {"test_list": ["assert f(1) == 2"], "cases": cases, "tuple": (1,)}
    assert type(found["cases"][0]["args"]) is list
    assert type(found["tuple"][0]) is int
    assert task_of(np.array(json.dumps({"a": 1}))) == {"a": 1}
    assert task_of(TASK) == TASK
    assert task_of(json.dumps({"cases": [1.5]})) == {"cases": [1.5]}


@pytest.mark.parametrize("truth", ["42", "no json", None, 1.0, ["assert f(1) == 2"]])
def test_what_is_no_task_is_refused_and_quoted(truth: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no task: give a mapping"):
        task_of(truth)


def scorer(grader: Any, **options: Any) -> SampleScorer:
    """A scorer, which conftest.py closes after the test."""
    given = {"trainer": "test", "provider": FakeProvider(), "extract": whole, **options}
    return SampleScorer(grader, **given)


def rewards(subject: SampleScorer, *texts: str) -> list[float | None]:
    tasks = [{"word": "bad"}] * len(texts)
    return [each.reward for each in subject.score(texts, tasks).result()]


def test_raise_names_the_share_and_the_first_failure() -> None:
    with pytest.raises(ProviderUnavailableError, match=r"test: 1 of 2 .*'raise'; .* no capacity"):
        rewards(scorer(Broken()), "good", "bad")


def test_retry_grades_only_the_failed_samples_again_and_ends_with_an_error() -> None:
    grader = Sometimes(2)
    assert rewards(scorer(grader, on_infra="retry"), "a", "b", "c") == [1.0, 1.0, 1.0]
    assert grader.asked == 5
    with pytest.raises(ProviderUnavailableError, match="'retry'"):
        rewards(scorer(Broken(), on_infra="retry", retry_seconds=0.5), "bad")


def test_samples_that_come_at_once_share_one_session() -> None:
    provider = Refusing()
    subject = scorer(Length(), provider=provider)
    begun = [subject.score([text], [{}]) for text in ("ab", "abc", "abcd")]
    assert [each.result()[0].reward for each in begun] == [1.0, 0.0, 1.0]
    assert provider.asked == 1 + len(begun)  # the first call starts one more, to see that it can


def test_retry_waits_for_a_backend_that_is_not_yet_up() -> None:
    retried, masked = (Refusing(lambda number: number == 0) for _ in range(2))
    assert rewards(scorer(Broken(), on_infra="retry", provider=retried), "good") == [1.0]
    with pytest.raises(ProviderUnavailableError, match="no capacity"):
        rewards(scorer(Broken(), on_infra="mask", provider=masked), "good")


def test_a_masked_sample_has_no_reward_until_only_failures_follow_each_other() -> None:
    subject = scorer(Broken(), on_infra="mask", max_masked=3)
    assert rewards(subject, "bad 1", "bad 2") == [None, None]
    assert rewards(subject, "good") == [1.0]
    assert rewards(subject, "bad 1", "bad 2") == [None, None]
    with pytest.raises(ProviderUnavailableError, match=r"the last 3 samples .* max_masked=3"):
        rewards(subject, "bad 3")


@pytest.mark.parametrize(
    ("name", "value"), [("on_infra", "zero"), ("retry_seconds", 0), ("max_masked", 0)]
)
def test_a_policy_that_cannot_be_followed_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}={value!r}"):
        scorer(Broken(), **{name: value})
    with pytest.raises(ConfigurationError, match=r"test cannot leave .* because it is old"):
        scorer(Broken(), on_infra="mask", no_mask="it is old")


@pytest.mark.parametrize("name", ["verl", "OpenRLHF", "slime", "SkyRL", "NeMo Gym"])
def test_each_use_takes_three_lines(name: str) -> None:
    assert len([line for line in use(name).splitlines() if line]) == 3
