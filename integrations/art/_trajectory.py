"""What a rollout leaves behind, in the shape that ART trains on."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The messages of a rollout, with the model's own turns as choices, and its reward."""

    messages_and_choices: list[dict[str, Any]]
    """Any: JSON of the OpenAI API; a choice has "finish_reason", a message has "role"."""
    reward: float | None
    """None: the infrastructure failed; leave the trajectory out of its group."""
    metrics: dict[str, float] = field(default_factory=dict)
    metadata: dict[str, str | int] = field(default_factory=dict)
    detail: str = ""

    def art(self) -> dict[str, Any]:
        """The keywords of `art.Trajectory`. Raises ValueError for a masked one."""
        if self.reward is None:
            raise ValueError(f"a masked trajectory has no reward: {self.detail}")
        return {
            "messages_and_choices": self.messages_and_choices,
            "reward": self.reward,
            "metrics": self.metrics,
            "metadata": self.metadata,
            "logs": [self.detail],
        }
