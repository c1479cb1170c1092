"""Counts over all episodes of an environment or a pool."""

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counts over all episodes. `seconds` is the sum of their times from reset to verdict."""

    episodes: int = 0
    passed: int = 0
    masked: int = 0
    """Episodes without a reward, because the infrastructure failed."""
    shared: int = 0
    """Verdicts with `trust="shared"`: the tests ran in the submission's sandbox."""
    submitted: int = 0
    steps: int = 0
    tool_errors: int = 0
    setup_failures: int = 0
    """Failed attempts to set up a sandbox, including those whose retry succeeded."""
    reward_sum: float = 0.0
    seconds: float = 0.0
