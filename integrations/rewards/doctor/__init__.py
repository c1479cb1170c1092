"""The task doctor: finds tasks that a cheat passes or whose reference fails, before a training run."""

from sandboxkit.integrations.rewards.doctor._check import check, shared_because
from sandboxkit.integrations.rewards.doctor._report import (
    TaskFinding,
    TaskReport,
    kind_of,
    summary,
)
from sandboxkit.integrations.rewards.doctor._tasks import (
    CheckTasks,
    check_beforehand,
    check_file,
    line_about,
    read_tasks,
)

__all__ = [
    "CheckTasks",
    "TaskFinding",
    "TaskReport",
    "check",
    "check_beforehand",
    "check_file",
    "kind_of",
    "line_about",
    "read_tasks",
    "shared_because",
    "summary",
]
