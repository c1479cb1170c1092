"""Advantages: how much better a completion is than the others of its prompt.

For the rewards r_1 ... r_G of one group (the completions of one prompt), with their mean and their
sample standard deviation:

    none:   A_i = r_i - mean(r)                                   Dr. GRPO, arXiv:2503.20783
    group:  A_i = (r_i - mean(r)) / (std(r) + 1e-4)               GRPO, arXiv:2402.03300
    batch:  A_i = (r_i - mean(r)) / (std(all r of the batch) + 1e-4)

A completion whose grading failed in the infrastructure has no reward: NaN here. It is left out of
the mean and of both deviations, and its advantage is 0. A group with only one known reward also gets
the advantage 0.
"""

from typing import Literal

import torch

__all__ = ["Scale", "group_advantages"]

Scale = Literal["none", "group", "batch"]

_EPSILON = 1e-4


def group_advantages(
    rewards: torch.Tensor, *, scale: Scale = "group", center: bool = True
) -> torch.Tensor:
    """Return the advantages, of the same shape as `rewards`: [groups, completions], float.

    `center=False` does not subtract the group's mean.
    """
    known = ~rewards.isnan()
    values = torch.where(known, rewards, 0.0)
    counts = known.sum(1, keepdim=True)
    mean = values.sum(1, keepdim=True) / counts.clamp(min=1)
    centred = torch.where(known, values - mean, 0.0)
    advantages = centred if center else values
    if scale == "group":
        # One value has no sample deviation; its centred value is 0 anyway.
        deviation = (centred.square().sum(1, keepdim=True) / (counts - 1).clamp(min=1)).sqrt()
        advantages = advantages / (deviation + _EPSILON)
    elif scale == "batch":
        kept = rewards[known]
        deviation = kept.std() if len(kept) > 1 else kept.new_zeros(())
        advantages = advantages / (deviation + _EPSILON)
    lonely = counts < 2 if center else counts < 1
    return torch.where(known & ~lonely, advantages, 0.0)
