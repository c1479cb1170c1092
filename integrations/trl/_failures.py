"""How many failures of the infrastructure a batch may have before training must stop."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sandboxkit import ConfigurationError, SandboxError


class TooManyFailuresError(SandboxError):
    """So many samples were masked that training on the rest would mislead."""


def check_rate(max_failed_rate: float) -> None:
    """Raise ConfigurationError for a rate that is not in [0, 1]."""
    if not 0 <= max_failed_rate <= 1:
        raise ConfigurationError(f"max_infra_failed_rate={max_failed_rate!r} is not in [0, 1]")


# Any: a prompt is text or a list of messages, compared and not read.
def check_batch(
    rewards: Sequence[float | None], prompts: Sequence[Any], max_failed_rate: float, why: str
) -> None:
    """Raise TooManyFailuresError where a whole group or too large a share has no reward.

    A group is a run of equal prompts, as TRL orders them; a single sample is no group.
    """
    missing = sum(reward is None for reward in rewards)
    rows = list(zip(prompts, rewards, strict=True))
    groups = [[row[1] for row in group] for _, group in groupby(rows, key=lambda row: row[0])]
    whole = sum(len(group) > 1 and all(each is None for each in group) for group in groups)
    if whole:
        raise TooManyFailuresError(
            f"all {missing} masked samples of the batch include {whole} whole group(s), from "
            f"which nothing can be learned; the last failure: {why}"
        )
    if missing > max_failed_rate * len(rewards):
        raise TooManyFailuresError(
            f"{missing} of {len(rewards)} samples failed for reasons of the infrastructure, more "
            f"than max_infra_failed_rate={max_failed_rate:g}; the last failure: {why}"
        )
