"""Tasks of ground truths, and what becomes of a sample that the infrastructure failed."""

import json
from typing import Any

import numpy as np
import pytest

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.trainers._scorer import SampleScorer
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec
from tests.trl.graders import Broken, Length, Sometimes, whole

TASK = {"test_list": ["assert f(1) == 2"], "cases": [{"args": [1], "expected": (2, None)}]}


def test_a_task_is_a_mapping_or_its_json() -> None:
    assert task_of(TASK) == TASK
    assert task_of(json.dumps({"cases": [1.5]})) == {"cases": [1.5]}


def test_arrays_of_numpy_are_lists_at_any_depth() -> None:
    truth = {
        "test_list": np.array(["assert f(1) == 2"], dtype=object),
        "cases": np.array([{"args": np.array([1, 2]), "expected": np.float64(1.5)}], dtype=object),
        "tuple": (np.int64(1),),
    }
    found = task_of(truth)
    assert found == {
        "test_list": ["assert f(1) == 2"],
        "cases": [{"args": [1, 2], "expected": 1.5}],
        "tuple": (1,),
    }
    assert type(found["cases"][0]["args"]) is list
    assert type(found["tuple"][0]) is int
    assert task_of(np.array(json.dumps({"a": 1}))) == {"a": 1}


@pytest.mark.parametrize("truth", ["42", "no json", None, 1.0, ["assert f(1) == 2"]])
def test_what_is_no_task_is_refused_and_quoted(truth: Any) -> None:
    with pytest.raises(ConfigurationError, match="is no task: give a mapping"):
        task_of(truth)


def scorer(grader: Any, **options: Any) -> SampleScorer:
    return SampleScorer(
        grader, **{"trainer": "test", "provider": FakeProvider(), "extract": whole, **options}
    )


def rewards(subject: SampleScorer, texts: list[str], word: str = "bad") -> list[float | None]:
    return [each.reward for each in subject.score(texts, [{"word": word}] * len(texts)).result()]


def test_raise_names_the_share_and_the_first_failure() -> None:
    subject = scorer(Broken())
    with pytest.raises(ProviderUnavailableError, match=r"test: 1 of 2 .*'raise'; .* no capacity"):
        rewards(subject, ["good", "bad"])
    subject.close()


def test_retry_grades_only_the_failed_samples_again() -> None:
    grader = Sometimes(2)
    subject = scorer(grader, on_infra="retry")
    assert rewards(subject, ["a", "b", "c"]) == [1.0, 1.0, 1.0]
    assert grader.asked == 5
    subject.close()


def test_retry_ends_with_an_error_and_not_with_a_score() -> None:
    subject = scorer(Broken(), on_infra="retry", retry_seconds=0.5)
    with pytest.raises(ProviderUnavailableError, match="'retry'"):
        rewards(subject, ["bad"])
    subject.close()


class Counts(FakeProvider):
    """Counts the sandboxes that were made."""

    made = 0

    async def create(self, spec: SandboxSpec) -> str:
        self.made += 1
        return await super().create(spec)


def test_samples_that_come_at_once_share_one_session() -> None:
    provider = Counts()
    subject = scorer(Length(), provider=provider)
    begun = [subject.score([text], [{}]) for text in ("ab", "abc", "abcd")]
    assert [each.result()[0].reward for each in begun] == [1.0, 0.0, 1.0]
    assert provider.made == 1 + len(begun)  # the first call starts one more, to see that it can
    subject.close()


class Late(FakeProvider):
    """Cannot make its first sandbox."""

    failures = 0

    async def create(self, spec: SandboxSpec) -> str:
        if self.failures == 0:
            self.failures += 1
            raise ProviderUnavailableError("not yet up")
        return await super().create(spec)


def test_retry_waits_for_a_backend_that_is_not_yet_up() -> None:
    subject = scorer(Broken(), on_infra="retry", provider=Late())
    assert rewards(subject, ["good"]) == [1.0]
    subject.close()
    subject = scorer(Broken(), on_infra="mask", provider=Late())
    with pytest.raises(ProviderUnavailableError, match="not yet up"):
        rewards(subject, ["good"])
    subject.close()


def test_a_masked_sample_has_no_reward() -> None:
    subject = scorer(Broken(), on_infra="mask")
    assert rewards(subject, ["good", "bad"]) == [1.0, None]
    subject.close()


def test_masking_ends_when_only_failures_follow_each_other() -> None:
    subject = scorer(Broken(), on_infra="mask", max_masked=3)
    assert rewards(subject, ["bad 1", "bad 2"]) == [None, None]
    assert rewards(subject, ["good"]) == [1.0]
    assert rewards(subject, ["bad 1", "bad 2"]) == [None, None]
    with pytest.raises(ProviderUnavailableError, match=r"the last 3 samples .* max_masked=3"):
        rewards(subject, ["bad 3"])
    subject.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_infra": "zero"}, "on_infra='zero': give one of raise, retry, mask"),
        ({"on_infra": "mask", "no_mask": "it is old"}, "test cannot leave .* because it is old"),
        ({"retry_seconds": 0}, "retry_seconds=0"),
        ({"max_masked": 0}, "max_masked=0"),
    ],
)
def test_a_policy_that_cannot_be_followed_is_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        scorer(Broken(), **options)
