"""The doctor's report about a task."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

__all__ = ["Shape", "Status", "TaskFinding", "TaskReport", "summary"]

Status = Literal["fine", "bought", "refused", "weak", "unknown"]
Shape = Literal["values", "judge", "values and judge", "shared"]

_ORDER: tuple[Status, ...] = ("fine", "bought", "refused", "weak", "unknown")


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One thing that is wrong with a task."""

    kind: Status
    """Never "fine"."""
    what: str
    """The cheat that passes, the changed line of the reference, or the verdict's detail."""
    remedy: str = ""
    """How the author of the task can fix it."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report about one task. `status` is the worst of the findings.

    "bought": a cheat gets the full score. "refused": the reference does not get it. "weak": too many
    wrong variants of the reference pass. "unknown": the infrastructure failed before any of these
    was found, so the task may be fine or not.
    """

    name: str
    status: Status
    findings: tuple[TaskFinding, ...] = ()
    shape: Shape = "values"
    """How the task is graded: "values" are compared on the host, a "judge" runs tests in a separate
    sandbox, "shared" runs them in the submission's sandbox."""
    cheats: int = 0
    """Number of cheats that were graded."""
    mutants: int = 0
    """Number of wrong variants of the reference that were graded."""
    survivors: int = 0
    """Number of variants that passed. A few may: a variant can be as correct as the reference."""
    seconds: float = 0.0


def summary(reports: Iterable[TaskReport]) -> str:
    """Return a line such as "500 tasks: 481 fine, 3 bought, 9 refused, 7 weak"."""
    counts = Counter(report.status for report in reports)
    total = counts.total()
    parts = ", ".join(f"{counts[each]} {each}" for each in _ORDER if counts[each]) or "none checked"
    return f"{total} {'task' if total == 1 else 'tasks'}: {parts}"
