"""The task doctor: finds tasks that a cheat passes or whose reference fails, before a training run."""

from sandboxkit.integrations.rewards.doctor._beforehand import (
    CheckTasks,
    check_beforehand,
    line_about,
)
from sandboxkit.integrations.rewards.doctor._check import check
from sandboxkit.integrations.rewards.doctor._file import Entry, check_file, read_tasks
from sandboxkit.integrations.rewards.doctor._reference import reference_of
from sandboxkit.integrations.rewards.doctor._report import (
    Shape,
    Status,
    TaskFinding,
    TaskReport,
    summary,
)

__all__ = [
    "CheckTasks",
    "Entry",
    "Shape",
    "Status",
    "TaskFinding",
    "TaskReport",
    "check",
    "check_beforehand",
    "check_file",
    "line_about",
    "read_tasks",
    "reference_of",
    "summary",
]
