"""The doctor's report about a task."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sandboxkit.integrations.rewards._verdict import Trust

Status = Literal["fine", "bought", "refused", "weak", "unknown"]

ORDER: tuple[Status, ...] = ("fine", "unknown", "weak", "bought", "refused")
"""The statuses of tasks, the most serious one last."""
_NAME = re.compile(
    r"(?<=object of )\w+|(?<=catch )\w+|\.?\w+\(\)|\.\w+(?= of)|\w+(?=, which| other than)"
)
"""The name in a reason, such as "the tests make an object of Stack"."""
_REASONS = 5


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

    "bought": a cheat gets the full score. "refused": the reference does not get it, or not each time.
    "weak": too many wrong variants of the reference pass, or the tests demand the last digit of a float.
    "unknown": the infrastructure failed, and no defect was found before.
    """

    name: str
    status: Status
    findings: tuple[TaskFinding, ...] = ()
    level: Trust = "isolated"
    """The `trust` of the task's verdicts."""
    why: str = ""
    """Why the level is "shared"; "" if it is not."""
    cheats: int = 0
    """Number of cheats that were graded."""
    mutants: int = 0
    """Number of wrong variants of the reference that were graded."""
    survivors: int = 0
    """Number of variants that passed. A few may pass, since a variant can be correct by chance."""
    seconds: float = 0.0
    """Elapsed time of the check."""


def summary(reports: Iterable[TaskReport]) -> str:
    """Return counts by status and level, such as "9 tasks: 8 fine, 1 weak; 9 isolated, 0 shared".

    The reasons why tasks are shared follow, the most frequent ones first.
    """
    reports = list(reports)
    counts = Counter(report.status for report in reports)
    parts = ", ".join(f"{counts[each]} {each}" for each in ORDER if counts[each]) or "none checked"
    levels = Counter(report.level for report in reports)
    total = f"{len(reports)} {'task' if len(reports) == 1 else 'tasks'}"
    line = f"{total}: {parts}; {levels['isolated']} isolated, {levels['shared']} shared"
    reasons = Counter(kind_of(report.why) for report in reports if report.why)
    why = ", ".join(f"{count} because {each}" for each, count in reasons.most_common(_REASONS))
    return f"{line} ({why})" if why else line


def kind_of(why: str) -> str:
    """Return the reason why a task is shared without the names in it."""
    return _NAME.sub("...", why)
