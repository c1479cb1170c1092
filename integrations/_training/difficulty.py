"""The tasks that a policy can learn from, by the rewards of earlier samples: a filter and an order."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training import records


def task_key(task_id: object, prompt: str) -> str:
    """Return the name under which `kept_rewards` has a task: its id or, without one, its prompt.

    An id is text or a whole number. Records do not have the whole of a very long prompt, so a task with
    one needs an id.
    """
    return str(task_id) if isinstance(task_id, str | int) else prompt


def kept_rewards(folder: str | Path) -> dict[str, list[float]]:
    """Return each task's rewards in a run's records, in the order of steps; see `task_key` for the keys.

    Rollouts without a reward are left out. `folder` is that of a run of the GRPO program, or of
    `records=` of TRL's rewards. Raises ConfigurationError if it has no records.
    """
    found: dict[str, list[float]] = {}
    runs = [Path(folder), *sorted(Path(folder).glob("rank-*"))]  # TRL's processes have one each
    for step in sorted({step for run in runs for step in records.steps(run)}):
        for run in runs:
            for row in records.read(run, step):
                if row["reward"] is not None:
                    key = task_key(row.get("task_id"), row["prompt"])
                    found.setdefault(key, []).append(row["reward"])
    if not found:
        raise ConfigurationError(
            f"{str(folder)!r} has no rollouts with a reward: give a run's folder"
        )
    return found


def curriculum(
    tasks: Sequence[str], rewards: Mapping[str, Sequence[float]], *, samples: int = 8
) -> list[int]:
    """Return the indices of the `tasks` to train on, from the easiest to the hardest.

    Only the last `samples` rewards of a task count. A task is left out if it has that many and they
    are equal, because it always passes or always fails, and then its group gives no gradient. The others are
    in descending order of their mean reward; tasks without rewards come last.
    """
    latest = [list(rewards.get(task, ()))[-samples:] for task in tasks]
    kept = [n for n, last in enumerate(latest) if len(last) < samples or len(set(last)) > 1]
    return sorted(kept, key=lambda n: -sum(latest[n]) / len(latest[n]) if latest[n] else 1.0)
