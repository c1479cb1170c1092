"""SWE tasks: a model works in a sandbox with a shell and an editor, and its work is graded."""

from sandboxkit.integrations.swe._env import Metrics, Step, SweConfig, SweEnv
from sandboxkit.integrations.swe._episode import Episode, Policy, SwePool, run_episode
from sandboxkit.integrations.swe._grading import grade
from sandboxkit.integrations.swe._load import load_task
from sandboxkit.integrations.swe._oracle import TaskTrial, run_oracle, try_tasks
from sandboxkit.integrations.swe._setups import TaskSetups
from sandboxkit.integrations.swe._source import bundled_tasks, load_tasks
from sandboxkit.integrations.swe._task import Healthcheck, Task

__all__ = [
    "Episode",
    "Healthcheck",
    "Metrics",
    "Policy",
    "Step",
    "SweConfig",
    "SweEnv",
    "SwePool",
    "Task",
    "TaskSetups",
    "TaskTrial",
    "bundled_tasks",
    "grade",
    "load_task",
    "load_tasks",
    "run_episode",
    "run_oracle",
    "try_tasks",
]
