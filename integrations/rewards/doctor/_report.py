"""The doctor's report about a task."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Status = Literal["fine", "bought", "refused", "weak", "unknown"]
Shape = Literal["values", "judge", "values and judge", "shared"]

_ORDER: tuple[Status, ...] = ("fine", "bought", "refused", "weak", "unknown")


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One defect of a task, or a reason why it could not be checked."""

    kind: Status
    """Never "fine"."""
    what: str
    """The name of the cheat that passes, the changed line of the reference, or the verdict's detail."""
    remedy: str = ""
    """How the author of the task can fix it."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The report about one task. `status` is the most serious kind of its findings.

    "bought": a cheat gets the full score. "refused": the reference does not get it. "weak": too many
    wrong variants of the reference pass. "unknown": the infrastructure failed, and no defect was found
    before.
    """

    name: str
    status: Status
    findings: tuple[TaskFinding, ...] = ()
    shape: Shape = "values"
    """How the task is graded. "values": results are compared on the host. "judge": tests run in a
    separate sandbox. "shared": tests run in the submission's sandbox."""
    cheats: int = 0
    """Number of cheats that were graded."""
    mutants: int = 0
    """Number of wrong variants of the reference that were graded."""
    survivors: int = 0
    """Number of variants that passed. A few may pass, since a variant can be correct by chance."""
    seconds: float = 0.0
    """Elapsed time of the check."""


def summary(reports: Iterable[TaskReport]) -> str:
    """Return the counts by status, such as "500 tasks: 481 fine, 3 bought, 9 refused, 7 weak"."""
    counts = Counter(report.status for report in reports)
    total = counts.total()
    parts = ", ".join(f"{counts[each]} {each}" for each in _ORDER if counts[each]) or "none checked"
    return f"{total} {'task' if total == 1 else 'tasks'}: {parts}"
