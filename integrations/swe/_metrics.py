"""Counts over all episodes of an environment or a pool."""

from dataclasses import dataclass


@dataclass(slots=True)
class Metrics:
    """Counts since the start; `seconds` are those between reset and the verdict."""

    episodes: int = 0
    passed: int = 0
    masked: int = 0
    """Episodes without a reward: the infrastructure's failures."""
    shared: int = 0
    """Verdicts of tests that ran beside the code: `trust="shared"`."""
    submitted: int = 0
    steps: int = 0
    tool_errors: int = 0
    setup_failures: int = 0
    """Setups that failed, those that a retry then saved included."""
    reward_sum: float = 0.0
    seconds: float = 0.0
