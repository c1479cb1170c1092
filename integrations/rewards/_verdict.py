"""The verdict that every grader returns: outcome, score, and whether the policy is to blame."""

import math
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Protocol

from sandboxkit import ConfigurationError, Session
from sandboxkit.display import Displayable
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
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    """The program was ended by a signal or exited with a status other than 0."""
    INFRA_ERROR = "infra_error"


@dataclass(frozen=True, slots=True)
class Part:
    """The result and resource use of one graded case. None means not measured."""

    name: str
    outcome: Outcome
    score: float
    """The share of the case's points, from 0 to 1."""
    weight: float = 1.0
    detail: str = ""
    processor_seconds: float | None = None
    wall_seconds: float | None = None
    peak_memory_bytes: int | None = None
    """Resident memory of the largest process of the run."""
    output_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict(Displayable):
    """A grader's result. If `attributable_to` is "infra" there is no grade: mask the sample.

    Raises ConfigurationError for a score that is not a finite number in [0, 1], for a score of 1
    without the outcome PASSED, and unless INFRA_ERROR and "infra" occur together.
    """

    outcome: Outcome
    score: float
    attributable_to: Party = "policy"
    detail: str = ""
    """One or two lines for a log. Text from the submission is escaped and shortened."""
    trust: Trust = "shared"
    """"isolated": the code that decided the grade ran where the submission never was. "shared": it
    ran in the submission's sandbox or process, or the grader does not say where."""
    parts: tuple[Part, ...] = ()
    """The graded cases in order, or empty if the grader does not report them."""

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
        """The score, or None if the infrastructure failed: mask such a sample, do not count it as 0."""
        return None if self.attributable_to == "infra" else float(self.score)

    def _page(self) -> Page:
        reward = "none: mask the sample" if self.reward is None else f"{self.reward:g}"
        rows = {"reward": reward, "attributable to": self.attributable_to, "trust": self.trust}
        moods: dict[float | None, str] = {1.0: "good", None: "open"}
        mood = moods.get(self.reward, "bad")
        return Page(
            "Verdict", self.outcome.value.replace("_", " "), mood, rows, {"detail": self.detail}
        )


class Grader(Protocol):
    """Grades one submission for one task, in sandboxes that it creates in the session.

    `grade` returns an Operation, as that of `HostCompare` and `Program` does, or is a coroutine function. Trainers
    await it on sandboxkit's background loop, where other graders can be awaited and nothing may block. It does not raise infrastructure errors: after its retries the outcome is INFRA_ERROR. Raises
    ConfigurationError for a task that it cannot grade.
    """

    # Any: a task is a row of a user's data set; each grader documents the keys that it reads.
    def grade(
        self, session: Session, submission: str, task: Mapping[str, Any]
    ) -> Awaitable[Verdict]:
        """Grade `submission` for `task`."""
        ...


def failed(detail: str, outcome: Outcome = Outcome.FAILED) -> Verdict:
    """Return a verdict with the score 0, attributed to the policy."""
    return Verdict(outcome, 0.0, "policy", detail)


def masked(detail: str) -> Verdict:
    """Return the verdict INFRA_ERROR, which has no score."""
    return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
