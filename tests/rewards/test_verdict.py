"""A verdict cannot hold what a trainer must not get."""

import math

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Outcome, Verdict


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, 1.5, -0.1, True, "1", None])
def test_a_score_is_a_finite_number_from_0_to_1(score: float) -> None:
    with pytest.raises(ConfigurationError, match="score"):
        Verdict(Outcome.FAILED, score)


def test_a_failure_has_no_full_score_and_only_an_outage_is_not_the_policys() -> None:
    with pytest.raises(ConfigurationError, match="score 1"):
        Verdict(Outcome.TAMPERED, 1.0)
    with pytest.raises(ConfigurationError, match="policy"):
        Verdict(Outcome.INFRA_ERROR, 0.0, "policy")
    with pytest.raises(ConfigurationError, match="infra"):
        Verdict(Outcome.FAILED, 0.0, "infra")


def test_an_infrastructure_error_has_no_reward() -> None:
    assert Verdict(Outcome.INFRA_ERROR, 0.0, "infra").reward is None
    assert Verdict(Outcome.FAILED, 0.0).reward == 0.0
    assert Verdict(Outcome.PASSED, 1.0).reward == 1.0
