"""slime's calls of a custom reward model (slime/rollout of August 2026), and the samples' fields it reads.

A custom reward model is awaited with a sample; with --group-rm, and with what a custom generation
returned as a list, it is awaited with the samples of one prompt and returns as many rewards. The
loss mask of a sample with `remove_sample` is zeros. Its reward still counts in its group's mean.
"""

import argparse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Sample:
    """The fields of slime.utils.types.Sample that concern a reward."""

    prompt: str = ""
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: float | None = None
    loss_mask: list[int] | None = None
    remove_sample: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


Reward = Callable[..., Awaitable[Any]]


async def rewarded(custom_rm: Reward, group: list[Sample], *, group_rm: bool) -> list[Sample]:
    """Set the rewards of a group as `generate_and_rm_group` does."""
    args = argparse.Namespace(group_rm=group_rm)
    if group_rm:
        for sample, reward in zip(group, await custom_rm(args, group), strict=True):
            sample.reward = reward
    else:
        for sample in group:
            sample.reward = await custom_rm(args, sample)
    return group


def advantages(group: list[Sample]) -> list[float]:
    """Return each sample's advantage times its loss mask, as training data has them without a deviation."""
    rewards = [sample.reward for sample in group]
    assert all(type(reward) is float for reward in rewards), rewards
    known = [float(reward or 0) for reward in rewards]
    mean, pairs = sum(known) / len(known), zip(group, known, strict=True)
    return [0.0 if sample.remove_sample else reward - mean for sample, reward in pairs]
