"""Curves of a step: cases by outcome, and pass@k against its definition."""

import itertools
import math

import pytest

from sandboxkit.integrations._training.curves import part_curves, pass_at_k
from sandboxkit.integrations.rewards import Outcome, Part, Verdict


def test_pass_at_k_is_the_share_of_choices_of_k_samples_with_a_pass() -> None:
    groups = [[True, False, False, True, False], [False] * 4, [True]]
    found = pass_at_k(groups)
    assert list(found) == ["pass@1", "pass@2", "pass@4"]
    for k in (1, 2, 4):
        chances = [
            sum(map(any, choices)) / len(choices)
            for group in groups
            if (choices := list(itertools.combinations(group, k)))
        ]
        assert found[f"pass@{k}"] == pytest.approx(sum(chances) / len(chances))


def test_groups_without_a_reward_have_no_pass_at_k() -> None:
    assert pass_at_k([]) == {}
    assert pass_at_k([[], []]) == {}


def test_part_curves_are_means_over_the_policys_verdicts_with_cases() -> None:
    right = Part("1", Outcome.PASSED, 1.0, weight=3.0, processor_seconds=0.2)
    late = Part("2", Outcome.TIMEOUT, 0.0, processor_seconds=1.0)
    verdicts = [
        Verdict(Outcome.TIMEOUT, 0.75, parts=(right, late)),
        Verdict(Outcome.PASSED, 1.0, parts=(Part("1", Outcome.PASSED, 1.0),)),
        Verdict(Outcome.FAILED, 0.0),
        Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "lost", parts=(late,)),
    ]
    curves = part_curves(verdicts)
    assert curves == pytest.approx(
        {
            "parts/score": 0.875,
            "parts/passed": 0.75,
            "parts/timeout": 0.25,
            "parts/processor_seconds": 0.6,
        }
    )
    assert all(map(math.isfinite, curves.values()))
    assert part_curves(verdicts[2:]) == {}
