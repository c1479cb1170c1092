"""The result of a rollout, in the format that ART trains on."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The messages and the reward of a rollout. The model's turns are stored as choices."""

    messages_and_choices: list[dict[str, Any]]
    """JSON of the OpenAI API (Any): a choice has "finish_reason", a message has "role"."""
    reward: float | None
    """The reward; None if the infrastructure failed: leave the trajectory out of its group."""
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str | int] = field(default_factory=dict)
    detail: str = ""

    def art(self) -> dict[str, Any]:
        """Return the keyword arguments for `art.Trajectory`. Raises ValueError if the reward is None."""
        if self.reward is None:
            raise ValueError(f"a masked trajectory has no reward: {self.detail}")
        return {
            "messages_and_choices": self.messages_and_choices,
            "reward": self.reward,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "logs": [self.detail],
        }
