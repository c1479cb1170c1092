"""Advantages worked out by hand, and what an infrastructure failure does to them: nothing."""

import math

import pytest
import torch

from sandboxkit.integrations.grpo.advantages import group_advantages

NAN = math.nan


def test_centred_rewards_of_a_group_add_up_to_zero() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]])
    assert torch.equal(group_advantages(rewards, scale="none"), expected)


def test_scaled_by_the_groups_sample_deviation() -> None:
    # mean 0.5, squares 0.25 * 4 / 3, deviation sqrt(1/3)
    advantages = group_advantages(torch.tensor([[1.0, 1.0, 0.0, 0.0]]), scale="group")
    each = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    torch.testing.assert_close(advantages, torch.tensor([[each, each, -each, -each]]))


def test_scaled_by_the_batchs_deviation() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    deviation = math.sqrt((0.75**2 + 3 * 0.25**2) / 3) + 1e-4
    expected = torch.tensor([[0.5, -0.5], [0.0, 0.0]]) / deviation
    torch.testing.assert_close(group_advantages(rewards, scale="batch"), expected)


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_a_masked_sample_changes_no_other_advantage(scale: str) -> None:
    whole = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    failed = torch.tensor([[1.0, NAN, 0.0, 1.0], [0.0, 1.0, 0.0, NAN]])
    expected = group_advantages(whole, scale=scale)  # type: ignore[arg-type] # parametrized
    found = group_advantages(failed, scale=scale)  # type: ignore[arg-type] # parametrized
    torch.testing.assert_close(found[0, [0, 2, 3]], expected[0])
    torch.testing.assert_close(found[1, :3], expected[1])
    assert found[0, 1] == 0
    assert found[1, 3] == 0


@pytest.mark.parametrize("scale", ["none", "group", "batch"])
def test_what_is_left_alone_or_failed_whole_has_no_advantage(scale: str) -> None:
    rewards = torch.tensor([[1.0, NAN, NAN], [NAN, NAN, NAN], [1.0, 0.0, 1.0]])
    found = group_advantages(rewards, scale=scale)  # type: ignore[arg-type] # parametrized
    assert torch.equal(found[:2], torch.zeros(2, 3))
    assert found.isfinite().all()


def test_equal_rewards_have_no_advantage_and_no_division_by_zero() -> None:
    assert torch.equal(group_advantages(torch.ones(2, 4)), torch.zeros(2, 4))


def test_without_centring_the_mean_stays() -> None:
    rewards = torch.tensor([[1.0], [0.0]])
    assert torch.equal(group_advantages(rewards, scale="none", center=False), rewards)
