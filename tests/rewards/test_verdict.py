"""A verdict cannot hold what a trainer must not get."""

import math
from typing import Literal

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Outcome, Verdict


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1.5, -0.1, True, "1", None])
def test_a_score_is_a_finite_number_from_0_to_1(score: float) -> None:
    with pytest.raises(ConfigurationError, match="score"):
        Verdict(Outcome.FAILED, score)


@pytest.mark.parametrize(
    ("outcome", "score", "blamed", "words"),
    [
        (Outcome.TAMPERED, 1.0, "policy", "score 1"),
        (Outcome.INFRA_ERROR, 0.0, "policy", "policy"),
        (Outcome.FAILED, 0.0, "infra", "infra"),
    ],
)
def test_a_failure_has_no_full_score_and_only_an_outage_is_not_the_policys(
    outcome: Outcome, score: float, blamed: Literal["policy", "infra"], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Verdict(outcome, score, blamed)


def test_an_infrastructure_error_has_no_reward() -> None:
    assert Verdict(Outcome.INFRA_ERROR, 0.0, "infra").reward is None
    assert Verdict(Outcome.FAILED, 0.0).reward == 0.0
    assert Verdict(Outcome.PASSED, 1.0).reward == 1.0
