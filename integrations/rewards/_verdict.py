"""What every grader answers: a verdict, and whose doing it was."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from sandboxkit import ConfigurationError, Session
from sandboxkit.display import Shown
from sandboxkit.display.page import Page

Party = Literal["policy", "infra"]
Trust = Literal["isolated", "shared"]


class Outcome(StrEnum):
    """How grading ended."""

    PASSED = "passed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    OOM = "oom"
    KILLED = "killed"
    TRUNCATED = "truncated"
    TAMPERED = "tampered"
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True)
class Verdict(Shown):
    """A grade. `attributable_to` "infra" means there is none: leave the sample out.

    Raises ConfigurationError for a score that is not a finite number in [0, 1], for a full
    score that was not passed, and for an infrastructure error that is the policy's.
    """

    outcome: Outcome
    score: float
    attributable_to: Party = "policy"
    detail: str = ""
    """One or two lines for a log. Text of the submission in it is escaped and cut short."""
    trust: Trust = "shared"
    """"isolated": what decided ran where nothing of the submission ever was. "shared": it ran
    beside the submission, as hard to reach as the backend allows, or nobody says otherwise."""

    def __post_init__(self) -> None:
        if type(self.score) not in (int, float) or not math.isfinite(self.score):
            raise ConfigurationError(f"score={self.score!r} is not a finite number")
        if not 0 <= self.score <= 1:
            raise ConfigurationError(f"score={self.score!r} is not between 0 and 1")
        if (self.outcome is Outcome.INFRA_ERROR) != (self.attributable_to == "infra"):
            raise ConfigurationError(
                f"outcome {self.outcome!s} cannot be attributed to {self.attributable_to!r}"
            )
        if self.score == 1 and self.outcome is not Outcome.PASSED:
            raise ConfigurationError(f"outcome {self.outcome!s} cannot have the score 1")
        if self.trust not in ("isolated", "shared"):
            raise ConfigurationError(f"trust={self.trust!r} is neither 'isolated' nor 'shared'")

    @property
    def reward(self) -> float | None:
        """The score, or None where the infrastructure failed: a sample to mask, never a 0."""
        return None if self.attributable_to == "infra" else float(self.score)

    def _page(self) -> Page:
        reward = "none: leave it out" if self.reward is None else f"{self.reward:g}"
        rows = {"reward": reward, "attributable to": self.attributable_to, "trust": self.trust}
        moods: dict[float | None, str] = {1.0: "good", None: "open"}
        mood = moods.get(self.reward, "bad")
        return Page(
            "Verdict", self.outcome.value.replace("_", " "), mood, rows, {"detail": self.detail}
        )


class Grader(Protocol):
    """Grades one submission for one task, in sandboxes that it makes in the session.

    It never raises for trouble with the infrastructure: past its retries that is the outcome
    INFRA_ERROR. Raises ConfigurationError for a task that it cannot grade.
    """

    # Any: a task is a row of somebody's data set; each grader says which keys it reads.
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        """Grade it."""
        ...


def failed(detail: str, score: float = 0.0) -> Verdict:
    """The policy's failure."""
    return Verdict(Outcome.FAILED, score, "policy", detail)


def masked(detail: str) -> Verdict:
    """The infrastructure's failure, which has no score."""
    return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
