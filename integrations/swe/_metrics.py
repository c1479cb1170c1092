"""Counts over all episodes of an environment or a pool."""

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counts since the start. `seconds` is the total time from reset to verdict."""

    episodes: int = 0
    passed: int = 0
    masked: int = 0
    """Episodes without a reward, because the infrastructure failed."""
    shared: int = 0
    """Verdicts with `trust="shared"`: the tests ran next to the submission."""
    submitted: int = 0
    steps: int = 0
    tool_errors: int = 0
    setup_failures: int = 0
    """Failed setups, including those whose retry succeeded."""
    reward_sum: float = 0.0
    seconds: float = 0.0
